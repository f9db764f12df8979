"""A small HTTP/1.1 server for GET and HEAD, over TLS if wished: what Prometheus, a probe and `fractile top` need of an
agent.

Written by hand: an ASGI server takes 15 MB of the agent's 60, and the standard library's gives every connection a
thread and no time limit. One request per connection; nothing of a body is read. Failure rule: whoever is slow,
long-winded or malformed is cut off, and costs nobody else anything; a port that is taken is tried again for as long as
the agent runs.
"""

import asyncio
import logging
import socket
import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec

from fractile.errors import SetupError
from fractile.kube.pacing import Sleep

_HEAD = 8192  # bytes of request line and headers
_READ = 5.0  # seconds for a client to send them
_WRITE = 10.0  # and to take the answer
_CONNECTIONS = 32  # at once
_TAKEN = 10.0  # until a port that was taken is tried again
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
        """``:5678``, ``10.0.0.1:5678``, ``[::1]:5678``; "" is None: not at all. SetupError for anything else."""
        if not text:
            return None
        host, colon, port = text.rpartition(":")
        if not colon or not (port.isascii() and port.isdigit()) or int(port) > 65535 or (":" in host) != ("[" in host):
            raise SetupError(f"{text[:80]!r} is no address to listen at; write for example :5678 or 127.0.0.1:5678")
        return cls(host.strip("[]"), int(port))


class Request(msgspec.Struct, frozen=True):
    """``path`` without its query; header names in lower case."""

    path: str
    headers: dict[str, str]


class Response(msgspec.Struct, frozen=True):
    body: bytes
    content_type: str = "text/plain; charset=utf-8"
    status: int = 200


Handler = Callable[[Request], Awaitable[Response]]


class _Refused(Exception):
    """The request is not one that we answer; ``status`` says so."""

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


class HttpServer:
    """Answers by path. ``address`` may be the path of a unix socket, which only its owner can open then. ``tls``: with
    that certificate, at an address. ``port`` is the one it listens at, 0 before it does."""

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
        async with asyncio.TaskGroup() as connections, await self._listen(connections) as server:
            if isinstance(self._address, Address):
                self.port = server.sockets[0].getsockname()[1]
            self.listening.set()
            log.info("listening address=%s", _where(self._address, self.port))
            await server.serve_forever()

    async def _listen(self, connections: asyncio.TaskGroup) -> asyncio.Server:
        def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            connections.create_task(self._connection(reader, writer))

        while True:
            try:
                if isinstance(self._address, Path):
                    return await asyncio.start_unix_server(connected, sock=_unix(self._address), limit=_HEAD)
                return await asyncio.start_server(
                    connected,
                    self._address.host or None,
                    self._address.port,
                    limit=_HEAD,
                    ssl=self._tls,
                    ssl_handshake_timeout=_READ if self._tls else None,
                    ssl_shutdown_timeout=_READ if self._tls else None,
                )
            except OSError as e:
                log.warning("not listening address=%s reason=%s", _where(self._address), e)
            await self._sleep(_TAKEN)

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open += 1
        writer.transport.set_write_buffer_limits(0)  # ``drain`` returns when the kernel has all of it
        try:
            if self._open > _CONNECTIONS:
                response, head = Response(b"too many connections\n", status=503), False
            else:
                response, head = await self._answer(reader)
            writer.write(_encode(response, head=head))
            async with asyncio.timeout(_WRITE):
                await writer.drain()
        except (OSError, TimeoutError):
            writer.transport.abort()  # it has gone, or takes nothing: ``close`` would keep the answer for it
        finally:
            self._open -= 1
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
            return Response(f"there is nothing here; try {known}\n".encode(), status=404), method == "HEAD"
        try:
            return await handler(request), method == "HEAD"
        except Exception:  # one page that fails must not end the agent
            log.exception("page failed path=%s", request.path)
            return Response(b"this page failed; see the agent's log\n", status=500), method == "HEAD"


def _unix(path: Path) -> socket.socket:
    """A socket that its owner alone may open: nobody can before ``listen``, and then its mode is right."""
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


def _parse(raw: bytes) -> tuple[str, Request]:
    """The request's head, strictly: no folded lines, no body, nothing that could be taken for two requests."""
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
    return parts[0], Request(parts[1].partition("?")[0], headers)


def _encode(response: Response, *, head: bool) -> bytes:
    allow = "Allow: GET, HEAD\r\n" if response.status == 405 else ""
    headers = (
        f"HTTP/1.1 {response.status} {_REASONS[response.status]}\r\n"
        f"Content-Type: {response.content_type}\r\nContent-Length: {len(response.body)}\r\n"
        f"{allow}Cache-Control: no-store\r\nConnection: close\r\n\r\n"
    )
    return headers.encode() + (b"" if head else response.body)
