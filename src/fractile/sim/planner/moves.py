"""Plan moves of running pods that make room for others: which pods, where to, and in which order. Nothing is moved
here.

For one pod at a time, find the node where the fewest pods would have to move:

    1 rank the nodes by what is in the way            3 find each of them a place elsewhere while all still
    2 choose what moves: pods on the cards nearest      hold their old one
      to free, then any until the pod fits            4 release the old places, admit the pod

So each step is possible in its turn: a target is free before its source is released, and the pod is admitted after
both. A pod moves once. Pods that two disruption budgets select stay, since the eviction API refuses them.
"""

from collections.abc import Callable, Iterable, Sequence

import msgspec
import numpy as np

from fractile.policy.nodes.view import WHOLE_GPU, Ints
from fractile.sim.planner.placing import Placed, Placer
from fractile.sim.planner.stock import PodHold
from fractile.sim.snapshot.cluster_snapshot import Demand, DemandPart, SnapshotBudget, Task

_NODES = 48  # tried for one pod
_MOST = 16  # pods moved for one pod
_FAR = 1 << 40

Tell = Callable[[], None]  # called after each pod for which room was sought


class MoveStep(msgspec.Struct, frozen=True):
    """One pod's move from one place to another."""

    task: Task
    source: PodHold
    target: PodHold


class MoveStage(msgspec.Struct, frozen=True):
    """Steps that may be made in parallel, and pods that are admitted when all are done."""

    steps: tuple[MoveStep, ...]
    admits: tuple[Placed, ...] = ()


class MoveBudgets:
    """Which pods may be away at the same time."""

    def __init__(self, budgets: Iterable[SnapshotBudget]) -> None:
        self._of: dict[str, list[SnapshotBudget]] = {}
        for budget in budgets:
            for key in budget.pods:
                self._of.setdefault(key, []).append(budget)

    def may_move(self, task: Task) -> bool:
        """Whether the pod may ever be evicted."""
        mine = self._of.get(task.key, ())
        return not task.fixed and len(mine) <= 1 and all(b.allowed > 0 for b in mine)

    def bears(self, tasks: Iterable[Task]) -> bool:
        """Whether all of them may be away at the same time."""
        away: dict[str, int] = {}
        for task in tasks:
            for budget in self._of.get(task.key, ()):
                away[budget.name] = away.get(budget.name, 0) + 1
                if away[budget.name] > budget.allowed:
                    return False
        return True

    def portions(self, steps: Sequence[MoveStep]) -> list[tuple[MoveStep, ...]]:
        """The steps in few portions, each within the budgets."""
        found: list[list[MoveStep]] = []
        for step in steps:
            home = next((p for p in found if self.bears([*(s.task for s in p), step.task])), None)
            if home is None:
                found.append([step])
            else:
                home.append(step)
        return [tuple(p) for p in found]


