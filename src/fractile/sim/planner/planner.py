"""``fractile plan``: what fits now, why the rest waits, and what would help. Pure: a snapshot in, a report out."""

from collections.abc import Callable, Iterable, Sequence

import msgspec

from fractile.dialects.units import FamilyUnits
from fractile.policy.nodes.policy import Policy
from fractile.policy.nodes.view import WHOLE_GPU
from fractile.sim.planner.free import consolidation
from fractile.sim.planner.growth import WaitingDemand, growth, wanted
from fractile.sim.planner.moves import MoveBudgets, Mover
from fractile.sim.planner.moves import MoveStage as Moved
from fractile.sim.planner.moves_stages import merged
from fractile.sim.planner.placing import Placed, Placer, in_turn
from fractile.sim.planner.reasons import changes, reasons
from fractile.sim.planner.stock import PlannerStock, PodHold
from fractile.sim.snapshot.cluster_snapshot import Demand, Machine, Snapshot, Task
from fractile.sim.snapshot.rows import asked
from fractile.wire.output.plan import (
    Defragmentation,
    Growth,
    Move,
    Now,
    Plan,
    PlannedPlacement,
    PlanStage,
    PodResources,
    WaitingGroup,
)

_KINDS = 20  # of running pods for which room is sought if no pod waits
_IN_VAIN = 200  # different requests without moves after which the search ends

Tell = Callable[[str], None]  # the step just done


class Question(msgspec.Struct, frozen=True):
    """The options of a plan. ``target`` is in percent; without shapes growth is left out."""

    policy_name: str
    policy: Policy
    shapes: tuple[tuple[str, Machine], ...] = ()
    seeds: tuple[int, ...] = (42,)
    target: float = 100.0
    consolidate: bool = True
    defragment: bool = False


def plan(snapshot: Snapshot, question: Question, tell: Tell = lambda done: None) -> Plan:
    """The whole plan. The order of the steps matters: each leaves the records as the next one needs them."""
    # 1. The cluster as it is.
    placer = Placer(snapshot.machines, (t.demand for t in (*snapshot.bound, *snapshot.pending)), question.policy)
    running = [Placed(t, placer.settle(t)) for t in snapshot.bound]
    before = _in_use(placer.stock)
    tell("running pods")
    # 2. The waiting pods in random orders: for growth, which needs the cluster without them.
    shapes = question.shapes
    rest = wanted(placer, snapshot.pending, question.seeds) if shapes and snapshot.pending else None
    tell("orders")
    # 3. What fits now, why the other pods do not fit, and what would help.
    queue = in_turn(snapshot.pending)
    coming, left = place_all(placer, queue)
    tell("waiting pods")
    waiting = _waiting(placer, left, shapes, tell)
    now = _now(placer, queue, coming)
    # 4. More nodes, fewer nodes, moves.
    grown = _growth(rest, question, tell)
    freed = consolidation(placer, running, coming) if question.consolidate else None
    tell("consolidation")
    moved = _defragmentation(placer, (running, coming, left), snapshot, before, tell) if question.defragment else None
    machines = snapshot.machines
    return Plan(
        policy=question.policy_name,
        nodes=len(machines),
        gpus=sum(len(m.cards) for m in machines),
        running=len(snapshot.bound),
        target=question.target,
        now=now,
        waiting=waiting,
        growth=grown,
        consolidation=freed,
        defragmentation=moved,
        notes=snapshot.notes,
    )


def place_all(placer: Placer, queue: Sequence[Task]) -> tuple[list[Placed], list[Task]]:
    """Place the pods one by one; returns those that fit, and those that do not."""
    coming: list[Placed] = []
    left: list[Task] = []
    for task in queue:
        held = placer.place(task.demand)
        if held is None:
            left.append(task)
        else:
            coming.append(Placed(task, held))
    return coming, left


# ── what fits now ────────────────────────────────────────────────────────────────────────────────────────────────────


def _now(placer: Placer, queue: Sequence[Task], coming: Sequence[Placed]) -> Now:
    return Now(
        pods=len(queue),
        placed=len(coming),
        gpus=_gpus(placer, (t.demand for t in queue)),
        gpus_placed=_gpus(placer, (p.task.demand for p in coming)),
        placements=tuple(_placement(placer.stock, p) for p in coming),
    )


def _placement(stock: PlannerStock, placed: Placed) -> PlannedPlacement:
    held = placed.held
    return PlannedPlacement(placed.task.key, stock.machines[held.row].name, tuple(t.device for t in held.taken))


def _gpus(placer: Placer, demands: Iterable[Demand]) -> float:
    return sum(placer.weight(d) for d in demands) / WHOLE_GPU


# ── what waits ───────────────────────────────────────────────────────────────────────────────────────────────────────


