"""Convert between rows of a trace, which the simulator uses, and a snapshot, which also has card memory and labels.

A row has one number for a part of a card: the larger of the shares of memory and compute time. The share of memory is
that of the smallest card that can hold it. On larger cards the pod would need less, so figures of clusters with several
card sizes are slightly too low, never too high. Planning itself counts both exactly.
"""

from collections.abc import Sequence

from fractile.errors import WireError
from fractile.policy.nodes.view import WHOLE_GPU, TaskDemand
from fractile.sim.snapshot.build import generic_cards
from fractile.sim.snapshot.cluster_snapshot import Demand, DemandPart, Machine, Snapshot, Task
from fractile.sim.snapshot.trace import NodeRow, PodRow

TRACE_SLOTS = 1001  # pods of a node, as in the published experiments


def machines_of(nodes: Sequence[NodeRow]) -> tuple[Machine, ...]:
    """Nodes of a trace; the memory of their cards is unknown."""
    return tuple(
        Machine(n.name, n.cpu, n.memory, generic_cards(n.name, n.gpus, model=n.model, memory=0), TRACE_SLOTS)
        for n in nodes
    )


def tasks_of(pods: Sequence[PodRow]) -> tuple[Task, ...]:
    """Pods of a trace: a part of a card is that part of its memory and of its compute time."""
    return tuple(Task("", p.name, _demand(p.ask)) for p in pods)


def _demand(ask: TaskDemand) -> Demand:
    if not ask.gpus:
        return Demand(ask.cpu, ask.memory)
    if not ask.shares:
        return Demand(ask.cpu, ask.memory, DemandPart(ask.gpus, exclusive=True, models=ask.models))
    return Demand(ask.cpu, ask.memory, DemandPart(1, share=ask.milli, compute=ask.milli, models=ask.models))


def node_rows(snapshot: Snapshot) -> tuple[NodeRow, ...]:
    """The nodes as the simulator uses them: empty, healthy, and each with one model."""
    return node_rows_of(snapshot.machines)


def node_rows_of(machines: Sequence[Machine]) -> tuple[NodeRow, ...]:
    """Any machines, without their labels and taints."""
    return tuple(NodeRow(m.name, m.cpu, m.memory, len(m.cards), m.model) for m in machines)


def pod_rows(snapshot: Snapshot, tasks: Sequence[Task]) -> tuple[PodRow, ...]:
    """The pods as the simulator uses them: labels and taints are ignored, and a pod that never fits is refused, as in a
    trace."""
    kinds = {(m.model, m.cards[0].memory, len(m.cards)): m for m in snapshot.machines if m.cards}
    known: dict[Demand, TaskDemand] = {}
    rows: list[PodRow] = []
    for number, task in enumerate(tasks):
        ask = known.get(task.demand)
        if ask is None:
            ask = known[task.demand] = _ask(task, tuple(kinds.values()))
        rows.append(PodRow(f"{number:06} {task.key}", ask))
    return tuple(rows)


def _ask(task: Task, kinds: Sequence[Machine]) -> TaskDemand:
    demand, part = task.demand, task.demand.part
    if part is None:
        return TaskDemand(demand.cpu, demand.memory)
    able = [k for k in kinds if _could(k, part)]
    if not able:
        raise WireError(f"pod {task.key} asks for {asked(part)}, and no node has that, even if it were empty")
    models = tuple(sorted({k.model for k in able})) if part.constrained else ()
    milli = max(share_of(part, k.cards[0].memory) for k in able)
    if part.count > 1 and milli < WHOLE_GPU:
        raise WireError(
            f"pod {task.key} asks for parts of {part.count} cards; the simulator knows parts of one card only"
        )
    return TaskDemand(demand.cpu, demand.memory, part.count, milli, models)


def _could(machine: Machine, part: DemandPart) -> bool:
    return (
        sum(part.admits(c) and (part.exclusive or part.memory_on(c.memory) <= c.memory) for c in machine.cards)
        >= part.count
    )


def share_of(part: DemandPart, card: int) -> int:
    """Thousandths of a card with ``card`` MiB: the larger of the shares of memory and compute time, rounded down, at
    least 1."""
    if part.exclusive:
        return WHOLE_GPU
    by_memory = part.memory_on(card) * WHOLE_GPU // card if card else part.share
    return min(WHOLE_GPU, max(1, by_memory, part.compute))


def asked(part: DemandPart) -> str:
    """The part in words."""
    if part.exclusive:
        return f"{part.count} whole GPU{'s' if part.count > 1 else ''}"
    amounts = [f"{part.memory} MiB"] if part.memory else []
    amounts += [f"{part.share / 10:g} % of the memory"] if part.share else []
    amounts += [f"{part.compute / 10:g} % of the time"] if part.compute else []
    return f"{' and '.join(amounts) or 'a part'} of {part.count} GPU{'s' if part.count > 1 else ''}"
