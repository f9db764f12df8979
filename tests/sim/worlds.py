"""Builders of planned clusters, and a strategy that fills them at random."""

from collections.abc import Sequence

from hypothesis import strategies as st

from fractile.model.properties import shared
from fractile.policy.nodes.policies.table import POLICIES
from fractile.policy.nodes.where import ANYWHERE, Where
from fractile.sim.planner.planner import Question
from fractile.sim.snapshot.build import generic_cards
from fractile.sim.snapshot.cluster_snapshot import Demand, DemandPart, Machine, Snapshot, SnapshotBudget, Task
from fractile.wire.kubernetes.manifests import Taint

CARD = 16_000  # MiB


def machine(
    name: str = "n0",
    gpus: int = 4,
    *,
    cpu: int = 32_000,
    memory: int = 131_072,
    model: str = "V100",
    card: int = CARD,
    labels: dict[str, str] | None = None,
    taints: Sequence[Taint] = (),
    cordoned: bool = False,
    slots: int = 110,
) -> Machine:
    cards = generic_cards(name, gpus, model=model, memory=card)
    return Machine(name, cpu, memory, cards, slots, shared(labels or {}), tuple(taints), cordoned)


def whole(gpus: int = 1, *, cpu: int = 1_000, models: tuple[str, ...] = (), where: Where = ANYWHERE) -> Demand:
    return Demand(cpu, 1_024, DemandPart(gpus, exclusive=True, models=models), where)


def part(memory: int, *, compute: int = 0, cpu: int = 1_000, models: tuple[str, ...] = ()) -> Demand:
    return Demand(cpu, 1_024, DemandPart(1, memory=memory, compute=compute, models=models))


def task(name: str, demand: Demand, *, on: str = "", fixed: str = "", cards: Sequence[int] = ()) -> Task:
    held = tuple((f"{on}#{c}", _memory(demand), _time(demand)) for c in cards)
    return Task("default", name, demand, node=on, fixed=fixed, cards=held)


def question(*, policy: str = "fgd-plus", defragment: bool = False) -> Question:
    return Question(policy, POLICIES[policy], defragment=defragment)


def _memory(demand: Demand) -> int:
    return demand.part.memory_on(CARD) if demand.part else 0


def _time(demand: Demand) -> int:
    return 0 if demand.part is None else 1000 if demand.part.exclusive else demand.part.compute


_PARTS = st.sampled_from(
    [
        DemandPart(1, exclusive=True),
        DemandPart(1, exclusive=True),
        DemandPart(2, exclusive=True),
        DemandPart(1, memory=8_000),
        DemandPart(1, memory=5_333, compute=300),
        DemandPart(1, memory=4_000, compute=500),
        DemandPart(1, share=470, compute=470),
        None,
    ]
)
demands = st.builds(Demand, st.sampled_from([500, 4_000, 12_000]), st.sampled_from([1_000, 30_000]), _PARTS)


@st.composite
def snapshots(draw: st.DrawFn) -> Snapshot:
    """Nodes with two or four cards, pods that run on them, pods that wait, budgets over some of those that run."""
    sizes = draw(st.lists(st.sampled_from([2, 4, 4]), min_size=2, max_size=5))
    machines = tuple(machine(f"n{i}", gpus) for i, gpus in enumerate(sizes))
    bound: list[Task] = []
    for number, demand in enumerate(draw(st.lists(demands, min_size=4, max_size=14))):
        trial = task(f"r{number}", demand, on=draw(st.sampled_from([m.name for m in machines])))
        if _fits(machines, [*bound, trial]):
            bound.append(trial)
    wanted = draw(st.lists(st.one_of(st.sampled_from([whole(2), whole(3), whole(4)]), demands), max_size=5))
    waiting = tuple(task(f"w{i}", d) for i, d in enumerate(wanted))
    budgets: list[SnapshotBudget] = []
    for number in range(draw(st.integers(0, 2))):
        keys = draw(st.frozensets(st.sampled_from([t.key for t in bound]), max_size=6)) if bound else frozenset[str]()
        budgets.append(SnapshotBudget(f"b{number}", keys, draw(st.integers(0, 2))))
    stuck = draw(st.sets(st.integers(0, 13), max_size=2))
    pinned = (
        task(t.name, t.demand, on=t.node, fixed="is being deleted") if i in stuck else t for i, t in enumerate(bound)
    )
    return Snapshot(machines, tuple(pinned), waiting, tuple(budgets))


def _fits(machines: Sequence[Machine], tasks: Sequence[Task]) -> bool:
    """Whether the replay takes them where they are, one after the other."""
    from tests.sim.replay import Books

    books = Books(machines)
    return all(books.settle(t) for t in tasks)
