"""What the agent adds to the start of a pod, and how long 200 pods on one node take, beside as many without GPUs.

The agent is a process of its own; kubelet is the played one, whose containers cost nothing, so the difference between
both runs is all the agent's. Times are those that kubelet waits for an answer, its own reading and writing included,
and, in rows of their own, those that the agent's log says. Python's collector rests in the playing process while it
measures: to walk all that it plays takes it 25 ms and more, in the middle of some answer, which no kubelet does.
"""

import asyncio
import gc
import re
import time
from collections.abc import Generator
from contextlib import contextmanager
from typing import TypeVar

from google.protobuf.message import Message

from fractile.agent.kubelet import rpc
from fractile.lab.hollow.plugins import Plugins
from fractile.wire.kubernetes.objects import Pod
from tests.agent.forked import agents
from tests.agent.world import GIB, Asks, World, card, world
from tests.perf.measuring.report import Row
from tests.perf.usage import processor_time

CARDS = [card(n, 80 * GIB) for n in range(8)]
SLICES = 64
ROUNDS = 200
PODS = 200
PATIENCE = 200.0  # seconds
BUDGET = 25.0  # ms for Allocate and PreStart of one pod
Q = TypeVar("Q", bound=Message)
R = TypeVar("R", bound=Message)
Taken = dict[str, list[float]]
SAYS = re.compile(r" (prefer|allocate|prestart) .* ms=([0-9.]+)$", re.MULTILINE)
CALLED = {"prefer": rpc.PREFER.name, "allocate": rpc.ALLOCATE.name, "prestart": rpc.PRE_START.name}


async def measure() -> list[Row]:
    with agents() as fork:
        async with world(cards=CARDS, agent=False) as w:
            agent = fork.start(w)
            await w.ready()
            try:
                with watched() as taken:
                    return [*await _one_by_one(w, taken, agent.pid), *await _many(w, agent.pid)]
            finally:
                agent.kill()


@contextmanager
def watched() -> Generator[Taken]:
    """The milliseconds of each call that the played kubelet makes, by method."""
    taken: Taken = {}
    plain = Plugins.call

    async def timed(self: Plugins, resource: str, method: rpc.Method[Q, R], request: Q, *, timeout: float | None) -> R:
        began = time.perf_counter()
        try:
            return await plain(self, resource, method, request, timeout=timeout)
        finally:
            taken.setdefault(method.name, []).append((time.perf_counter() - began) * 1000)

    Plugins.call = timed
    try:
        yield taken
    finally:
        Plugins.call = plain


@contextmanager
def undisturbed() -> Generator[None]:
    """Without collections, which find nothing in so short a time."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


async def _one_by_one(w: World, taken: Taken, agent: int) -> list[Row]:
    for n in range(SLICES):
        await w.kubelet.running(_pod(w, n, gib=4))
    taken.clear()
    log = w.root / "agent.log"
    written = log.stat().st_size
    before = processor_time(agent)
    with undisturbed():
        for n in range(ROUNDS):
            pod = _pod(w, n, gib=4)
            await w.kubelet.running(pod)
            w.delete(pod)
    processor = (processor_time(agent) - before) * 1000 / ROUNDS
    inside = said(log.read_text()[written:])
    note = f"8 cards, {SLICES} slices, {ROUNDS} pods one after the other"
    rows: list[Row] = []
    for what, values, bar in (
        ("GetPreferredAllocation", taken[rpc.PREFER.name], None),
        ("Allocate", taken[rpc.ALLOCATE.name], None),
        ("PreStartContainer", taken[rpc.PRE_START.name], None),
        ("Allocate + PreStart of one pod", _both(taken), BUDGET),
        ("the same as the agent's log says", _both(inside), None),
    ):
        ordered = sorted(values)
        rows.append(Row(f"{what}: median", ordered[len(ordered) // 2], "ms", None))
        rows.append(Row(f"{what}: p99", ordered[len(ordered) * 99 // 100], "ms", bar, note))
    return [*rows, Row("processor time of the agent for one pod", processor, "ms", None, note)]


def said(log: str) -> Taken:
    """The milliseconds of each call by the agent's own clock."""
    taken: Taken = {}
    for call, ms in SAYS.findall(log):
        taken.setdefault(CALLED[call], []).append(float(ms))
    return taken


def _both(taken: Taken) -> list[float]:
    return [a + s for a, s in zip(taken[rpc.ALLOCATE.name], taken[rpc.PRE_START.name], strict=True)]


async def _many(w: World, agent: int) -> list[Row]:
    """In turn, so that whatever else the machine does falls on both."""
    times: dict[int, list[float]] = {0: [], 1: []}
    spent = processor_time(agent)
    for _ in range(3):
        for gib in times:
            pods = [_bound(w, n, gib=gib) for n in range(PODS)]
            with undisturbed():
                began = time.perf_counter()
                for pod in pods:
                    w.kubelet.add(pod)
                await _all_run(w, pods)
                times[gib].append(time.perf_counter() - began)
            for pod in pods:
                w.delete(pod)
            await asyncio.sleep(0.5)
    without, having = (sorted(t)[1] for t in times.values())
    spent = (processor_time(agent) - spent) * 1000 / 3 / PODS
    note = f"played kubelet, {PODS} pods of one container, median of 3 runs in turn"
    return [
        Row(f"{PODS} pods without GPUs on one node", without, "s", None, note),
        Row(f"{PODS} pods with a slice each on one node", having, "s", None, note),
        Row("what a slice adds to a pod", (having - without) * 1000 / PODS, "ms", None, note),
        Row("of it processor time of the agent", spent, "ms", None, note),
    ]


async def _all_run(w: World, pods: list[Pod]) -> None:
    async with asyncio.timeout(PATIENCE):
        for pod in pods:
            while (fate := w.kubelet.fate(pod)) is None or fate.phase != "Running":  # noqa: ASYNC110
                await asyncio.sleep(0.01)


def _pod(w: World, n: int, *, gib: int) -> Pod:
    pod = _bound(w, n, gib=gib)
    w.kubelet.add(pod)
    return pod


def _bound(w: World, n: int, *, gib: int) -> Pod:
    return w.bind(Asks("main", gib), on={"main": [CARDS[n % len(CARDS)]]} if gib else None)
