"""The rounds: chaos for a while, then quiet, then the questions.

1. faults and pods by their plans, at the same time; who was seen to run is remembered
2. everything runs, every link is open
3. until nothing is left to happen and all books agree, or too long a time has passed: what is left is stuck
4. the invariants; what must never be is asked all the time
"""

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterable
from typing import Protocol

import msgspec

from fractile.errors import FractileError
from tests.chaos.acts import faults, pods
from tests.chaos.acts.players import Players
from tests.chaos.acts.programs import EXTENDER, REPLICAS, WEBHOOK
from tests.chaos.acts.wishes import NAMESPACE, Wishes
from tests.chaos.judging import invariants, readmission, settled
from tests.chaos.judging.invariants import Life
from tests.chaos.judging.journal import Journal
from tests.chaos.judging.readmission import Outage
from tests.chaos.judging.snapshot import SeenPod, Snapshot

_PASSES = (FractileError, OSError, TimeoutError)  # whatever an API server says or does not say while it is hit
_QUIET = 2  # looks in a row that find nothing left to happen
_STEP = 5.0  # seconds for one request to an API server that may be down
_GLANCE = 2.0  # seconds for a list of the pods
_WITHIN = 20.0  # seconds for all requests after a look
SWEPT = 440.0  # seconds for which a directory may be there without an owner: an agent waits for 300, and looks each 60


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Of each round: ``seconds`` of chaos with so many faults and steps, and about ``most`` pods at a time; ``settle``:
    how long the cluster may take to come to rest; ``look``: seconds between two looks at it."""

    seed: int
    seconds: float = 30.0
    faults: int = 14
    steps: int = 14
    most: int = 14
    settle: float = 120.0  # a kube-scheduler whose watch was refused waits up to 60 for the next
    look: float = 1.0


class Sums(msgspec.Struct):
    """What the last line says."""

    faults: int = 0
    pods: int = 0
    refused: int = 0
    lost: int = 0
    violations: int = 0
    stuck: int = 0

    @property
    def fine(self) -> bool:
        return not (self.violations or self.stuck)

    @property
    def line(self) -> str:
        told = "".join(f" {name}={n}" for name, n in (("refused", self.refused), ("lost", self.lost)) if n)
        return f"faults={self.faults} pods={self.pods}{told} violations={self.violations} stuck={self.stuck}"


class Hit(Protocol):
    """The programs that are hit."""

    @property
    def nodes(self) -> list[str]: ...

    @property
    def players(self) -> Players: ...

    def agents(self) -> dict[str, int]:
        """The process of each node's agent."""
        ...


class Looks(Protocol):
    """Whoever sees what becomes of the cluster."""

    async def pods(self) -> tuple[SeenPod, ...]: ...

    async def look(self) -> Snapshot: ...


