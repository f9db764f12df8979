"""An independent book-keeper: plain dictionaries, no arrays, nothing of ``fractile.sim.planner.stock``.

It holds what each pod has on each card and knows the rules by their words: a whole card is nobody else's, memory and
time are never promised twice, and one percent of the time stays with those who were promised none.
"""

from collections.abc import Sequence

from fractile.sim.snapshot.cluster_snapshot import Demand, Machine, SnapshotBudget, Task
from fractile.wire.output.plan import Defragmentation, Move, PlannedPlacement


class Books:
    def __init__(self, machines: Sequence[Machine]) -> None:
        self.machines = {m.name: m for m in machines}
        self.at: dict[tuple[str, str], Demand] = {}  # (node, pod as it is written): what it asks for
        self.on: dict[tuple[str, str], tuple[int, ...]] = {}  # and its cards

    def put(self, node: str, who: str, demand: Demand, cards: Sequence[int]) -> None:
        self.at[node, who] = demand
        self.on[node, who] = tuple(cards)
        problem = self.problem(node)
        assert problem == "", f"{who} on {node} {cards}: {problem}"
        assert len(set(cards)) == demand.gpus

    def drop(self, node: str, who: str) -> None:
        del self.at[node, who], self.on[node, who]

    def problem(self, node: str) -> str:
        """What does not add up on a node; "" if all is well."""
        machine = self.machines[node]
        here = [(who, d) for (n, who), d in self.at.items() if n == node]
        if sum(d.cpu for _, d in here) > machine.cpu:
            return "CPU"
        if sum(d.memory for _, d in here) > machine.memory:
            return "memory"
        if len(here) > machine.slots:
            return "places"
        for place, card in enumerate(machine.cards):
            parts = [d.part for who, d in here if d.part is not None and place in self.on[node, who]]
            if any(p.exclusive for p in parts) and len(parts) > 1:
                return f"card {place} is not whole"
            if sum(p.memory_on(card.memory) for p in parts) > card.memory:
                return f"memory of card {place}"
            time = sum(p.compute for p in parts)
            if time > (990 if any(not p.compute and not p.exclusive for p in parts) else 1000):
                return f"time of card {place}"
        return ""

    def settle(self, task: Task) -> bool:
        """Puts a running pod on the first cards that will do."""
        part, machine = task.demand.part, self.machines[task.node]
        chosen: list[int] = []
        for place in range(len(machine.cards)) if part else ():
            if len(chosen) == task.demand.gpus:
                break
            self.at[task.node, task.key], self.on[task.node, task.key] = task.demand, (*chosen, place)
            if not self.problem(task.node):
                chosen.append(place)
        self.at[task.node, task.key], self.on[task.node, task.key] = task.demand, tuple(chosen)
        if len(chosen) == task.demand.gpus and not self.problem(task.node):
            return True
        self.drop(task.node, task.key)
        return False


def replay(
    books: Books,
    plan: Defragmentation,
    *,
    demands: dict[str, Demand],
    budgets: Sequence[SnapshotBudget],
    fixed: frozenset[str] = frozenset(),
) -> None:
    """Carries the plan out; an AssertionError says what it does wrong."""
    moved: set[str] = set()
    for number, stage in enumerate(plan.stages, 1):
        assert stage.number == number
        # 1. Who may be away together.
        for budget in budgets:
            assert sum(m.pod in budget.pods for m in stage.moves) <= budget.allowed, f"{budget.name} in stage {number}"
        # 2. All targets, while every source is held.
        for move in stage.moves:
            assert move.pod not in moved, f"{move.pod} moves twice"
            assert move.pod not in fixed, f"{move.pod} cannot be moved"
            assert move.source != move.target
            assert (move.source, move.pod) in books.at, f"{move.pod} is not on {move.source}"
            _arrive(books, move, demands)
            moved.add(move.pod)
        # 3. All sources.
        for move in stage.moves:
            books.drop(move.source, move.pod)
        # 4. Who comes in.
        for placement in stage.admits:
            _come(books, placement, demands)


def _arrive(books: Books, move: Move, demands: dict[str, Demand]) -> None:
    books.put(move.target, move.pod, demands[move.pod], move.cards)


def _come(books: Books, placement: PlannedPlacement, demands: dict[str, Demand]) -> None:
    books.put(placement.node, placement.pod, demands[placement.pod], placement.cards)
