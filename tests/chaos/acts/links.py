"""A link: a loopback port that passes connections on, and can be cut. What stands between two programs of the cluster.

Failure rule: whatever happens to one connection ends that connection. Nothing is repeated.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

Address = tuple[str, int]
Upstream = Callable[[], Address | None]

_CONNECT = 3.0  # seconds
_CHUNK = 2**16


class Link:
    """``upstream`` says where a new connection goes now; None: nowhere, so it is closed."""

    def __init__(self, name: str, upstream: Upstream) -> None:
        self.name = name
        self.port = 0
        self._upstream = upstream
        self._flows = asyncio.Event()
        self._flows.set()
        self._answers = asyncio.Event()
        self._answers.set()
        self._late = 0.0
        self._cut = False
        self._open: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None

    async def listen(self, port: int = 0) -> None:
        """On that port, or one that is free."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        self.cut()
        if self._server is not None:
            self._server.close()
            await asyncio.sleep(0)

    def cut(self) -> None:
        """Close what is open, refuse what comes."""
        self._cut = True
        self._flows.set()
        self._answers.set()
        for writer in list(self._open):
            writer.transport.abort()

    def stall(self) -> None:
        """Let nothing through, and tell nobody."""
        self._flows.clear()

    def mute(self) -> None:
        """What is asked arrives and is done; no answer comes back."""
        self._answers.clear()

    def delay(self, seconds: float) -> None:
        """What is asked arrives so much later, also when whoever asked waits no more."""
        self._late = seconds

    def restore(self) -> None:
        self._cut = False
        self._late = 0.0
        self._flows.set()
        self._answers.set()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await self._flows.wait()
            there = None if self._cut else self._upstream()
            if there is not None:
                await self._pass_on(there, reader, writer)
        except* OSError:  # a TimeoutError is one
            pass
        finally:
            writer.close()

    async def _pass_on(self, there: Address, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async with asyncio.timeout(_CONNECT):
            inner_reader, inner_writer = await asyncio.open_connection(*there)
        self._open |= {writer, inner_writer}
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._copy(reader, inner_writer, asked=True))
                tasks.create_task(self._copy(inner_reader, writer, asked=False))
        finally:
            self._open -= {writer, inner_writer}
            inner_writer.close()

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, asked: bool) -> None:
        """Until the one side ends; the other is then told."""
        with contextlib.suppress(OSError):
            while data := await reader.read(_CHUNK):
                await self._flows.wait()
                if asked:
                    await asyncio.sleep(self._late)
                else:
                    await self._answers.wait()
                writer.write(data)
                await writer.drain()
        with contextlib.suppress(OSError, RuntimeError):
            writer.write_eof() if writer.can_write_eof() else writer.close()


class Front:
    """Which of the replicas is ready, as a Service would know; ``ready`` asks one of them."""

    def __init__(self, replicas: dict[str, Address], ready: Callable[[Address], Awaitable[bool]]) -> None:
        self._replicas = replicas
        self._ready = ready
        self.leader = ""

    def upstream(self, ports: dict[str, int]) -> Upstream:
        """Another port of whoever is ready; ``ports`` by replica."""
        return lambda: ("127.0.0.1", ports[self.leader]) if self.leader else None

    async def run(self, period: float = 0.5) -> None:
        """Ask all of them, forever."""
        while True:
            names = list(self._replicas)
            answers = await asyncio.gather(*(self._ready(self._replicas[name]) for name in names))
            self.leader = next((name for name, yes in zip(names, answers, strict=True) if yes), "")
            await asyncio.sleep(period)
