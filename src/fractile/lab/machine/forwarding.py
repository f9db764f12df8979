"""Loopback ports whose connections are forwarded to the server that is ready at the time.

The target is chosen for each connection, so new connections follow the leader. If no server is ready, the connection is
closed, where kube-proxy would refuse it.
Failure rule: an error ends only its own connection and is logged.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Sequence

import msgspec

_CONNECT = 3.0  # seconds
_CHUNK = 2**16

log = logging.getLogger(__name__)

Address = tuple[str, int]


class Way(msgspec.Struct, frozen=True):
    """Forwards ``port`` of the loopback address to the first address from ``ready``; ``name`` is for the log."""

    port: int
    name: str
    ready: Callable[[], Awaitable[Sequence[Address]]]


async def forward(ways: Sequence[Way]) -> None:
    """Serve all ports until cancelled."""
    async with contextlib.AsyncExitStack() as stack:
        for way in ways:
            server = await asyncio.start_server(_handler(way), "127.0.0.1", way.port)
            await stack.enter_async_context(server)
            log.info("forwards port=%d to=%s", way.port, way.name)
        await asyncio.Event().wait()


def _handler(way: Way) -> Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await _connect(way, reader, writer)
        except (OSError, TimeoutError) as e:
            log.info("connection ended to=%s reason=%r", way.name, str(e))
        finally:
            writer.close()

    return handle


async def _connect(way: Way, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    for host, port in await way.ready():
        async with asyncio.timeout(_CONNECT):
            inner_reader, inner_writer = await asyncio.open_connection(host, port)
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(_copy(reader, inner_writer))
                tasks.create_task(_copy(inner_reader, writer))
        finally:
            inner_writer.close()
        return
    log.info("no endpoint is ready to=%s", way.name)


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Copy until ``reader`` ends, then end ``writer``."""
    with contextlib.suppress(ConnectionError):
        while data := await reader.read(_CHUNK):  # no timeout: HTTP connections are kept open
            writer.write(data)
            await writer.drain()
    with contextlib.suppress(OSError):
        writer.write_eof() if writer.can_write_eof() else writer.close()
