"""Place pods on a planned cluster, one at a time: a policy proposes a node, the exact records decide.

A request in MiB is a different share of cards of different sizes, so the policy is called once for each size that
suffices, the smallest cards first, so that large ones stay free for pods that need them. If the policy finds nothing,
because its one number for a card is too coarse or the pod's conditions are finer than the kinds of nodes, the records
choose: the fullest node with room.
"""

from collections.abc import Iterable, Sequence

import msgspec
import numpy as np

from fractile.policy.nodes.mix import Mix, mix_of
from fractile.policy.nodes.policy import Policy
from fractile.policy.nodes.score_cache import Choice, ScoreCache
from fractile.policy.nodes.scoring_context import scoring_of
from fractile.policy.nodes.view import NO_DEVICE, WHOLE_GPU, TaskDemand, total_left
from fractile.sim.kinds import Kinds
from fractile.sim.planner.stock import PlannerStock, PodHold
from fractile.sim.snapshot.cluster_snapshot import Demand, Machine, Taken, Task
from fractile.sim.snapshot.rows import share_of

_CLOSED = 1 << 40  # pod places: more than any node has


class Placer:
    """One cluster and one policy. ``stock`` may be read; it is changed only through this class."""

    def __init__(self, machines: Sequence[Machine], demands: Iterable[Demand], policy: Policy) -> None:
        wanted = tuple(demands)
        self.stock = PlannerStock(machines, Kinds(machines, wanted))
        self._asks: dict[Demand, tuple[TaskDemand, ...]] = {}
        scoring = scoring_of(self.stock.view, self._mix(wanted))
        self._score_cache = ScoreCache(self.stock.view, policy, scoring)
        self._draws = 0
        self._in_vain: set[Demand] = set()  # failures since something was last released

    def place(self, demand: Demand) -> PodHold | None:
        """Find the best place and take it; None if there is none."""
        if demand in self._in_vain:
            return None
        found = self._proposed(demand) or self._fullest(demand)
        if found is None:
            self._in_vain.add(demand)
            return None
        row, devices = found
        return self.take(demand, row, devices)

    def would_fit(self, demand: Demand) -> int | None:
        """A node that can take it, tried and undone; None if there is none. The policy is not used."""
        found = self._fullest(demand)
        if found is None:
            return None
        row, devices = found
        self.stock.release(self.stock.take(demand, row, devices))
        return row

    def weight(self, demand: Demand) -> int:
        """Thousandths of GPUs, on the smallest card that suffices; whole GPUs if the cluster has no such card."""
        asks = self._asks_of(demand)
        return asks[0].total if asks else demand.gpus * WHOLE_GPU

    def take(self, demand: Demand, row: int, devices: Sequence[int]) -> PodHold:
        """Take that place, which must have room."""
        held = self.stock.take(demand, row, devices)
        self._score_cache.changed(row)
        return held

    def settle(self, task: Task) -> PodHold:
        """Take the place of a running pod: where it is, with what it holds."""
        held = self.stock.hold(holding(self.stock, task))
        self._score_cache.changed(held.row)
        return held

    def put_back(self, held: PodHold) -> None:
        """Take back what was just released."""
        self.stock.hold(held)
        self._score_cache.changed(held.row)

    def release(self, held: PodHold) -> None:
        """Release the pod's place."""
        self.stock.release(held)
        self._score_cache.changed(held.row)
        self._in_vain.clear()

    def close(self, rows: Iterable[int]) -> None:
        """Place nothing more on those nodes."""
        for row in rows:
            self.stock.slots_left[row] -= _CLOSED

    def open(self, rows: Iterable[int]) -> None:
        """Let those nodes take pods again."""
        for row in rows:
            self.stock.slots_left[row] += _CLOSED
        self._in_vain.clear()

    # ── how a place is found ─────────────────────────────────────────────────────────────────────────────────────────

    def _proposed(self, demand: Demand) -> tuple[int, tuple[int, ...]] | None:
        for ask in self._asks_of(demand):
            self._draws += 1
            choice = self._score_cache.best(ask, self._draws)
            devices = choice and self._checked(demand, choice)
            if choice is not None and devices is not None:
                return choice.row, devices
        return None

    def _checked(self, demand: Demand, choice: Choice) -> tuple[int, ...] | None:
        return self.stock.choose(demand, choice.row, choice.device)

    def _fullest(self, demand: Demand) -> tuple[int, tuple[int, ...]] | None:
        view = self.stock.view
        rows = np.flatnonzero(self.stock.feasible(demand))
        if not len(rows):
            return None
        gpus = total_left(view.take(rows)) if demand.part else view.gpus[rows]
        row = int(rows[np.lexsort((view.cpu_left[rows], gpus))[0]])
        devices = self.stock.choose(demand, row, NO_DEVICE)
        assert devices is not None  # feasible() and choose() check the same conditions
        return row, devices

    def _asks_of(self, demand: Demand) -> tuple[TaskDemand, ...]:
        known = self._asks.get(demand)
        if known is None:
            known = self._asks[demand] = asks_of(demand, self.stock.kinds)
        return known

    def _mix(self, demands: Iterable[Demand]) -> Mix:
        """The mix that the policy is to expect, with the smallest card size that suffices for each pod."""
        asks = (self._asks_of(d) or (_roughly(d),) for d in demands)
        return mix_of(found[0] for found in asks)


