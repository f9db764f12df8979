"""The API server's side of the webhook for tests and benchmarks: reviews over kept TLS connections."""

import asyncio
import ssl
from types import TracebackType
from typing import Self

_HEAD = "POST /admission/{verb}?timeout=3s HTTP/1.1\r\nhost: {host}\r\ncontent-type: application/json\r\n"


class Reviewer:
    """One connection; ``ask`` one after the other."""

    def __init__(self, port: int, trust: ssl.SSLContext) -> None:
        self._port = port
        self._trust = trust
        self._reader: asyncio.StreamReader
        self._writer: asyncio.StreamWriter

    async def __aenter__(self) -> Self:
        self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port, ssl=self._trust)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._writer.transport.abort()

    async def ask(self, verb: str, body: bytes) -> tuple[int, bytes]:
        """Status and body of the answer."""
        head = _HEAD.format(verb=verb, host="127.0.0.1")
        self._writer.write(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
        return await self._answer()

    async def pour(self, verb: str, size: int, *, piece: int = 65536) -> int:
        """A body of blanks, sent as it is taken; the status."""
        head = _HEAD.format(verb=verb, host="127.0.0.1")
        self._writer.write(f"{head}content-length: {size}\r\n\r\n".encode())
        answering = asyncio.create_task(self._answer())
        blanks = b" " * piece
        try:
            for sent in range(0, size, piece):
                self._writer.write(blanks[: size - sent])
                await self._writer.drain()
                if answering.done():
                    break
        except ConnectionError:
            pass
        try:
            return (await answering)[0]
        except (ConnectionError, asyncio.IncompleteReadError):
            return 0

    async def _answer(self) -> tuple[int, bytes]:
        head = (await self._reader.readuntil(b"\r\n\r\n")).decode()
        length = next(
            int(line.split(":")[1]) for line in head.lower().split("\r\n") if line.startswith("content-length")
        )
        return int(head[9:12]), await self._reader.readexactly(length)
