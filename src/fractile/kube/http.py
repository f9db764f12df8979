"""HTTP/1.1 to one server, over connections that are kept: h11 knows the protocol, asyncio carries the bytes.

A general client (httpx2) is 7 MB of the agent's 60, and a call takes three times as long: it brings proxies, cookies,
redirects and a layer for other event loops, none of which a client of an API server may use.

    connection:   (none) --open--> busy --answer read to its end--> idle --next exchange--> busy
                                     └────────── anything else ──────────┴─ too old, or closed by the server ──> gone

Failure rule: ``Cut`` when a connection breaks or is refused, WireError for an answer that is damaged in compression.
The caller bounds the whole with a timeout; a call that is cancelled gives its connection up. Nothing is repeated here.
"""

import asyncio
import contextlib
import ssl
import time
import zlib
from collections.abc import AsyncGenerator, Mapping
from urllib.parse import urlencode, urlsplit

import h11
import msgspec

from fractile.errors import Unreachable, WireError
from fractile.kube.pacing import Clock

_CONNECT = 5.0  # seconds, TLS included
_SECOND_ADDRESS = 0.25  # after so long the next address of a name is tried as well (RFC 8305)
_IDLE = 20  # kept connections
# The API server closes connections that are idle for 90 s; we leave first, so that no write meets a closing one.
_KEPT = 45.0
_PIECE = 64 * 1024
_HEAD = 100 * 1024  # bytes of an answer's head
_GZIP = 16 + zlib.MAX_WBITS  # zlib(3): with gzip's own header
_FAREWELL = 1.0


class Cut(Unreachable):
    """The connection broke or was refused, at once: worth another attempt, unlike a server that lets us wait."""


class Request(msgspec.Struct, frozen=True):
    """``path`` comes after the server's own address; ``headers`` besides those that every request has."""

    method: str
    path: str
    query: Mapping[str, str] = {}
    headers: Mapping[str, str] = {}
    body: bytes | None = None


class Http:
    """A client of ``server`` (http or https, HOST, PORT, and perhaps a path before all others).

    ``server_name`` is the name that its certificate must show, when it is not the host's.
    """

    def __init__(
        self,
        server: str,
        *,
        tls: ssl.SSLContext | None,
        server_name: str,
        headers: Mapping[str, str],
        clock: Clock = time.monotonic,
    ) -> None:
        url = urlsplit(server)
        self._server = server
        self._host = url.hostname or ""
        self._port = url.port or (443 if url.scheme == "https" else 80)
        self._prefix = url.path
        self._tls = _context(tls) if url.scheme == "https" else None
        self._server_name = (server_name or self._host) if self._tls is not None else None
        self._headers = {"Host": url.netloc.rpartition("@")[2], **headers}
        self._clock = clock
        self._idle: list[tuple[_Connection, float]] = []  # the longest idle first, with the times since when

    async def send(self, request: Request) -> "Answer":
        """The head of the answer; ``Answer.read``, ``pieces`` or ``close`` must follow."""
        connection = self._kept()
        try:
            if connection is None:
                connection = await self._open()
            head = await connection.ask(self._head(request), request.body or b"")
        except (OSError, h11.ProtocolError, UnicodeError) as e:  # the last: a host name that cannot be one
            _give_up(connection)
            raise Cut(f"no answer from {self.where(request)}: {_sentence(e)}") from None
        except BaseException:
            _give_up(connection)
            raise
        return Answer(self, connection, head, self.where(request))

    async def close(self) -> None:
        """Close what is kept."""
        idle, self._idle = self._idle, []
        for connection, _ in idle:
            await connection.close()

    def keep(self, connection: "_Connection") -> None:
        """Take back a connection whose answer was read, if another exchange may follow."""
        if connection.reusable() and len(self._idle) < _IDLE:
            self._idle.append((connection, self._clock()))
        else:
            connection.abort()

    def where(self, request: Request) -> str:
        """The request for a log line."""
        return f"{request.method} {self._server}{request.path}"

    def _kept(self) -> "_Connection | None":
        """The one used last, which is the least likely to be closed by now."""
        oldest = self._clock() - _KEPT
        while self._idle and (self._idle[0][1] < oldest or not self._idle[0][0].alive):
            self._idle.pop(0)[0].abort()
        while self._idle:
            connection, _ = self._idle.pop()
            if connection.alive:
                return connection
            connection.abort()
        return None

    async def _open(self) -> "_Connection":
        async with asyncio.timeout(_CONNECT):  # its TimeoutError is an OSError, and as good as a refusal
            streams = await asyncio.open_connection(
                *(self._host, self._port),
                ssl=self._tls,
                server_hostname=self._server_name,
                happy_eyeballs_delay=_SECOND_ADDRESS,
            )
        return _Connection(*streams)

    def _head(self, request: Request) -> h11.Request:
        target = self._prefix + request.path + (f"?{urlencode(request.query)}" if request.query else "")
        headers = {**self._headers, **request.headers}
        if request.body is not None:
            headers["Content-Length"] = str(len(request.body))
        return h11.Request(method=request.method, target=target, headers=list(headers.items()))