def asks_of(demand: Demand, kinds: Kinds) -> tuple[TaskDemand, ...]:
    """The demand as requests to a policy, one for each card size; empty if no kind of nodes can be named for it."""
    part = demand.part
    open_to, _ = kinds.accept(demand)
    if part is None:
        return (TaskDemand(demand.cpu, demand.memory),) if open_to.all() else ()
    if part.count > 1 and not part.exclusive:
        return ()
    by_share: dict[int, list[str]] = {}
    for kind, memory in enumerate(kinds.card_memory()):
        if open_to[kind] and (part.exclusive or part.memory_on(int(memory)) <= memory):
            by_share.setdefault(share_of(part, int(memory)), []).append(kinds.names[kind])
    everywhere = len(by_share) == 1 and all(len(names) == len(kinds.names) for names in by_share.values())
    return tuple(
        TaskDemand(demand.cpu, demand.memory, part.count, share, () if everywhere else tuple(by_share[share]))
        for share in sorted(by_share, reverse=True)
    )


def _roughly(demand: Demand) -> TaskDemand:
    part = demand.part
    if part is None:
        return TaskDemand(demand.cpu, demand.memory)
    return TaskDemand(demand.cpu, demand.memory, part.count, WHOLE_GPU)


def holding(stock: PlannerStock, task: Task) -> PodHold:
    """What a running pod holds: of the cards that its placement names, or of cards that would suit it."""
    demand, row = task.demand, stock.rows[task.node]
    part = demand.part
    if part is None:
        return PodHold(row, demand.cpu, demand.memory)
    places = {str(c.uuid): device for device, c in enumerate(stock.machines[row].cards)}
    if task.cards:
        taken = (
            Taken(places[uuid], memory, time, part.exclusive) for uuid, memory, time in task.cards if uuid in places
        )
        return PodHold(row, demand.cpu, demand.memory, tuple(taken))
    free = stock.loosest(part, row)
    cards = [int(stock.card_memory[row, d]) for d in free]
    taken = (
        Taken(d, part.memory_on(m), WHOLE_GPU if part.exclusive else part.compute, part.exclusive)
        for d, m in zip(free, cards, strict=True)
    )
    return PodHold(row, demand.cpu, demand.memory, tuple(taken))


def in_turn(tasks: Iterable[Task]) -> list[Task]:
    """The pods in kube-scheduler's order: priority, then age; those of a file in the file's order."""
    return sorted(tasks, key=lambda t: (-t.priority, t.created))


class Placed(msgspec.Struct, frozen=True):
    """A pod and its place."""

    task: Task
    held: PodHold
