"""A small HTTP/1.1 server on asyncio streams: one that can also misbehave, which no well-made server lets a test do."""

import asyncio
import contextlib
import gzip
import ssl
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from urllib.parse import parse_qsl, unquote, urlsplit

_GZIP_FROM = 128 * 1024  # the API server compresses answers from this size on


class Closed(Exception):
    """The client went away, or we cut the connection."""


class Exchange:
    """One request and the means to answer it, well or badly."""

    def __init__(
        self, method: str, target: str, headers: dict[str, str], body: bytes, writer: asyncio.StreamWriter
    ) -> None:
        url = urlsplit(target)
        self.method = method
        self.path = unquote(url.path)
        self.query = dict(parse_qsl(url.query, keep_blank_values=True))
        self.headers = headers
        self.body = body
        self.status = 0  # of the answer, once it is sent
        self.cut_after = -1  # bytes of the answer's body after which the connection is cut; -1: never
        self.drip = 0.0  # seconds between the bytes of the answer's body
        self._writer = writer
        self._sent = 0

    async def answer(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        given = {"Content-Type": "application/json", **(headers or {})}
        if len(body) >= _GZIP_FROM and "gzip" in self.headers.get("accept-encoding", ""):
            body = gzip.compress(body, 1)
            given["Content-Encoding"] = "gzip"
        given["Content-Length"] = str(len(body))
        await self._head(status, given)
        await self._write(body, framing=b"%s")

    async def begin(self) -> None:
        """Begin an answer of unknown length."""
        await self._head(200, {"Content-Type": "application/json", "Transfer-Encoding": "chunked"})

    async def send(self, piece: bytes) -> None:
        await self._write(piece, framing=b"%x\r\n%%s\r\n" % len(piece))

    async def end(self) -> None:
        self._writer.write(b"0\r\n\r\n")
        await self._drain()

    def cut(self) -> None:
        """Break the connection without a word."""
        self._writer.transport.abort()
        raise Closed

    async def _head(self, status: int, headers: dict[str, str]) -> None:
        self.status = status
        try:
            phrase = HTTPStatus(status).phrase
        except ValueError:
            phrase = "Unknown"
        lines = [f"HTTP/1.1 {status} {phrase}", *(f"{k}: {v}" for k, v in headers.items()), "", ""]
        self._writer.write("\r\n".join(lines).encode("latin-1"))
        await self._drain()

    async def _write(self, piece: bytes, *, framing: bytes) -> None:
        if 0 <= self.cut_after < self._sent + len(piece):
            keep = self.cut_after - self._sent
            self._writer.write((framing % piece)[: keep + framing.index(b"%s")])
            await self._drain()
            await asyncio.sleep(0.01)  # let the piece leave before the reset overtakes it
            self.cut()
        self._sent += len(piece)
        framed = framing % piece
        for part in (framed[i : i + 1] for i in range(len(framed))) if self.drip else (framed,):
            self._writer.write(part)
            await self._drain()
            await asyncio.sleep(self.drip)

    async def _drain(self) -> None:
        try:
            await self._writer.drain()
        except (ConnectionError, OSError):
            raise Closed from None


Handler = Callable[[Exchange], Awaitable[None]]


class Server:
    """Listens on a free loopback port while its ``async with`` block runs; connections end with it."""

    def __init__(self, handler: Handler, *, tls: ssl.SSLContext | None = None) -> None:
        self._handler = handler
        self._tls = tls
        self._connections: set[asyncio.Task[None]] = set()
        self.port = 0

    async def start(self, port: int = 0) -> None:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", port, ssl=self._tls)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        self._server.close()
        for task in self._connections:
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._serve(reader, writer))
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with contextlib.suppress(Closed, ConnectionError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
                while True:
                    await self._handler(await _read(reader, writer))
        finally:
            writer.transport.abort()


async def _read(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Exchange:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    method, target, _ = head[0].split(" ", 2)
    headers = {name.strip().lower(): value.strip() for name, _, value in (h.partition(":") for h in head[1:] if h)}
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    return Exchange(method, target, headers, body, writer)
