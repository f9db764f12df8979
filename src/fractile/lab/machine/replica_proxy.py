"""Replaces a Service in front of several control planes that are processes: a port that leads to the ready one.

Failure rule: closed. A replica that does not answer within a second is not ready; if none is, connections are closed.
"""

import asyncio
import contextlib
import ssl
from collections.abc import Sequence
from functools import partial

import msgspec

from fractile.lab.machine.forwarding import Address, Way, forward

_FRESH = 0.25  # seconds for which the ready replica is cached
_PROBE = 1.0  # seconds; a paused replica accepts connections but does not answer
_HOST = "127.0.0.1"


class ReplicaFront(msgspec.Struct, frozen=True):
    """``ports`` are served. Each replica has its own port for each, in the same order; the first serves /readyz."""

    ports: tuple[int, ...]
    replicas: tuple[tuple[int, ...], ...]


class ReplicaProxy:
    """Serves until it is cancelled. ``trust``: contains the authority of the replicas' certificates."""

    def __init__(self, front: ReplicaFront, trust: ssl.SSLContext) -> None:
        self._front = front
        self._trust = trust
        self._asking = asyncio.Lock()
        self._known: tuple[float, tuple[int, ...]] = (-_FRESH, ())

    async def run(self) -> None:
        ways = [Way(p, "the replica that leads", partial(self._ready, i)) for i, p in enumerate(self._front.ports)]
        await forward(ways)

    async def _ready(self, index: int) -> list[Address]:
        async with self._asking:  # simultaneous connections share one probe
            asked, leader = self._known
            if asyncio.get_running_loop().time() - asked >= _FRESH:
                leader = await first_ready(self._front.replicas, self._trust)
                self._known = (asyncio.get_running_loop().time(), leader)
        return [(_HOST, leader[index])] if leader else []


async def first_ready(replicas: Sequence[tuple[int, ...]], trust: ssl.SSLContext) -> tuple[int, ...]:
    """The first replica that says it is ready, without waiting for slower ones; empty if none is ready."""
    asked = [asyncio.create_task(_is_ready(one, trust)) for one in replicas]
    try:
        for answer in asyncio.as_completed(asked):
            if found := await answer:
                return found
    finally:
        for task in asked:
            task.cancel()
        await asyncio.gather(*asked, return_exceptions=True)
    return ()


async def _is_ready(replica: tuple[int, ...], trust: ssl.SSLContext) -> tuple[int, ...]:
    with contextlib.suppress(OSError):  # includes TimeoutError
        async with asyncio.timeout(_PROBE):
            reader, writer = await asyncio.open_connection(_HOST, replica[0], ssl=trust)
            try:
                writer.write(f"GET /readyz HTTP/1.1\r\nHost: {_HOST}\r\nConnection: close\r\n\r\n".encode())
                line = await reader.readline()
            finally:
                writer.close()
        return replica if line.startswith(b"HTTP/1.1 200 ") else ()
    return ()