class Mover:
    """Makes room on a cluster, whose records it changes as if the moves were made."""

    def __init__(self, placer: Placer, running: Sequence[Placed], budgets: Iterable[SnapshotBudget]) -> None:
        self._placer, self._stock = placer, placer.stock
        self._budgets = MoveBudgets(budgets)
        self._movable: dict[int, dict[str, Placed]] = {}
        for placed in running:
            if self._budgets.may_move(placed.task):
                self._movable.setdefault(placed.held.row, {})[placed.task.key] = placed
        self._cpu, self._memory = (np.zeros(len(self._stock.machines), np.int64) for _ in range(2))
        for placed in running:
            if self._budgets.may_move(placed.task):
                self._count(placed.held, 1)
        self.stages: list[MoveStage] = []

    def admit(self, task: Task) -> bool:
        """Admit the pod, with moves if needed; False when that is impossible."""
        held = self._placer.place(task.demand)
        if held is not None:
            self._let_in(Placed(task, held))
            return True
        return any(self._on(row, task) for row in self._ranked(task.demand))

    def _on(self, row: int, task: Task) -> bool:
        going = self._who_goes(row, task.demand)
        if not going:
            return False
        steps = self._targets(row, going)
        if steps is None:
            return False
        for portion in self._budgets.portions(steps):
            self.stages.append(MoveStage(portion))
        for step in steps:
            self._placer.release(step.source)
            self._count(step.source, -1)
            del self._movable[row][step.task.key]
        devices = self._stock.choose(task.demand, row)
        assert devices is not None  # checked by _who_goes
        self._let_in(Placed(task, self._placer.take(task.demand, row, devices)))
        return True

    def _let_in(self, placed: Placed) -> None:
        if not self.stages:
            self.stages.append(MoveStage(()))
        last = self.stages[-1]
        self.stages[-1] = msgspec.structs.replace(last, admits=(*last.admits, placed))

    def _count(self, held: PodHold, sign: int) -> None:
        self._cpu[held.row] += sign * held.cpu
        self._memory[held.row] += sign * held.memory

    # ── where ────────────────────────────────────────────────────────────────────────────────────────────────────────

    def _ranked(self, demand: Demand) -> list[int]:
        """Nodes that could take it if all movable pods were gone, those with the least in the way first."""
        lack, stock = self._stock.lack(demand), self._stock
        never = lack.taint | lack.label | lack.no_gpu | lack.model | lack.size | lack.places
        never |= stock.cpu_left + self._cpu < demand.cpu
        never |= stock.memory_left + self._memory < demand.memory
        never |= ~np.isin(np.arange(len(never)), list(self._movable))
        cost = np.maximum(0, demand.cpu - stock.cpu_left) // 100
        if demand.part is not None:
            cost = cost + self._in_the_way(demand.part)
        rows = np.flatnonzero(~never & (cost < _FAR))
        return [int(r) for r in rows[np.argsort(cost[rows], kind="stable")][:_NODES]]

    def _in_the_way(self, part: DemandPart) -> Ints:
        """Thousandths that other pods hold of the cards nearest to having room."""
        left = self._stock.view.gpu_left
        usable = self._stock.kinds.admitted(part) & self._stock.present
        used = np.where(self._stock.fitting(part), 0, WHOLE_GPU - left)
        used = np.sort(np.where(usable, used, _FAR), axis=1)[:, : part.count]
        return np.minimum(used.sum(axis=1), _FAR)

    # ── who ──────────────────────────────────────────────────────────────────────────────────────────────────────────

    def _who_goes(self, row: int, demand: Demand) -> list[Placed]:
        """Pods without which it fits on the node; empty if there are none. The records are unchanged."""
        chosen: dict[str, Placed] = {}
        if demand.part is not None:
            for device in self._cheapest(row, demand.part):
                for placed in self._on_card(row, device):
                    chosen[placed.task.key] = placed
        released = self._without(chosen.values())
        # Add pods, the largest first, until CPU, memory and cards are enough.
        rest = [p for k, p in self._movable[row].items() if k not in chosen]
        for placed in sorted(rest, key=lambda p: (-p.held.cpu, -p.held.memory, p.task.key)):
            if self._stock.choose(demand, row) is not None or len(chosen) >= _MOST:
                break
            chosen[placed.task.key] = placed
            released += self._without((placed,))
        fits = self._stock.choose(demand, row) is not None
        if fits:
            self._keep_who_may_stay(row, demand, chosen)
        for placed in chosen.values():
            self._stock.hold(placed.held)
        return list(chosen.values()) if fits and len(chosen) <= _MOST else []

    def _without(self, placed: Iterable[Placed]) -> list[Placed]:
        found = list(placed)
        for p in found:
            self._stock.release(p.held)
        return found

    def _keep_who_may_stay(self, row: int, demand: Demand, chosen: dict[str, Placed]) -> None:
        for key, placed in sorted(chosen.items(), key=lambda kp: (-len(kp[1].held.taken), -kp[1].held.cpu, kp[0])):
            self._stock.hold(placed.held)
            if self._stock.choose(demand, row) is not None:
                del chosen[key]
            else:
                self._stock.release(placed.held)

    def _cheapest(self, row: int, part: DemandPart) -> list[int]:
        """Cards from which pods must move, the least used first: as many as still lack room."""
        stock = self._stock
        room = stock.fitting(part, slice(row, row + 1))[0]
        usable = (stock.kinds.admitted(part) & stock.present)[row]
        crowded = [int(d) for d in np.flatnonzero(usable & ~room) if self._all_may_go(row, int(d), part)]
        missing = part.count - int(room.sum())
        return sorted(crowded, key=lambda d: (-int(stock.view.gpu_left[row, d]), d))[: max(0, missing)]

    def _all_may_go(self, row: int, device: int, part: DemandPart) -> bool:
        """Whether the pods on the card may move: for a whole card all of them, for a part at least one."""
        mine = len(self._on_card(row, device))
        return mine == int(self._stock.users[row, device]) if part.exclusive else mine > 0

    def _on_card(self, row: int, device: int) -> list[Placed]:
        return [p for p in self._movable[row].values() if any(t.device == device for t in p.held.taken)]

    # ── where to ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def _targets(self, row: int, going: Sequence[Placed]) -> list[MoveStep] | None:
        """A place elsewhere for each pod, taken immediately; None when a pod finds none."""
        self._placer.close((row,))
        steps: list[MoveStep] = []
        for placed in sorted(going, key=lambda p: (-p.task.demand.gpus, -p.held.cpu, p.task.key)):
            held = self._placer.place(placed.task.demand)
            if held is None:
                break
            steps.append(MoveStep(placed.task, placed.held, held))
        self._placer.open((row,))
        if len(steps) == len(going):
            return steps
        for step in steps:
            self._placer.release(step.target)
        return None
