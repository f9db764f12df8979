"""kill -9 of the agent at every line on the way of a pod: GetPreferredAllocation, Allocate and PreStart.

    count   how many lines of Python a pod's way has (``forked.WAY``)
    kill    an agent dies at one of them, spread evenly over all; the next agent starts beside the same kubelet
    then    the pod runs with its own limits, or kubelet failed it for good, which it does when Allocate gets no answer;
            nothing is promised twice, and what nobody holds is swept away

``FRACTILE_KILLS=1000 .venv/bin/pytest -s tests/agent/test_kills.py`` prints how often which end came.
"""

import asyncio
import itertools
import os
import random
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass, field

import pytest

from fractile.agent.kubelet.kubelet_state import Kubelet
from fractile.agent.limits.garbage_collection import GarbageCollector
from fractile.agent.limits.journal import Journal
from fractile.agent.node.pods import NodePods
from fractile.kube.client import KubeClient
from fractile.model.request import Role
from fractile.wire.foreign.kubelet_checkpoint import FILE_NAME
from fractile.wire.kubernetes.objects import Pod
from tests.agent.forked import Fork, Life, agents
from tests.agent.planner import Planner
from tests.agent.world import GIB, NODE, Asks, World, card, credentials, share, world

KILLS = int(os.environ.get("FRACTILE_KILLS", "40"))
CARDS = [card(n, 8 * GIB) for n in range(3)]
GOLDEN = 0.6180339887  # steps of the golden ratio fall evenly, however many there are
NODES = 3  # that are hunted on at a time, since half of it is waiting
SWEPT = 10
KEPT = 3  # pods that run while others come and go
SHAPES: dict[str, Callable[[int], tuple[Asks, ...]]] = {
    "one container": lambda n: (Asks("main", 1 + n % 3),),
    "two containers": lambda n: (Asks("a", 1), Asks("b", 1 + n % 2)),
    "init container": lambda n: (Asks("warm", 1 + n % 2, role=Role.INIT), Asks("main", 1)),
    "two resources": lambda n: (share("main", 10, 4 + n % 4),),
}
ALLOCATE = "rpc error", "is stopped", "GetPreferredAllocation rpc failed", "no healthy devices present"


@dataclass
class Hunt:
    """Kills one agent after the other on one node."""

    w: World
    fork: Fork
    planner: Planner
    agent: Life
    ends: Counter[str]
    running: list[Pod] = field(default_factory=list[Pod])

    async def shoot(self, shape: str, *, n: int, at: int) -> None:
        """One pod, on whose way the agent dies at this line. Where the way ends before, the agent lives on."""
        pod = self.planner.bind(SHAPES[shape](n))
        assert pod is not None
        self.agent.arm(die_at=at)
        self.w.kubelet.add(pod)
        died = await self._died_before(pod)
        if died:
            await self.next()
        fate = await self.w.kubelet.phase(pod, "Running", "Failed")
        if died:
            self.ends[f"{shape}: {fate.phase}"] += 1
        if fate.phase == "Failed":
            assert any(reason in fate.message for reason in ALLOCATE), fate.message
            self.planner.delete(pod)
        else:
            self.running.append(pod)
        self.w.check(*self.running)
        if len(self.running) > KEPT:
            self.planner.delete(self.running.pop(0))

    async def _died_before(self, pod: Pod) -> bool:
        async with asyncio.timeout(20):
            while self.agent.alive:
                fate = self.w.kubelet.fate(pod)
                if fate is not None and fate.phase:
                    await self.agent.disarm()
                    return not self.agent.alive
                await asyncio.sleep(0.002)
        return True

    async def next(self) -> None:
        """Another agent, whatever the one before is doing."""
        self.agent.kill()
        await self.agent.dead()
        for resource in self.w.kubelet.capacity():
            await self.w.kubelet.registered(resource, 0)
        self.agent = self.fork.start(self.w)
        await self.w.ready()

    async def lines(self, shape: str) -> int:
        """How many lines the way of such a pod has."""
        await self.next()
        pod = self.planner.bind(SHAPES[shape](0))
        assert pod is not None
        self.agent.arm()
        self.w.kubelet.add(pod)
        await self.w.kubelet.running(pod)
        counted = await self.agent.lines()
        self.planner.delete(pod)
        return counted


async def sweep(w: World, pods: Sequence[Pod]) -> None:
    """What the agent's own sweeper does minutes later."""
    async with KubeClient(credentials(w)) as client:
        view = NodePods(client, node=NODE, unit=w.unit)
        for pod in pods:
            view.changed(w.pod(pod))
        kubelet = Kubelet(w.kubelet.pod_resources_socket, w.kubelet.plugin_directory / FILE_NAME)
        journal = Journal(w.root / "state" / "slices", new_token=str)
        later = iter((0.0, 1000.0))
        sweeper = GarbageCollector(kubelet, view, journal, clock=lambda: next(later))
        await sweeper.round()
        await sweeper.round()


@pytest.mark.timeout(60 + KILLS)
async def test_an_agent_killed_at_any_line_books_nothing_twice_and_leaves_nothing_behind() -> None:
    began = time.monotonic()
    ends: Counter[str] = Counter()
    turns = itertools.count()
    with agents() as fork:
        lines: dict[str, int] = {}
        await _one_node(fork, ends, number=NODES, work=lambda hunt: _count(hunt, lines))
        async with asyncio.TaskGroup() as nodes:
            for number in range(NODES):
                work = _one_node(fork, ends, number=number, work=lambda hunt: _hunt(hunt, turns, lines))
                nodes.create_task(work)
    print(f"\nkills={ends.total()} seconds={time.monotonic() - began:.0f} {dict(sorted(ends.items()))}")
    assert any("Running" in end for end in ends)
    assert any("Failed" in end for end in ends)


async def _one_node(
    fork: Fork, ends: Counter[str], *, number: int, work: Callable[[Hunt], Coroutine[None, None, None]]
) -> None:
    async with world(cards=CARDS, agent=False, seed=number) as w:
        planner = Planner(w, random.Random(number))
        hunt = Hunt(w, fork, planner, fork.start(w), ends)
        confirming = asyncio.create_task(planner.confirm())
        try:
            await work(hunt)
            await sweep(w, hunt.running)
            w.check(*hunt.running)
            assert len(w.tokens()) == sum(len(w.request(p).containers) for p in hunt.running)
        finally:
            hunt.agent.kill()
            confirming.cancel()
            await asyncio.gather(confirming, return_exceptions=True)


async def _count(hunt: Hunt, lines: dict[str, int]) -> None:
    for shape in SHAPES:
        lines[shape] = await hunt.lines(shape)


async def _hunt(hunt: Hunt, turns: Iterator[int], lines: dict[str, int]) -> None:
    """Evenly over the lines of all shapes. A pod whose way ended before the line came costs a turn and is no kill."""
    await hunt.next()
    while hunt.ends.total() < KILLS:
        turn = next(turns)
        shape = list(SHAPES)[turn % len(SHAPES)]
        place = (turn // len(SHAPES)) * GOLDEN % 1
        await hunt.shoot(shape, n=turn, at=1 + int(place * lines[shape]))
        if turn % SWEPT == 0:  # else the agent's loops over what lies there would use up the lines that are counted
            await sweep(hunt.w, hunt.running)
        assert turn < 3 * KILLS + 20, f"{turn} tries for {hunt.ends.total()} kills"
