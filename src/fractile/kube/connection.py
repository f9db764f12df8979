"""One connection to a server: httptools parses answers in C, asyncio or uvloop carries the bytes.

    head wanted --ask--> waiting --status and headers--> body --its last byte--> done --ask--> waiting ...
                            └──────────── anything that is not HTTP, or an early end ─────────────> broken

When data comes faster than it is read, the transport pauses, so a watch that is not read holds no memory.
"""

import asyncio
import contextlib
from collections import deque

import httptools
import msgspec

_HEAD = 100 * 1024  # bytes of an answer's head
_MUCH = 256 * 1024  # bytes of a body that may wait to be read
_FAREWELL = 1.0  # seconds
_FRAMED = frozenset({"content-length", "transfer-encoding"})
_NO_BODY = frozenset({204, 304})


class Broken(Exception):
    """The connection ended too soon, or carried something that is not HTTP. Never leaves ``kube``."""


class Head(msgspec.Struct, frozen=True):
    """The head of an answer; header names are in lower case."""

    status: int
    reason: str
    headers: dict[str, str]


class Connection(asyncio.Protocol):
    """One exchange at a time: ``ask``, then ``piece`` until it returns None. Only one task at a time may wait."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._parser: httptools.HttpResponseParser | None = httptools.HttpResponseParser(self)
        self._error: Exception | None = None
        self._waiting: asyncio.Future[None] | None = None
        self._writable: asyncio.Future[None] | None = None
        self._begin()

    @property
    def alive(self) -> bool:
        """Whether the server has not closed it, as far as is known here."""
        return self._error is None and self._transport is not None and not self._transport.is_closing()

    async def ask(self, request: bytes) -> Head:
        """Send the request and read the head of the answer; informational answers (1xx) are skipped."""
        if self._transport is None or self._error is not None:
            raise self._error or Broken("the connection is closed")
        self._begin()
        self._asked = True
        self._transport.write(request)
        if self._writable is not None:
            await self._writable
        while self._head is None:
            await self._more()
        return self._head

    async def piece(self) -> bytes | None:
        """The next part of the body; None at its end."""
        while not self._body:
            if self._whole:
                return None
            await self._more()
        piece = self._body.popleft()
        self._unread -= len(piece)
        if self._transport is not None and self._unread <= _MUCH:
            self._transport.resume_reading()
        return piece

    def reusable(self) -> bool:
        """Whether another exchange may follow."""
        return self._whole and not self._body and self._keep and self.alive

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    async def close(self) -> None:
        """Close it cleanly, as far as the server cooperates."""
        if self._transport is None:
            return
        self._transport.close()
        with contextlib.suppress(Exception):
            async with asyncio.timeout(_FAREWELL):
                while self._error is None:
                    await self._more()
        self.abort()

    # ── callbacks of the transport ───────────────────────────────────────────────────────────────────────────────────

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # pyright: ignore[reportAttributeAccessIssue]  # uvloop's are not asyncio.Transport

    def data_received(self, data: bytes) -> None:
        if self._head is None:
            self._size += len(data)
        if not self._asked or self._whole or self._parser is None:
            self._fail(Broken("the server sent data without a request"))
            return
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as e:
            self._fail(Broken(str(e) or "no HTTP"))
        if self._head is None and self._size > _HEAD:
            self._fail(Broken("the head of the answer has no end"))
        self._wake()

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        if self._head is not None and not self._whole and not self._framed and exc is None:
            self._whole, self._keep = True, False  # such a body ends with its connection
        self._fail(exc or Broken("the connection was closed before an answer" if not self._head else "it was cut"))
        if self._writable is not None and not self._writable.done():
            self._writable.set_result(None)
        # The parser and this object refer to each other. Without breaking that cycle, the TLS buffers, 90 kB, would
        # wait for Python's collector, which never visits objects from before a program became ready (gc.freeze).
        self._parser = None

    def pause_writing(self) -> None:
        self._writable = asyncio.get_running_loop().create_future()

    def resume_writing(self) -> None:
        writable, self._writable = self._writable, None
        if writable is not None and not writable.done():
            writable.set_result(None)

    # ── callbacks of the parser ──────────────────────────────────────────────────────────────────────────────────────

    def on_message_begin(self) -> None:
        self._surplus = self._head is not None
        self._reason, self._headers = "", {}

    def on_status(self, status: bytes) -> None:
        self._reason += status.decode("latin-1")

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        if self._parser is None or (status := self._parser.get_status_code()) < 200 or self._surplus:
            return
        self._head = Head(status, self._reason, self._headers)
        self._framed = status in _NO_BODY or not _FRAMED.isdisjoint(self._headers)

    def on_body(self, body: bytes) -> None:
        if self._surplus:
            return
        self._body.append(body)
        self._unread += len(body)
        if self._unread > _MUCH and self._transport is not None:
            self._transport.pause_reading()

    def on_message_complete(self) -> None:
        if self._surplus:
            self._keep = False
        elif self._head is not None and self._parser is not None:
            self._whole = True
            self._keep = self._parser.should_keep_alive()

    # ── the rest ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def _begin(self) -> None:
        self._asked = self._whole = self._framed = self._surplus = False
        self._keep = True
        self._head: Head | None = None
        self._reason, self._headers = "", dict[str, str]()
        self._body = deque[bytes]()
        self._unread = self._size = 0

    async def _more(self) -> None:
        """Wait until something has happened; raises the error when nothing can happen any more."""
        if self._error is not None:
            raise self._error
        self._waiting = asyncio.get_running_loop().create_future()
        try:
            await self._waiting  # the caller bounds it with a timeout
        finally:
            self._waiting = None

    def _wake(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    def _fail(self, error: Exception) -> None:
        if self._error is None:
            self._error = error
        if self._transport is not None and not self._transport.is_closing():
            self._transport.abort()
        self._wake()
