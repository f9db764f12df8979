"""Why a pod fits nowhere, as counts over nodes, and which single change would make it fit."""

from collections.abc import Iterator, Sequence

import msgspec
import numpy as np

from fractile.dialects.units import FamilyUnits
from fractile.policy.nodes.view import Flags
from fractile.policy.nodes.where import Where
from fractile.sim.kinds import Kinds
from fractile.sim.planner.placing import Placer
from fractile.sim.planner.smaller import smaller
from fractile.sim.planner.stock import LACKS, Lack, PlannerStock
from fractile.sim.snapshot.cluster_snapshot import Demand, DemandPart, Machine
from fractile.wire.kubernetes.manifests import Taint, Toleration
from fractile.wire.output.plan import PodChange, Reason

CORDON = "node.kubernetes.io/unschedulable"


def reasons(lack: Lack) -> tuple[Reason, ...]:
    """Each combination of causes with the number of nodes that have it, the commonest first."""
    table = np.column_stack([getattr(lack, name) for name in LACKS])
    combinations, counts = np.unique(table, axis=0, return_counts=True)
    found = [
        Reason(tuple(name for name, there in zip(LACKS, row, strict=True) if there), int(count))
        for row, count in zip(combinations, counts, strict=True)
        if row.any()
    ]
    return tuple(sorted(found, key=lambda r: (-r.nodes, len(r.lacks), r.lacks)))


def changes(
    placer: Placer, demand: Demand, shapes: Sequence[tuple[str, Machine]], units: FamilyUnits | None = None
) -> tuple[PodChange, ...]:
    """Every single change that makes the pod fit, the mildest first; each was tried on the current cluster. ``units``:
    in which the pod asks, so that amounts can be written down."""
    lack = placer.stock.lack(demand)
    found: list[PodChange] = []
    for change, other in _candidates(placer.stock, demand, lack, units):
        row = placer.would_fit(other)
        if row is not None:
            found.append(msgspec.structs.replace(change, node=placer.stock.machines[row].name))
    return (*found, *_one_more_node(demand, shapes))


def _candidates(
    stock: PlannerStock, demand: Demand, lack: Lack, units: FamilyUnits | None
) -> Iterator[tuple[PodChange, Demand]]:
    yield from _other_conditions(stock, demand, lack)
    yield from _less_of_the_node(stock, demand, lack)
    if demand.part is not None:
        yield from _less_of_cards(stock, demand, demand.part, lack, units)


def _alone(lack: Lack, *names: str) -> Flags:
    """Nodes where at least one of these causes is in the way, and no other cause."""
    others = [getattr(lack, name) for name in LACKS if name not in names]
    return ~np.any(others, axis=0) & np.any([getattr(lack, name) for name in names], axis=0)


# ── conditions ───────────────────────────────────────────────────────────────────────────────────────────────────────


def _other_conditions(stock: PlannerStock, demand: Demand, lack: Lack) -> Iterator[tuple[PodChange, Demand]]:
    where, part = demand.where, demand.part
    if part is not None and part.constrained:
        free = msgspec.structs.replace(part, selectors=(), models=())
        sentence = f"let it use any GPU instead of {_named(part)}"
        yield PodChange("drop-model", sentence), msgspec.structs.replace(demand, part=free)
    if where.chooses:
        free = Where(tolerations=where.tolerations)
        yield (
            PodChange("drop-node-selector", "drop its node selector or node affinity"),
            msgspec.structs.replace(demand, where=free),
        )
    for taint in _taints(stock, where, _alone(lack, "taint")):
        tolerated = Toleration(key=taint.key, operator="Exists", effect=taint.effect)
        other = msgspec.structs.replace(where, tolerations=(*where.tolerations, tolerated))
        if taint.key == CORDON:
            change = PodChange("uncordon", "uncordon the node")
        else:
            change = PodChange("tolerate", f"tolerate the taint {_written(taint)}")
        yield change, msgspec.structs.replace(demand, where=other)


def _named(part: DemandPart) -> str:
    models = dict.fromkeys((*part.models, *(m for s in part.selectors for m in s.models)))
    return " or ".join(models) or "those that it names"


def _taints(stock: PlannerStock, where: Where, nodes: Flags) -> list[Taint]:
    found = (stock.machines[row].untolerated_by(where) for row in np.flatnonzero(nodes))
    return list(dict.fromkeys(t for t in found if t is not None))


def _written(taint: Taint) -> str:
    return f"{taint.key}{'=' if taint.value else ''}{taint.value}:{taint.effect}"


# ── amounts ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def _less_of_the_node(stock: PlannerStock, demand: Demand, lack: Lack) -> Iterator[tuple[PodChange, Demand]]:
    cpu = int(np.max(stock.cpu_left, where=_alone(lack, "cpu"), initial=0))
    if cpu > 0:
        sentence = f"ask for {_cpus(cpu)} CPUs instead of {_cpus(demand.cpu)}"
        yield PodChange("fewer-cpus", sentence, "", demand.cpu, cpu), msgspec.structs.replace(demand, cpu=cpu)
    memory = int(np.max(stock.memory_left, where=_alone(lack, "memory"), initial=0))
    if memory > 0:
        sentence = f"ask for {memory} MiB of the node's memory instead of {demand.memory}"
        change = PodChange("less-memory", sentence, "", demand.memory, memory)
        yield change, msgspec.structs.replace(demand, memory=memory)


def _less_of_cards(
    stock: PlannerStock, demand: Demand, part: DemandPart, lack: Lack, units: FamilyUnits | None
) -> Iterator[tuple[PodChange, Demand]]:
    nodes = _alone(lack, "gpu", "size", "no_gpu")
    if not nodes.any():
        return
    if part.count > 1:
        yield from _fewer_gpus(stock, demand, part, nodes, units)
        return
    cards = stock.kinds.admitted(part) & stock.present & nodes[:, None]
    for less in smaller(stock, part, cards, units):
        change = PodChange("smaller-part", less.sentence, "", less.wanted, less.to, less.amounts)
        yield change, msgspec.structs.replace(demand, part=less.part)


def _fewer_gpus(
    stock: PlannerStock, demand: Demand, part: DemandPart, nodes: Flags, units: FamilyUnits | None
) -> Iterator[tuple[PodChange, Demand]]:
    count = int(np.max(stock.fitting(part).sum(axis=1), where=nodes, initial=0))
    if not 0 < count < part.count:
        return
    other = msgspec.structs.replace(demand, part=msgspec.structs.replace(part, count=count))
    if units is None or units.together:
        sentence = f"ask for {count} GPU{'' if count == 1 else 's'} instead of {part.count}"
        yield PodChange("fewer-gpus", sentence, "", part.count, count), other
        return
    amount, before = count * units.per_card, part.count * units.per_card
    sentence = f"ask for {units.cards}: {amount} instead of {before}"
    yield PodChange("fewer-gpus", sentence, "", part.count, count, {units.cards: amount}), other


def _one_more_node(demand: Demand, shapes: Sequence[tuple[str, Machine]]) -> Iterator[PodChange]:
    """The first shape whose empty node takes the pod."""
    for name, machine in shapes:
        if PlannerStock((machine,), Kinds((machine,), ())).feasible(demand).any():
            yield PodChange("one-more-node", f"add one node of {name}", name)
            return


def _cpus(milli: int) -> str:
    return f"{milli / 1000:g}"
