"""Which nodes refuse a pod and why, and which single change would let it in.

The filter judges a node's cards, and the planner's model judges the rest of the node; the pod fits only if both accept
it. A change is only named if it was tried and nothing else that is known would still refuse the pod.
"""

from collections.abc import Iterator, Mapping

import msgspec
import numpy as np

from fractile.model.card import DeviceKind
from fractile.model.quota import POOL_LABELS, NamespaceQuota
from fractile.model.request import PodRequest
from fractile.model.units import NodeName
from fractile.policy.nodes.policies.table import POLICIES
from fractile.reports.why.cluster import ClusterView
from fractile.reports.why.trials import refused_after
from fractile.sim.planner.placing import Placer
from fractile.sim.planner.reasons import changes as single_changes
from fractile.sim.planner.shapes import shapes_in
from fractile.sim.planner.stock import PlannerStock
from fractile.sim.snapshot.cluster_snapshot import Demand, Machine, Snapshot, Task
from fractile.wire.kubernetes.why_objects import ObservedPod
from fractile.wire.output.plan import PodChange
from fractile.wire.output.why import RefusingNodes

RAISE_QUOTA = "raise-quota"
CHANGE_POOL = "change-pool"
CORRECT_QUOTA = "correct-quota"
_POLICY = "first-fit"  # any policy will do: only whether something fits matters, not where


class NodeFindings(msgspec.Struct, frozen=True, kw_only=True):
    """``notes``: why a change that one might expect is not named."""

    fits: tuple[str, ...] = ()
    groups: tuple[RefusingNodes, ...] = ()
    changes: tuple[PodChange, ...] = ()
    notes: tuple[str, ...] = ()


def judge(
    cluster: ClusterView,
    pod: ObservedPod,
    snapshot: Snapshot,
    names: list[str],
    quotas: Mapping[str, NamespaceQuota],
    problem: str,
) -> NodeFindings:
    """Judge all nodes. ``snapshot``: the running pods, and ``pod`` as the only waiting one, unless it cannot be
    planned. ``quotas``: the quotas in force. ``problem``: what is wrong with their ConfigMap."""
    found = cluster.filtered(names)
    placer, demand = _placer_of(snapshot)
    lacks = _of_nodes(placer.stock, demand) if demand else {}
    said: dict[str, list[str]] = {name: [] for name in names}
    for refused in (found.failed, found.unresolvable):
        for name, sentence in refused.items():
            said[name].append(sentence)
    for name, sentences in lacks.items():
        said.setdefault(name, []).extend(sentences)
    fits = tuple(name for name, sentences in said.items() if not sentences)
    hopeless = _for_good(placer.stock, demand) if demand else frozenset[str]()
    groups = _groups(said, hopeless.union(found.unresolvable))
    if fits or demand is None or not isinstance(cluster.request, PodRequest):
        return NodeFindings(fits=fits, groups=groups)
    refused = frozenset((*found.failed, *found.unresolvable))
    freed = _without_quota(cluster, names, quotas, problem) & refused
    if freed - lacks.keys():
        changes, notes = _of_quota(cluster, freed - lacks.keys(), quotas, problem)
    else:
        changes, notes = _tried(cluster, pod, placer, snapshot.pending[0])
        notes = (*notes, *_not_sought(placer, demand, cluster.request))
    if freed and not changes and not notes:
        notes = ("the quota is not the only obstacle, so no single change was looked for",)
    return NodeFindings(fits=fits, groups=groups, changes=changes, notes=notes)


def _placer_of(snapshot: Snapshot) -> tuple[Placer, Demand | None]:
    demand = snapshot.pending[0].demand if snapshot.pending else None
    wanted = [t.demand for t in (*snapshot.bound, *snapshot.pending)]
    placer = Placer(snapshot.machines, wanted, POLICIES[_POLICY])
    for task in snapshot.bound:
        placer.settle(task)
    return placer, demand


def _of_nodes(stock: PlannerStock, demand: Demand) -> dict[str, list[str]]:
    """Why each node refuses the pod, apart from its cards."""
    lack = stock.lack(demand)
    found: dict[str, list[str]] = {}
    for row in np.flatnonzero(lack.taint | lack.label | lack.cpu | lack.memory | lack.places).tolist():
        machine = stock.machines[row]
        told = found.setdefault(machine.name, [])
        if lack.taint[row]:
            told.append(_tainted(machine, demand))
        if lack.label[row]:
            told.append("labels that do not match its node selector or node affinity")
        if lack.cpu[row]:
            told.append(f"too few CPUs free, {demand.cpu / 1000:g} requested")
        if lack.memory[row]:
            told.append(f"too little of the node's memory free, {demand.memory} MiB requested")
        if lack.places[row]:
            told.append("no room for another pod")
    return found


def _for_good(stock: PlannerStock, demand: Demand) -> frozenset[str]:
    """Nodes that would refuse the pod even if they were empty, whatever their cards."""
    taint, label = stock.kinds.barred(demand.where)
    return frozenset[str](
        machine.name
        for machine, barred in zip(stock.machines, (taint | label).tolist(), strict=True)
        if barred or machine.cpu < demand.cpu or machine.memory < demand.memory
    )