class Answer:
    """An answer whose head has come. Header names are in lower case."""

    def __init__(self, http: Http, connection: "_Connection", head: h11.Response, where: str) -> None:
        self._http = http
        self._connection: _Connection | None = connection
        self._where = where
        self.status = head.status_code
        self.reason = head.reason.decode("latin-1")
        self.headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in head.headers}

    async def read(self) -> bytes:
        """The whole body."""
        return b"".join([piece async for piece in self.pieces()])

    async def pieces(self, *, silence: float | None = None) -> AsyncGenerator[bytes, None]:
        """The body as it comes. ``silence`` seconds without a byte end it with Unreachable."""
        unpack = zlib.decompressobj(_GZIP) if self.headers.get("content-encoding") == "gzip" else None
        try:
            while (piece := await self._piece(silence)) is not None:
                whole = piece if unpack is None else unpack.decompress(piece)
                if whole:
                    yield whole
            if unpack is not None and not unpack.eof:
                raise WireError(f"the answer of {self._where} is damaged: it ends in the middle of its compression")
        except zlib.error as e:
            raise WireError(f"the answer of {self._where} is damaged: {e}") from None
        finally:
            self.close()

    def close(self) -> None:
        """Give the connection back, or up when there is more of the answer to come."""
        connection, self._connection = self._connection, None
        if connection is not None:
            self._http.keep(connection)

    async def _piece(self, silence: float | None) -> bytes | None:
        assert self._connection is not None, "an answer is read once"
        try:
            async with asyncio.timeout(silence):
                return await self._connection.piece()
        except TimeoutError:
            raise Unreachable(f"no answer from {self._where}: not a byte within {silence:g} s") from None
        except (OSError, h11.ProtocolError) as e:
            raise Cut(f"no answer from {self._where}: {_sentence(e)}") from None


class _Connection:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._protocol = h11.Connection(h11.CLIENT, max_incomplete_event_size=_HEAD)

    @property
    def alive(self) -> bool:
        """Whether the server has not closed it, as far as is known here."""
        return not (self._writer.transport.is_closing() or self._reader.at_eof() or self._reader.exception())

    async def ask(self, head: h11.Request, body: bytes) -> h11.Response:
        """Send all and read the head of the answer; what a server says before that (1xx) is passed over."""
        sent = [self._protocol.send(head)]
        if body:
            sent.append(self._protocol.send(h11.Data(data=body)))
        sent.append(self._protocol.send(h11.EndOfMessage()))
        self._writer.write(b"".join(part for part in sent if part))
        await self._writer.drain()
        while not isinstance(event := await self._event(), h11.Response):
            if not isinstance(event, h11.InformationalResponse):
                raise h11.RemoteProtocolError("the connection was closed before an answer")
        return event

    async def piece(self) -> bytes | None:
        """The next part of the body; None at its end."""
        event = await self._event()
        return bytes(event.data) if isinstance(event, h11.Data) else None

    async def _event(self) -> object:
        while (event := self._protocol.next_event()) is h11.NEED_DATA:
            self._protocol.receive_data(await self._reader.read(_PIECE))
        return event

    def reusable(self) -> bool:
        """Make it ready for another exchange; False when there can be none."""
        if self._protocol.our_state is not h11.DONE or self._protocol.their_state is not h11.DONE:
            return False
        self._protocol.start_next_cycle()
        return self.alive

    def abort(self) -> None:
        self._writer.transport.abort()

    async def close(self) -> None:
        self._writer.close()
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(_FAREWELL):
                await self._writer.wait_closed()
        self.abort()


def _context(tls: ssl.SSLContext | None) -> ssl.SSLContext:
    context = tls if tls is not None else ssl.create_default_context()
    context.set_alpn_protocols(["http/1.1"])
    return context


def _give_up(connection: _Connection | None) -> None:
    if connection is not None:
        connection.abort()


def _sentence(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return f"not connected within {_CONNECT:g} s"
    return str(error) or type(error).__name__
