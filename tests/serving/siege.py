"""Clients that hurt a listener, as a process of its own.

Run as ``python -m tests.serving.siege PORT SLOW BODIES PATH HOST...``.

``SLOW`` connections that never end a request, in turn silent, silent after their TLS handshake, with half a head, with
one byte of a body at a time, and without TLS; and ``BODIES`` that pour 52 MiB of small objects into ``PATH``, with no
certificate, or, at the webhook, announce 7 MiB or less each and send a byte a second. Each that is closed comes again
half a second later, from one of the addresses ``HOST`` in turn. It prints ``ready`` when they have begun.
"""

import asyncio
import contextlib
import itertools
import ssl
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager

AGAIN = 0.5  # seconds
BODY = 52 * 2**20
ANNOUNCED = [7 * 2**20, *(2**n for n in range(20, 9, -1))]  # the most that the webhook takes, and what fills the rest
PIECE = b"{},[]," * 10_000

Attack = Callable[["Siege"], Awaitable[None]]


class Siege:
    def __init__(self, port: int, path: str, hosts: Sequence[str]) -> None:
        self._hosts = itertools.cycle(hosts)
        self._sizes = itertools.cycle(ANNOUNCED)
        self._port = port
        self._path = path
        self._trust = ssl.create_default_context()
        self._trust.check_hostname, self._trust.verify_mode = False, ssl.CERT_NONE

    async def again_and_again(self, attack: Attack) -> None:
        while True:
            with contextlib.suppress(OSError, TimeoutError):
                await attack(self)
            await asyncio.sleep(AGAIN)

    async def silent(self) -> None:
        async with self._connected(tls=False) as (reader, _):
            await self._wait(reader)

    async def shaken_hands(self) -> None:
        async with self._connected() as (reader, _):
            await self._wait(reader)

    async def half_a_head(self) -> None:
        async with self._connected() as (reader, writer):
            writer.write(f"POST {self._path} HTTP/1.1\r\nHost: x\r\nX-".encode())
            await self._wait(reader)

    async def drops(self) -> None:
        async with self._connected() as (_, writer):
            writer.write(f"POST {self._path} HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n".encode())
            while not writer.is_closing():
                writer.write(b"[")
                await writer.drain()
                await asyncio.sleep(1)

    async def no_tls(self) -> None:
        async with self._connected(tls=False) as (reader, writer):
            writer.write(b"GET /metrics HTTP/1.1\r\n")
            await self._wait(reader)

    async def body(self) -> None:
        async with self._connected() as (_, writer):
            head = f"POST {self._path} HTTP/1.1\r\nHost: x\r\nContent-Length: {BODY}\r\n\r\n"
            writer.write(head.encode() + b'{"Pod":{},"Nodes":{"items":[')
            for _ in range(BODY // len(PIECE)):
                writer.write(PIECE)
                await writer.drain()

    async def announced(self) -> None:
        async with self._connected() as (_, writer):
            head = f"POST {self._path} HTTP/1.1\r\nHost: x\r\nContent-Length: {next(self._sizes)}\r\n\r\n"
            writer.write(head.encode())
            while not writer.is_closing():
                writer.write(b"{")
                await writer.drain()
                await asyncio.sleep(1)

    @staticmethod
    async def _wait(reader: asyncio.StreamReader) -> None:
        async with asyncio.timeout(300):
            while await reader.read(65536):
                pass

    @asynccontextmanager
    async def _connected(
        self, *, tls: bool = True
    ) -> AsyncGenerator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        opened = asyncio.open_connection(
            "127.0.0.1", self._port, ssl=self._trust if tls else None, local_addr=(next(self._hosts), 0)
        )
        reader, writer = await asyncio.wait_for(opened, 20)
        try:
            yield reader, writer
        finally:
            writer.transport.abort()


SLOW: tuple[Attack, ...] = (Siege.silent, Siege.half_a_head, Siege.shaken_hands, Siege.no_tls, Siege.drops)


async def besiege(port: int, slow: int, bodies: int, path: str, hosts: Sequence[str]) -> None:
    siege = Siege(port, path, hosts)
    large = Siege.announced if path.startswith("/admission/") else Siege.body
    attacks = [*itertools.islice(itertools.cycle(SLOW), slow), *[large] * bodies]
    async with asyncio.TaskGroup() as tasks:
        for attack in attacks:
            tasks.create_task(siege.again_and_again(attack))
        await asyncio.sleep(1)
        print("ready", flush=True)


@asynccontextmanager
async def besieged(
    port: int, *, slow: int, bodies: int, path: str = "/scheduler/filter", hosts: Sequence[str] = ("127.0.0.1",)
) -> AsyncGenerator[None]:
    """While the block runs."""
    process = await asyncio.create_subprocess_exec(
        *("setpriv", "--pdeathsig", "KILL", "nice", "-n", "5", sys.executable, "-m", "tests.serving.siege"),
        *(str(port), str(slow), str(bodies), path, *hosts),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    assert process.stdout is not None
    try:
        assert await asyncio.wait_for(process.stdout.readline(), 60) == b"ready\n"
        yield
    finally:
        process.kill()
        await process.wait()


if __name__ == "__main__":
    asyncio.run(besiege(int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4], sys.argv[5:]))