class Rounds:
    """``say`` gets a line for each round."""

    def __init__(
        self,
        programs: Hit,
        wishes: Wishes,
        eyes: Looks,
        settings: Settings,
        *,
        journal: Journal,
        say: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.sums = Sums()
        self._programs, self._wishes, self._eyes, self._settings = programs, wishes, eyes, settings
        self._journal, self._say, self._clock, self._wall = journal, say, clock, wall
        self._targets = faults.targets(programs.nodes, REPLICAS, (EXTENDER, WEBHOOK))
        self._planned: dict[str, str] = {}
        self._lives: dict[str, tuple[str, Life]] = {}
        self._outages: list[Outage] = []  # of this round
        self._unowned: dict[tuple[str, str, int], float] = {}
        self._wrong: dict[str, None] = {}  # of this round, each once, in order
        self._last: Snapshot | None = None

    async def round(self, turn: int) -> bool:
        """One round; False when something was wrong."""
        before = msgspec.structs.replace(self.sums)
        self._wrong.clear()
        self._outages.clear()
        await self._chaos(turn)
        self._programs.players.heal()
        began = self._clock()
        left = await self.settle()
        self._count(left)
        running = sum(p.running for p in self._last.pods) if self._last else 0
        self._say(
            f"round {turn}: faults={self.sums.faults - before.faults} pods={self.sums.pods - before.pods} "
            f"refused={self.sums.refused - before.refused} running={running} of {len(self._wishes.wanted)} "
            f"rest={self._clock() - began:.1f}s violations={len(self._wrong)} stuck={len(left)}"
        )
        self._journal.write(f"round-{turn}.log", self._last)
        return not (self._wrong or left)

    async def rest(self) -> bool:
        """Wait until the cluster is at rest before anything is done to it; False when it is not."""
        left = await self.settle()
        self._count(left)
        return not (self._wrong or left)

    async def clear(self) -> None:
        """Delete what is there, and wait until it is gone."""
        self._wrong.clear()
        self._planned = {}
        self._wishes.only({})
        self._count(await self.settle())
        self._journal.write("end.log", self._last)

    async def sweep(self) -> None:
        """Leave the cluster alone until the agents must have swept away every directory that nobody owns."""
        self._wrong.clear()
        deadline = self._clock() + SWEPT + 60
        while self._clock() < deadline and not self._wrong and (self._last is None or invariants.unowned(self._last)):
            await asyncio.sleep(10)
            with contextlib.suppress(*_PASSES):
                self._judge(await self._eyes.look())
        owed = len(invariants.unowned(self._last)) if self._last else 0
        self._say(f"swept: {owed} directories without an owner")
        self._count([])

    def _count(self, left: list[str]) -> None:
        self.sums.violations += len(self._wrong)
        self.sums.stuck += len(left)
        self.sums.pods, self.sums.refused = self._wishes.created, self._wishes.refused
        self.sums.lost = len(self._wishes.lost)
        for kind, sentences in (("VIOLATION", self._wrong), ("STUCK", left)):
            for sentence in sentences:
                self._say(f"  {kind} {sentence}")
                self._journal.note(f"{kind} {sentence}")

    # ── 1 ────────────────────────────────────────────────────────────────────────────────────────────────────────

    async def _chaos(self, turn: int) -> None:
        s = self._settings
        hits = faults.schedule(s.seed, turn, self._targets, seconds=s.seconds, count=s.faults)
        steps = pods.plan(s.seed, turn, self._planned, seconds=s.seconds, count=s.steps, most=s.most)
        began = self._clock()
        async with asyncio.TaskGroup() as tasks:
            for fault in hits:
                tasks.create_task(self._hit(fault, began))
            for step in steps:
                tasks.create_task(self._step(step, began))
            watching = tasks.create_task(self._watch_pods())
            await asyncio.sleep(max(0.0, began + s.seconds - self._clock()))
            watching.cancel()
        self._planned = pods.after(self._planned, steps)
        self._wishes.only(self._planned)

    async def _hit(self, fault: faults.Fault, began: float) -> None:
        await asyncio.sleep(max(0.0, began + fault.at - self._clock()))
        self._journal.note(f"{fault.kind} {fault.target} for {fault.seconds} s")
        since = self._wall()
        done = await self._programs.players.play(fault)
        self.sums.faults += done
        self._outages += [Outage(fault.target, fault.kind, since, self._wall())] if done else []
        self._journal.note(f"end of {fault.kind} {fault.target}{'' if done else ': it did not run'}")

    async def _step(self, step: pods.Step, began: float) -> None:
        await asyncio.sleep(max(0.0, began + step.at - self._clock()))
        try:
            async with asyncio.timeout(_STEP):
                await self._wishes.follow(step)
        except _PASSES as e:
            self._journal.note(f"not now: {step.kind or 'delete'} {step.name}: {e!r}")

    async def _watch_pods(self) -> None:
        while True:
            with contextlib.suppress(*_PASSES):
                async with asyncio.timeout(_GLANCE):  # a client that repeats would miss what happens meanwhile
                    found = await self._eyes.pods()
                self._remember(found)
                if self._last is not None:
                    self._blame(invariants.overallocated(msgspec.structs.replace(self._last, pods=found)))
            await asyncio.sleep(self._settings.look)

    # ── 3 and 4 ──────────────────────────────────────────────────────────────────────────────────────────────────

    async def settle(self) -> list[str]:
        """Ask for what was not to be had, and wait; what is still to happen when the time is over."""
        deadline = self._clock() + self._settings.settle
        left, quiet = ["the cluster was not looked at"], 0
        while quiet < _QUIET:
            try:
                seen = await self._eyes.look()
                self._judge(seen)
                async with asyncio.timeout(_WITHIN):
                    await self._wishes.bring_about(seen.pods, self._lives)
                left = [*settled.unsettled(_ours(seen), self._wishes.wanted), *invariants.lasting(seen)]
            except _PASSES as e:
                left = [f"the cluster cannot be read: {e!r}"]
            quiet = 0 if left else quiet + 1
            if self._clock() > deadline:
                return self._sorted_out(left)
            await asyncio.sleep(self._settings.look)
        return []

    def _sorted_out(self, left: list[str]) -> list[str]:
        """Books that still differ are violations; the rest is stuck."""
        differ = set(invariants.lasting(self._last)) if self._last is not None else set[str]()
        self._blame(sentence for sentence in left if sentence in differ)
        return [sentence for sentence in left if sentence not in differ]

    def _judge(self, seen: Snapshot) -> None:
        """What must never be, and who must still be there."""
        self._last = seen
        ran = [p for p in seen.pods if p.uid in self._lives]
        self._wishes.lost |= {p.uid for p in ran if readmission.lost(p, seen.denied, self._outages)}
        self._lives = {uid: life for uid, life in self._lives.items() if uid not in self._wishes.lost}
        self._blame(invariants.never(seen))
        self._blame(invariants.killed(self._lives, seen, self._wishes.deleted))
        self._remember(seen.pods)
        there = {p.uid for p in seen.pods}
        self._lives = {uid: life for uid, life in self._lives.items() if uid in there}
        # An agent counts from its own start.
        now, agents = self._clock(), self._programs.agents()
        gone = {(node, name, agents.get(node, 0)) for node, name in invariants.unowned(seen)}
        self._unowned = {token: self._unowned.get(token, now) for token in gone}
        self._blame(invariants.leaked({(n, t): first for (n, t, _), first in self._unowned.items()}, now, SWEPT))

    def _blame(self, sentences: Iterable[str]) -> None:
        self._wrong |= dict.fromkeys(sentences)

    def _remember(self, seen: tuple[SeenPod, ...]) -> None:
        """A life is what it was when it was first seen, so that a restart in between is found."""
        for pod in seen:
            if pod.metadata.namespace == NAMESPACE and pod.running and pod.uid not in self._lives:
                self._lives[pod.uid] = pod.name, pod.life


def _ours(seen: Snapshot) -> Snapshot:
    return msgspec.structs.replace(seen, pods=tuple(p for p in seen.pods if p.metadata.namespace == NAMESPACE))