def _tainted(machine: Machine, demand: Demand) -> str:
    taint = machine.untolerated_by(demand.where)
    if taint is None or machine.cordoned:
        return "cordoned"
    return f"taint {taint.key}{'=' if taint.value else ''}{taint.value}:{taint.effect} that it does not tolerate"


def _groups(said: Mapping[str, list[str]], for_good: frozenset[str]) -> tuple[RefusingNodes, ...]:
    """Group the nodes that give the same reasons; the largest group first."""
    alike: dict[tuple[tuple[str, ...], bool], list[str]] = {}
    for name, sentences in said.items():
        if sentences:
            alike.setdefault((tuple(sentences), name not in for_good), []).append(name)
    groups = (
        RefusingNodes(nodes=tuple(sorted(nodes)), reasons=reasons, waiting_helps=helps)
        for (reasons, helps), nodes in alike.items()
    )
    return tuple(sorted(groups, key=lambda g: (-len(g.nodes), g.nodes)))


# ── what would help ──────────────────────────────────────────────────────────────────────────────────────────────────


def _without_quota(
    cluster: ClusterView, names: list[str], quotas: Mapping[str, NamespaceQuota], problem: str
) -> frozenset[str]:
    """Nodes whose cards would suffice without quotas."""
    if not (quotas or problem):
        return frozenset()
    return _limited_by({}, cluster, names, quotas, problem)


def _limited_by(
    other: dict[str, NamespaceQuota],
    cluster: ClusterView,
    names: list[str],
    quotas: Mapping[str, NamespaceQuota],
    problem: str,
) -> frozenset[str]:
    """Nodes whose cards would suffice if the quotas were ``other``."""
    cluster.limit(other)
    try:
        return frozenset(cluster.filtered(names).node_names or ())
    finally:
        cluster.limit(dict(quotas), "" if quotas else problem)


def _of_quota(
    cluster: ClusterView, open_to: frozenset[str], quotas: Mapping[str, NamespaceQuota], problem: str
) -> tuple[tuple[PodChange, ...], tuple[str, ...]]:
    """Changes of the quota that let the pod in. ``open_to``: nodes that would take it without a quota. A quota limits
    amounts and pools; changing one of them does not help a pod that the other refuses."""
    namespace = cluster.request.namespace if isinstance(cluster.request, PodRequest) else ""
    own = quotas.get(namespace)
    raised = _raised(namespace, min(open_to), own, problem)
    if own is None or own.pools is None:
        return (raised,), ()
    names = sorted(open_to)
    no_amounts, no_pools = (
        _limited_by(
            {**quotas, namespace: msgspec.structs.replace(own, **{field: None})}, cluster, names, quotas, problem
        )
        for field in ("limits", "pools")
    )
    found: list[PodChange] = []
    if no_amounts:
        found.append(msgspec.structs.replace(raised, node=min(no_amounts)))
    if no_pools:
        found.append(_other_pool(min(no_pools), cluster, namespace, own.pools))
    if not found:
        return (), ("the quota's amounts and its pools are both obstacles, so no single change was looked for",)
    return tuple(found), ()


def _raised(namespace: str, node: str, own: NamespaceQuota | None, problem: str) -> PodChange:
    """Raise the quota. A malformed ConfigMap must be corrected first; if none of it is in force, that is enough."""
    raise_it = f"raise the quota of namespace {namespace}"
    if not problem:
        return PodChange(RAISE_QUOTA, raise_it, node)
    return PodChange(CORRECT_QUOTA, f"correct the {problem}" + (f"; and {raise_it} there" if own else ""), node)


def _other_pool(node: str, cluster: ClusterView, namespace: str, pools: tuple[str, ...]) -> PodChange:
    here = cluster.ledger.usage.place(NodeName(node)).pool
    ways = [f"label {node} {POOL_LABELS[0]}={pools[0]}"] if pools else []
    ways += [f"add {'its ' if pools else ''}pool {here} to the quota of namespace {namespace}"] if here else []
    return PodChange(CHANGE_POOL, ", or ".join(ways) or f"leave pool out of the quota of namespace {namespace}", node)


def _tried(
    cluster: ClusterView, pod: ObservedPod, placer: Placer, task: Task
) -> tuple[tuple[PodChange, ...], tuple[str, ...]]:
    """The changes proposed by the planner after which the filter accepts the pod."""
    demand = task.demand
    if demand.part is None or placer.would_fit(demand) is not None:
        return (), ()
    shapes = shapes_in(placer.stock.machines)
    judged = [
        (change, refused_after(change, cluster, pod, shapes))
        for change in single_changes(placer, demand, shapes, task.units)
    ]
    why_not = next((sentence for _, sentence in judged if sentence), "")
    notes = (f"changes after which it would still be refused are left out: {why_not}",) if why_not else ()
    return tuple(change for change, sentence in judged if not sentence), notes


def _not_sought(placer: Placer, demand: Demand, request: PodRequest) -> Iterator[str]:
    if request.of(DeviceKind.OTHER):
        yield "single changes are not looked for with non-GPU devices"
    elif placer.would_fit(demand) is not None:
        yield "by the sums alone it would fit; the obstacle is named above, and no single change was looked for"