def _waiting(
    placer: Placer, left: Sequence[Task], shapes: Sequence[tuple[str, Machine]], tell: Tell
) -> tuple[WaitingGroup, ...]:
    alike: dict[tuple[Demand, FamilyUnits | None], list[str]] = {}
    for task in left:
        alike.setdefault((task.demand, task.units), []).append(task.key)
    found: list[WaitingGroup] = []
    for (demand, units), keys in alike.items():
        why = reasons(placer.stock.lack(demand))
        found.append(WaitingGroup(tuple(keys), _asked(demand), why, changes(placer, demand, shapes, units)))
        tell("reasons")
    return tuple(found)


def _asked(demand: Demand) -> PodResources:
    return PodResources(demand.cpu, demand.memory, demand.gpus, asked(demand.part) if demand.part else "")


# ── more nodes ───────────────────────────────────────────────────────────────────────────────────────────────────────


def _growth(rest: WaitingDemand | None, question: Question, tell: Tell) -> tuple[Growth, ...] | None:
    if rest is None:
        return None
    found = [
        growth(rest, shape, question.policy, target=question.target, tell=lambda: tell("more nodes"))
        for shape in question.shapes
    ]
    return tuple(sorted(found, key=lambda g: (g.nodes is None, g.gpus or 0, g.nodes or 0)))


# ── moves ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _percent(milli: int, capacity: int) -> float:
    """Percent of the capacity. Parts count in whole thousandths of their card, so moved together they may exceed it."""
    return min(100.0, round(100 * milli / capacity, 4))


def _defragmentation(
    placer: Placer, pods: tuple[list[Placed], list[Placed], list[Task]], snapshot: Snapshot, before: int, tell: Tell
) -> Defragmentation:
    running, coming, left = pods
    goal = "waiting" if left else "mix"
    wanted = left or [t for t in _one_more(running) if placer.would_fit(t.demand) is None]
    mover = Mover(placer, running, snapshot.budgets)
    still = _let_in(mover, wanted, tell)
    stages = _fewest(mover.stages, placer, (*running, *coming), snapshot)
    admitted = [p for s in stages for p in s.admits]
    capacity = max(1, int(placer.stock.view.gpus.sum()) * WHOLE_GPU)
    had = before + sum(placer.weight(p.task.demand) for p in coming)
    return Defragmentation(
        goal=goal,
        moves=sum(len(s.steps) for s in stages),
        pods=len(admitted),
        gpus=_gpus(placer, (p.task.demand for p in admitted)),
        allocation_before=_percent(had, capacity),
        allocation_after=_percent(had + sum(placer.weight(p.task.demand) for p in admitted), capacity),
        stages=tuple(_stage(placer.stock, number, s) for number, s in enumerate(stages, 1)),
        still_waiting=still,
    )


def _let_in(mover: Mover, tasks: Sequence[Task], tell: Tell) -> tuple[str, ...]:
    """Make room for each pod, whole GPUs first; returns the keys of the pods that find none."""
    still: list[str] = []
    in_vain: set[Demand] = set()
    for task in sorted(tasks, key=lambda t: (-t.priority, -t.demand.gpus)):
        if task.demand in in_vain or len(in_vain) >= _IN_VAIN or not mover.admit(task):
            in_vain.add(task.demand)
            still.append(task.key)
        tell("moves")
    return tuple(still)


def _one_more(running: Sequence[Placed]) -> list[Task]:
    """If no pod waits: one more of each of the commonest kinds of running pods with GPUs."""
    alike: dict[Demand, list[Task]] = {}
    for placed in running:
        if placed.task.demand.part is not None:
            alike.setdefault(placed.task.demand, []).append(placed.task)
    common = sorted(alike.values(), key=lambda tasks: -len(tasks))[:_KINDS]
    return [
        msgspec.structs.replace(tasks[0], name=f"{tasks[0].name} (one more)", node="", cards=(), fixed="")
        for tasks in common
    ]


def _fewest(stages: Sequence[Moved], placer: Placer, there: Sequence[Placed], snapshot: Snapshot) -> list[Moved]:
    stock = PlannerStock(placer.stock.machines, placer.stock.kinds)
    for placed in there:
        stock.hold(placed.held)
    return merged(stages, stock, MoveBudgets(snapshot.budgets))


def _stage(stock: PlannerStock, number: int, stage: Moved) -> PlanStage:
    def name(held: PodHold) -> str:
        return stock.machines[held.row].name

    return PlanStage(
        number,
        tuple(
            Move(s.task.key, name(s.source), name(s.target), tuple(t.device for t in s.target.taken))
            for s in stage.steps
        ),
        tuple(_placement(stock, p) for p in stage.admits),
    )


def _in_use(stock: PlannerStock) -> int:
    """Thousandths of GPUs that running pods hold: the larger share of each card."""
    view = stock.view
    return int(sum(view.gpus) * WHOLE_GPU - view.gpu_left[stock.present].sum())
