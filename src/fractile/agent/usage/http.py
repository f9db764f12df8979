"""A small HTTP/1.1 server for GET and HEAD, optionally over TLS: all that Prometheus, a probe and `fractile top` need
from an agent.

Written by hand: an ASGI server takes 15 MB of the agent's 60, and the standard library's gives every connection a
thread and no time limit. One request per connection; bodies are not read. Connections come through ``fractile.door``:
if there are too many, the one that has been silent longest is dropped, of the peer that has most, and never the newest.
Failure rule: a client that is slow, verbose or malformed is cut off, without any cost for the others; a port that is
taken is retried as long as the agent runs.
"""

import asyncio
import errno
import logging
import socket
import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec

from fractile.door.door import Door, Guest, HandshakeTiming
from fractile.door.places import PlaceLimits
from fractile.errors import SetupError
from fractile.kube.pacing import Sleep
from fractile.region import plain

_HEAD = 8192  # bytes of request line and headers
_READ = 5.0  # seconds for a client to send them
_WRITE = 10.0  # and to read the answer
_CLOSE = 5.0  # and, over TLS, to acknowledge the end of the connection
_RULES = PlaceLimits(strangers=64, known=0, each=32)  # simultaneous connections
_UNIX = 32  # the same for a unix socket, which only root can open
_BACKLOG = 1024  # connections that the kernel keeps until they are accepted
_TAKEN = 10.0  # until a port that was taken is retried
_NO_FAMILY = (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL)  # a machine without IPv6 serves IPv4 only
_METHODS = ("GET", "HEAD")
_REASONS = {
    200: "OK",
    400: "Bad Request",
    403: "Forbidden",
    404: "Not Found",
    405: "Method Not Allowed",
    408: "Request Timeout",
    431: "Request Header Fields Too Large",
    500: "Internal Server Error",
    503: "Service Unavailable",
}

log = logging.getLogger(__name__)


