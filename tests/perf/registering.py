"""How long a kubelet that starts waits for the agent's devices: from its socket until it has heard each resource.

Kubelet admits all pods of its node half a second to a second after it has opened its socket, and fails those whose
devices it has not heard by then (docs/operate/recovery.md, "A kubelet that starts before the agent has registered").
The agent is a process of its own with 32,552 ids of aliyun.com/gpu-mem; kubelet's part, to dial back and to read the
lists, is played here. In half of the rounds its checkpoint says that a container holds a slot of a class, which is then
to be heard first; in the others that nobody holds anything.
"""

import asyncio
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager

from fractile.agent.kubelet import rpc
from fractile.agent.kubelet.api import deviceplugin_pb2 as dp
from fractile.model.units import CardUUID, ContainerName, MemoryUnit, PodUID
from fractile.wire.foreign import kubelet_checkpoint
from fractile.wire.foreign.kubelet_checkpoint import Recorded
from fractile.wire.fractile.device_ids import device_id
from fractile.wire.fractile.resource_class import DEVICE_SLOT, GPU_SLOT
from tests.agent.forked import Fork, agents
from tests.agent.world import BLOCKS, CORE, COUNT, GPU, MEM, World, card, world
from tests.perf.measuring.report import Row

CARDS = [card(n, 16_276) for n in range(2)]
RESOURCES = (MEM, COUNT, CORE, BLOCKS, GPU, GPU_SLOT, DEVICE_SLOT)
HELD = GPU_SLOT
TURNS = 3
ROUNDS = 8  # of a turn
BUSY = 10
PATIENCE = 30.0  # seconds for one round
Heard = dict[str, float]  # milliseconds after the socket was there, by resource


async def measure() -> list[Row]:
    with agents() as fork:
        async with world(cards=CARDS, unit=MemoryUnit.MiB, agent=False) as w:
            await w.kubelet.stop()
            quiet = await _both(fork, w)
            with busy(BUSY):
                loaded = await _both(fork, w)
    return [*_rows(quiet, "no other work"), *_rows(loaded, f"beside {BUSY} busy processes")]


async def _both(fork: Fork, w: World) -> dict[bool, list[Heard]]:
    """Rounds with and without a container that holds something, in turn, so that what else the machine does falls on
    both."""
    found: dict[bool, list[Heard]] = {False: [], True: []}
    for _ in range(TURNS):
        for holds, rounds in found.items():
            _record(w, CARDS[0].uuid, holds=holds)
            agent = fork.start(w)
            try:
                await _round(w)  # it starts
                rounds += [await _round(w) for _ in range(ROUNDS)]
            finally:
                agent.kill()
            await agent.dead()
    return found


def _record(w: World, uuid: CardUUID, *, holds: bool) -> None:
    held = Recorded(PodUID("u"), ContainerName("c"), HELD, frozenset({device_id(uuid, 0)}))
    file = w.kubelet.plugin_directory / kubelet_checkpoint.FILE_NAME
    file.write_bytes(kubelet_checkpoint.encode([held] if holds else [], {resource: [] for resource in RESOURCES}))


async def _round(w: World) -> Heard:
    """A kubelet starts, hears everything, and is killed."""
    directory = w.kubelet.plugin_directory
    heard: Heard = {}
    everything = asyncio.Event()
    channels: list[rpc.grpc.aio.Channel] = []
    followers: list[asyncio.Task[None]] = []

    async def follow(resource: str, channel: rpc.grpc.aio.Channel) -> None:
        async for _ in rpc.stream(channel, rpc.LIST_AND_WATCH, dp.Empty()):
            heard.setdefault(resource, (time.perf_counter() - began) * 1000)
            if len(heard) == len(RESOURCES):
                everything.set()

    async def register(request: dp.RegisterRequest, _: rpc.Context) -> dp.Empty:
        channel = rpc.channel(directory / request.endpoint)
        channels.append(channel)
        await rpc.call(channel, rpc.OPTIONS, dp.Empty(), timeout=PATIENCE)
        followers.append(asyncio.create_task(follow(request.resource_name, channel)))
        return dp.Empty()

    for left in directory.glob("*.sock"):
        left.unlink()
    began = time.perf_counter()
    server = await rpc.serve(directory / rpc.KUBELET_SOCKET, rpc.unary(rpc.REGISTER, register))
    async with asyncio.timeout(PATIENCE):
        await everything.wait()
    for follower in followers:
        follower.cancel()
    await asyncio.gather(*followers, return_exceptions=True)
    for channel in channels:
        await channel.close(None)
    await server.stop(0)
    await asyncio.sleep(0.3)
    return heard


@contextmanager
def busy(count: int) -> Generator[None]:
    """So many processes that do nothing but calculate."""
    others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for other in others:
            other.kill()
            other.wait()


def _rows(found: dict[bool, list[Heard]], note: str) -> list[Row]:
    rows: list[Row] = []
    for holds, rounds in found.items():
        for what, values in (
            (f"{HELD}, which a pod holds" if holds else f"{HELD}, which nobody holds", [r[HELD] for r in rounds]),
            ("all seven resources", [max(r.values()) for r in rounds]),
        ):
            ordered = sorted(values)
            rows.append(Row(f"kubelet has heard {what}: median", ordered[len(ordered) // 2], "ms", None))
            rows.append(Row(f"kubelet has heard {what}: worst of {len(ordered)}", ordered[-1], "ms", None, note))
    return rows
