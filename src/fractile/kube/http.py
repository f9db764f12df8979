"""HTTP/1.1 to one server, over connections that are kept (``connection``).

A general client (httpx2) takes 7 MB of the agent's 60 and three times as long per call: it brings proxies, cookies,
redirects and a layer for other event loops, none of which a client of an API server may use.

    connection:   (none) --open--> busy --answer read to its end--> idle --next exchange--> busy
                                     └────────── anything else ──────────┴─ too old, or closed by the server ──> gone

Failure rule: ``Cut`` when a connection breaks or is refused, WireError for an answer whose compression is damaged.
The caller limits the whole with a timeout; a cancelled call gives up its connection. Nothing is repeated here.
"""

import asyncio
import ssl
import time
import zlib
from collections.abc import AsyncGenerator, Mapping
from urllib.parse import urlencode, urlsplit

import msgspec

from fractile.errors import Unreachable, WireError
from fractile.kube.connection import Broken, Connection, Head
from fractile.kube.dialing import connected
from fractile.kube.pacing import Clock

_CONNECT = 5.0  # seconds, TLS included
_IDLE = 20  # kept connections
# The API server closes connections that are idle for 90 s; we close first, so that no write meets a closing one.
_KEPT = 45.0
_GZIP = 16 + zlib.MAX_WBITS  # zlib(3): with gzip's own header


class Cut(Unreachable):
    """The connection broke or was refused immediately: worth another attempt, unlike a server that does not answer."""


class HTTPRequest(msgspec.Struct, frozen=True):
    """``path`` is relative to the server's address; ``headers`` are added to those that every request has."""

    method: str
    path: str
    query: Mapping[str, str] = {}
    headers: Mapping[str, str] = {}
    body: bytes | None = None


class Http:
    """A client of ``server`` (http or https, HOST, PORT, and perhaps a path prefix).

    ``server_name``: the name that its certificate must show, if it is not the host's.
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
        self._fixed = "".join(f"{k}: {v}\r\n" for k, v in {"Host": url.netloc.rpartition("@")[2], **headers}.items())
        self._clock = clock
        self._idle: list[tuple[Connection, float]] = []  # with the time since when; the longest idle first

    async def send(self, request: HTTPRequest) -> "HTTPResponse":
        """Send a request and return the head of the answer; ``HTTPResponse.read``, ``pieces`` or ``close`` must
        follow."""
        connection = self._kept()
        try:
            if connection is None:
                connection = await self._open()
            head = await connection.ask(self._bytes(request))
        except (OSError, Broken, UnicodeError) as e:  # the last: a host name that cannot be one
            _give_up(connection)
            raise Cut(f"no answer from {self.where(request)}: {_sentence(e)}") from None
        except BaseException:
            _give_up(connection)
            raise
        return HTTPResponse(self, connection, head, self.where(request))

    async def close(self) -> None:
        """Close the kept connections."""
        idle, self._idle = self._idle, []
        for connection, _ in idle:
            await connection.close()

    def keep(self, connection: Connection) -> None:
        """Take back a connection whose answer was read, if another exchange may follow."""
        if connection.reusable() and len(self._idle) < _IDLE:
            self._idle.append((connection, self._clock()))
        else:
            connection.abort()

    def where(self, request: HTTPRequest) -> str:
        """The request for a log line."""
        return f"{request.method} {self._server}{request.path}"

    def _kept(self) -> Connection | None:
        """The most recently used connection, which is the least likely to be closed."""
        oldest = self._clock() - _KEPT
        while self._idle and (self._idle[0][1] < oldest or not self._idle[0][0].alive):
            self._idle.pop(0)[0].abort()
        while self._idle:
            connection, _ = self._idle.pop()
            if connection.alive:
                return connection
            connection.abort()
        return None

    async def _open(self) -> Connection:
        async with asyncio.timeout(_CONNECT):  # its TimeoutError is an OSError, and as good as a refusal
            return await connected(self._host, self._port, tls=self._tls, server_name=self._server_name)

    def _bytes(self, request: HTTPRequest) -> bytes:
        target = self._prefix + request.path + (f"?{urlencode(request.query)}" if request.query else "")
        fields = dict(request.headers)
        if request.body is not None:
            fields["Content-Length"] = str(len(request.body))
        own = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
        if " " in target or "\n" in target or "\r" in target or own.count("\n") + own.count("\r") > 2 * len(fields):
            raise Broken("its path or its headers hold a blank or a line break")
        head = f"{request.method} {target} HTTP/1.1\r\n{self._fixed}{own}\r\n"
        return head.encode("ascii") + (request.body or b"")


class HTTPResponse:
    """An answer whose head has arrived. Header names are in lower case."""

    def __init__(self, http: Http, connection: Connection, head: Head, where: str) -> None:
        self._http = http
        self._connection: Connection | None = connection
        self._where = where
        self.status, self.reason, self.headers = head.status, head.reason, head.headers

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
        """Return the connection, or drop it if more of the answer is to come."""
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
        except (OSError, Broken) as e:
            raise Cut(f"no answer from {self._where}: {_sentence(e)}") from None


def _context(tls: ssl.SSLContext | None) -> ssl.SSLContext:
    context = tls if tls is not None else ssl.create_default_context()
    context.set_alpn_protocols(["http/1.1"])
    return context


def _give_up(connection: Connection | None) -> None:
    if connection is not None:
        connection.abort()


def _sentence(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return f"not connected within {_CONNECT:g} s"
    return str(error) or type(error).__name__