class Address(msgspec.Struct, frozen=True):
    """Where to listen; an empty host is every address of the machine."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> "Address | None":
        """``:5678``, ``10.0.0.1:5678``, ``[::1]:5678``; "" is None: no server. SetupError for anything else."""
        if not text:
            return None
        host, colon, port = text.rpartition(":")
        if not colon or not (port.isascii() and port.isdigit()) or int(port) > 65535 or (":" in host) != ("[" in host):
            raise SetupError(f"{text[:80]!r} is not an address to listen on; write for example :5678 or 127.0.0.1:5678")
        return cls(host.strip("[]"), int(port))


class PageRequest(msgspec.Struct, frozen=True):
    """``path`` without its query; header names in lower case."""

    path: str
    headers: dict[str, str]


class Response(msgspec.Struct, frozen=True):
    body: bytes
    content_type: str = "text/plain; charset=utf-8"
    status: int = 200


Handler = Callable[[PageRequest], Awaitable[Response]]
_Connected = Callable[[asyncio.StreamReader, asyncio.StreamWriter], None]


class _Refused(Exception):
    """The request is not one that the server answers; ``status`` says why."""

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


class _Lasting(asyncio.StreamReaderProtocol):
    """Keeps its place until it is really closed: over TLS the client has seconds to acknowledge the end."""

    def __init__(self, guest: Guest, reader: asyncio.StreamReader, connected: _Connected) -> None:
        super().__init__(reader, connected)
        self._guest = guest

    def connection_lost(self, exc: Exception | None) -> None:
        self._guest.left()
        super().connection_lost(exc)


class HttpServer:
    """Answers by path. ``address`` may be the path of a unix socket, which only its owner can open then. ``tls``: the
    certificate, for an address. ``port`` is the one it listens on, 0 before that."""

    def __init__(
        self,
        address: Address | Path,
        routes: dict[str, Handler],
        *,
        tls: ssl.SSLContext | None = None,
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        self._address = address
        self._routes = routes
        self._tls = tls
        self._sleep = sleep
        self._open = 0
        self.port = 0
        self.listening = asyncio.Event()

    async def run(self) -> None:
        """Serve until cancelled."""
        async with asyncio.TaskGroup() as connections:
            if isinstance(self._address, Path):
                await self._serve_unix(self._address, connections)
            else:
                await self._serve(self._address, connections)

    async def _serve(self, address: Address, connections: asyncio.TaskGroup) -> None:
        """One door for each address of the host: both families, if the host is empty."""
        sockets = await self._bound(lambda: _sockets(address))
        doors = [
            Door(
                one,
                lambda g: self._protocol(connections, g),
                context=self._tls,
                rules=_RULES,
                timing=HandshakeTiming(_READ),
            )
            for one in sockets
        ]
        try:
            for door in doors:
                door.open()
            self._listens(sockets[0].getsockname()[1])
            await asyncio.Event().wait()
        finally:
            for door in doors:
                door.close()
            for one in sockets:
                one.close()

    async def _serve_unix(self, path: Path, connections: asyncio.TaskGroup) -> None:
        def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            connections.create_task(self._connection(reader, writer))

        (sock,) = await self._bound(lambda: [_unix(path)])
        async with await asyncio.start_unix_server(connected, sock=sock, limit=_HEAD) as server:
            self._listens(0)
            await server.serve_forever()

    async def _bound(self, make: Callable[[], list[socket.socket]]) -> list[socket.socket]:
        while True:
            try:
                return make()
            except OSError as e:
                log.warning("not listening address=%s reason=%s", _where(self._address), e)
            await self._sleep(_TAKEN)

    def _listens(self, port: int) -> None:
        self.port = port
        self.listening.set()
        log.info("listening address=%s", _where(self._address, port))

    def _protocol(self, connections: asyncio.TaskGroup, guest: Guest) -> asyncio.Protocol:
        def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            guest.opened(writer.transport, known=False)
            connections.create_task(self._connection(reader, writer, guest))

        return _Lasting(guest, asyncio.StreamReader(limit=_HEAD), connected)

    async def _connection(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, guest: Guest | None = None
    ) -> None:
        self._open += 1
        # ``drain`` returns when the kernel has all of it, or TLS's buffer the last of it. Not 0: a transport with TLS
        # would pause with an empty buffer (asyncio/sslproto.py compares with >=), until the client sends more.
        writer.transport.set_write_buffer_limits(high=1, low=0)
        try:
            if guest is None and self._open > _UNIX:
                response, head = Response(b"too many connections\n", status=503), False
            else:
                response, head = await self._answer(reader)
            if guest is not None:
                guest.asked()
            writer.write(_encode(response, head=head))
            async with asyncio.timeout(_WRITE):
                await writer.drain()
        except (OSError, TimeoutError):
            writer.transport.abort()  # the client has gone, or reads nothing: ``close`` would keep the answer for it
        finally:
            self._open -= 1
            if guest is not None:
                guest.within(_CLOSE)
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader) -> tuple[Response, bool]:
        try:
            async with asyncio.timeout(_READ):
                raw = await reader.readuntil(b"\r\n\r\n")
            method, request = _parse(raw)
        except (asyncio.LimitOverrunError, asyncio.IncompleteReadError, TimeoutError, _Refused) as e:
            status = _status(e)
            return Response(f"{_REASONS[status]}\n".encode(), status=status), False
        handler = self._routes.get(request.path)
        if handler is None:
            known = " ".join(sorted(self._routes))
            return Response(f"there is no such page; try {known}\n".encode(), status=404), method == "HEAD"
        try:
            return await handler(request), method == "HEAD"
        except Exception:  # a page that fails must not end the agent
            log.exception("page failed path=%s", request.path)
            return Response(b"this page failed; see the agent's log\n", status=500), method == "HEAD"


def _sockets(address: Address) -> list[socket.socket]:
    """Sockets that listen on all addresses of the host."""
    found = socket.getaddrinfo(address.host or None, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    made: list[socket.socket] = []
    try:
        for family, _, _, _, where in sorted(set(found)):
            try:
                made.append(socket.create_server(where, family=family, backlog=_BACKLOG))
            except OSError as e:
                if e.errno not in _NO_FAMILY or not made:
                    raise
    except BaseException:
        for one in made:
            one.close()
        raise
    return made


def _unix(path: Path) -> socket.socket:
    """A socket that only its owner may open: connects fail before ``listen``, and then its mode is right."""
    plain.make_room_for_socket(path)
    path.unlink(missing_ok=True)
    made = socket.socket(socket.AF_UNIX)
    try:
        made.bind(str(path))
        path.chmod(0o600)
    except BaseException:
        made.close()
        raise
    return made


def _where(address: Address | Path, port: int = 0) -> str:
    return f"{address.host}:{port or address.port}" if isinstance(address, Address) else str(address)


def _status(error: Exception) -> int:
    match error:
        case _Refused():
            return error.status
        case asyncio.LimitOverrunError():
            return 431
        case TimeoutError():
            return 408
        case _:
            return 400


def _parse(raw: bytes) -> tuple[str, PageRequest]:
    """Parse the request's head, strictly: no folded lines, no body, nothing that could be read as two requests."""
    try:
        first, *lines = raw[:-4].decode("ascii").split("\r\n")
    except UnicodeDecodeError:
        raise _Refused(400) from None
    parts = first.split(" ")
    if len(parts) != 3 or parts[2] not in ("HTTP/1.1", "HTTP/1.0") or not parts[1].startswith("/"):
        raise _Refused(400)
    headers: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon or not name or not name.isprintable() or name != name.strip() or " " in name or "\n" in line:
            raise _Refused(400)
        key = name.lower()
        if key in headers and key in ("host", "content-length"):
            raise _Refused(400)
        headers[key] = f"{headers[key]},{value.strip()}" if key in headers else value.strip()
    if parts[0] not in _METHODS:
        raise _Refused(405)
    if "transfer-encoding" in headers or headers.get("content-length", "0") != "0":
        raise _Refused(400)
    return parts[0], PageRequest(parts[1].partition("?")[0], headers)


def _encode(response: Response, *, head: bool) -> bytes:
    allow = "Allow: GET, HEAD\r\n" if response.status == 405 else ""
    headers = (
        f"HTTP/1.1 {response.status} {_REASONS[response.status]}\r\n"
        f"Content-Type: {response.content_type}\r\nContent-Length: {len(response.body)}\r\n"
        f"{allow}Cache-Control: no-store\r\nConnection: close\r\n\r\n"
    )
    return headers.encode() + (b"" if head else response.body)
