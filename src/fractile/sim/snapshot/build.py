"""Build a snapshot from Kubernetes API objects, read from files or a live cluster.

An invalid object is passed to ``wrong`` with its name: for a file that raises, for a live cluster it becomes a note,
since one invalid pod must not hide all others.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence

import msgspec

from fractile.dialects.agents import memory_unit, served
from fractile.dialects.table import parse_pod
from fractile.errors import WireError
from fractile.ledger.classes import ClassIndex, resolve
from fractile.ledger.ledger import Ledger
from fractile.model.card import GPU, Card, DeviceKind
from fractile.model.placement import charges
from fractile.model.properties import shared
from fractile.model.refusal import Refusal
from fractile.model.request import PodRequest
from fractile.model.units import CardUUID, MemoryUnit, MiB, NodeName
from fractile.sim.snapshot.budget import budget_of
from fractile.sim.snapshot.cluster_snapshot import (
    OF_A_DAEMON_SET,
    POD_SLOTS,
    STATIC,
    Demand,
    Machine,
    Snapshot,
    SnapshotBudget,
    Taken,
    Task,
)
from fractile.sim.snapshot.demand import RequestReading, demand_of, mebibytes, milli, units_asked
from fractile.wire.fractile import placement, resource_class
from fractile.wire.fractile.departed import DepartedContainer, departed, taken
from fractile.wire.fractile.extended_resource import ExtendedResource, to_card
from fractile.wire.kubernetes.manifests import DisruptionBudget, PlannedNode, PlannedPod
from fractile.wire.quantity import whole_number

PRODUCT, PRODUCT_MEMORY = "nvidia.com/gpu.product", "nvidia.com/gpu.memory"  # labels of NVIDIA's feature discovery
GPUS = "nvidia.com/gpu"
_MOST_CARDS = 64
_STAYS = {"DaemonSet": OF_A_DAEMON_SET, "Node": STATIC}
_EVICT = "cluster-autoscaler.kubernetes.io/safe-to-evict"

Wrong = Callable[[str, str], None]  # object, reason
_Gone = dict[CardUUID, tuple[DepartedContainer, ...]]


class NamedPod(msgspec.Struct, frozen=True):
    """A pod, or as many equal pods as a workload has; ``who``: its name in messages."""

    who: str
    pod: PlannedPod
    replicas: int | None = None


class SnapshotObjects(msgspec.Struct, frozen=True):
    """The objects read, with their origin. ``machines``: those of the short form, which are already decoded."""

    nodes: Sequence[tuple[str, PlannedNode]] = ()
    cards: Sequence[tuple[str, ExtendedResource]] = ()
    classes: Sequence[resource_class.ResourceClass] = ()
    pods: Sequence[NamedPod] = ()
    budgets: Sequence[tuple[str, DisruptionBudget]] = ()
    machines: Sequence[Machine] = ()
    source: str = ""


def snapshot_of(objects: SnapshotObjects, wrong: Wrong) -> Snapshot:
    """The snapshot: nodes with their cards, running pods, waiting pods, budgets."""
    # 1. Cards, then the nodes that have them.
    cards, gone = _cards(objects.cards, wrong)
    machines = [*objects.machines, *_machines(objects.nodes, cards, gone, wrong)]
    twice = next((n for n, times in Counter(m.name for m in machines).items() if times > 1), None)
    if twice is not None:
        raise WireError(f"{objects.source}: node {twice} appears twice")
    # 2. How requests are read: with the cluster's unit, families of names and classes.
    unit = memory_unit((n for _, n in objects.nodes), [(NodeName(c.node), c) for m in machines for c in m.cards])
    families = served(r for _, r in objects.cards)
    reading = RequestReading(unit, _resolver(objects, machines), families)
    # 3. Pods, each on its node.
    notes: dict[str, list[str]] = {}
    known = {m.name for m in machines}
    bound: list[Task] = []
    pending: list[Task] = []
    for named in objects.pods:
        if named.pod.finished:
            continue
        for task in _tasks(named, reading, wrong, notes):
            if not task.node:
                pending.append(task)
            elif task.node in known:
                bound.append(task)
            else:
                wrong(named.who, f"spec.nodeName {task.node!r} is not one of the nodes")
    budgets = _budgets(objects.budgets, bound, pending, wrong)
    return Snapshot(
        tuple(machines),
        tuple(bound),
        tuple(pending),
        budgets,
        (*_sentences(notes), *_left_behind(machines, gone)),
    )


def generic_cards(node: str, number: int, *, model: str, memory: int) -> tuple[Card, ...]:
    """Cards of which only the number, one model and one memory size are known."""
    return tuple(
        Card(CardUUID(f"{node}#{i}"), i, model, MiB(memory), node=NodeName(node)) for i in range(number)
    )  # fmt: skip


def _cards(resources: Iterable[tuple[str, ExtendedResource]], wrong: Wrong) -> tuple[dict[str, list[Card]], _Gone]:
    """The cards by node, and what processes of deleted pods hold of them."""
    found: dict[str, list[Card]] = {}
    gone: _Gone = {}
    for who, resource in resources:
        try:
            node, card = to_card(resource)
            held = departed(resource)
        except WireError as e:
            wrong(who, str(e))
            continue
        if card.type == GPU:
            found.setdefault(node, []).append(card)
            gone[card.uuid] = held
    return found, gone


def _machines(
    nodes: Iterable[tuple[str, PlannedNode]], cards: dict[str, list[Card]], gone: _Gone, wrong: Wrong
) -> list[Machine]:
    found: list[Machine] = []
    for who, node in nodes:
        try:
            own = sorted(cards.get(node.metadata.name, ()), key=lambda c: (c.index, c.uuid))
            found.append(msgspec.structs.replace(_machine(node, own), withheld=_withheld(own, gone)))
        except WireError as e:
            wrong(who, str(e))
    return found


def _withheld(cards: Sequence[Card], gone: _Gone) -> tuple[Taken, ...]:
    return tuple(
        Taken(device, held.memory, 10 * held.cores) for device, card in enumerate(cards) for held in gone[card.uuid]
    )


def _left_behind(machines: Iterable[Machine], gone: _Gone) -> Iterable[str]:
    """Notes on what a plan counts as taken although no pod holds it."""
    for machine in machines:
        for card in machine.cards:
            for held in gone.get(card.uuid, ()):
                yield taken(card.index, machine.name, held)


def _machine(node: PlannedNode, cards: list[Card]) -> Machine:
    amounts = {**(node.status.capacity or {}), **(node.status.allocatable or {})}
    for needed in ("cpu", "memory"):
        if needed not in amounts:
            raise WireError(f"status.allocatable.{needed} is missing")
    labels = node.metadata.labels or {}
    name = node.metadata.name
    return Machine(
        name=name,
        cpu=milli(amounts["cpu"], "status.allocatable.cpu"),
        memory=mebibytes(amounts["memory"], "status.allocatable.memory"),
        cards=tuple(cards) or _said_by_labels(name, labels, amounts.get(GPUS, 0)),
        slots=_number(amounts.get("pods", POD_SLOTS), "status.allocatable.pods"),
        labels=shared(labels),
        taints=tuple(node.spec.taints or ()),
        cordoned=node.spec.unschedulable,
    )


def _said_by_labels(node: str, labels: dict[str, str], number: object) -> tuple[Card, ...]:
    """Cards of a node without Fractile's inventory: the number by NVIDIA's plugin, the model by its feature
    discovery."""
    cards = _number(number, f"status.allocatable.{GPUS}")
    if cards > _MOST_CARDS:
        raise WireError(f"status.allocatable.{GPUS} is {cards}; a node has at most {_MOST_CARDS}")
    memory = _number(labels.get(PRODUCT_MEMORY, 0), f"label {PRODUCT_MEMORY}")
    return generic_cards(node, cards, model=labels.get(PRODUCT, "GPU"), memory=memory)


def _number(value: object, field: str) -> int:
    try:
        return whole_number(value)
    except WireError as e:
        raise WireError(f"{field}: {e}") from None


def _resolver(objects: SnapshotObjects, machines: Sequence[Machine]) -> Callable[[PodRequest], PodRequest | Refusal]:
    """Resolve classes as the extender does; the ledger is only filled when a pod asks by class."""
    index: list[ClassIndex] = []

    def found(request: PodRequest) -> PodRequest | Refusal:
        if not any(c.request.device_class for c in request.containers):
            return request
        if not index:
            index.append(_index(objects.classes, machines))
        return resolve(request, index[0])

    return found


def _index(classes: Iterable[resource_class.ResourceClass], machines: Sequence[Machine]) -> ClassIndex:
    ledger = Ledger(lambda: 0.0)
    index = ClassIndex(ledger)
    for machine in machines:
        for card in machine.cards:
            ledger.put_card(NodeName(machine.name), card)
    for written in classes:
        cls = resource_class.decode(written)
        if isinstance(cls, resource_class.Invalid):
            index.spoil(written.metadata.name, cls.message)
        else:
            index.put(cls)
    return index


# ── pods ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _tasks(named: NamedPod, reading: RequestReading, wrong: Wrong, notes: dict[str, list[str]]) -> Iterable[Task]:
    pod = named.pod
    try:
        demand = demand_of(pod, reading)
    except WireError as e:
        wrong(named.who, str(e))
        return
    if isinstance(demand, Refusal):
        wrong(named.who, demand.message)
        return
    for what in _not_planned(pod):
        notes.setdefault(what, []).append(named.who)
    task = Task(
        namespace=pod.metadata.namespace or "default",
        name=pod.metadata.name,
        demand=demand,
        labels=shared(pod.metadata.labels or {}),
        priority=pod.spec.priority or 0,
        created=pod.metadata.creation_timestamp or "",
        node=pod.spec.node_name,
        cards=_held(pod, demand),
        fixed=_fixed(pod),
        units=None if pod.spec.node_name or demand.part is None else units_asked(pod, reading),
    )
    if named.replicas is None:
        yield task
        return
    for number in range(named.replicas):
        yield msgspec.structs.replace(task, name=f"{task.name}-{number}")


def _held(pod: PlannedPod, demand: Demand) -> tuple[tuple[str, int, int], ...]:
    """The cards in its placement; empty when it has no readable one, and cards are then chosen for it."""
    text = (pod.metadata.annotations or {}).get(placement.ANNOTATION)
    if demand.part is None or text is None or not pod.spec.node_name:
        return ()
    try:
        return tuple((c.card, c.memory, 10 * c.cores) for c in charges(placement.decode(text)) if not c.shares)
    except WireError:
        return ()


def _fixed(pod: PlannedPod) -> str:
    owners = (_STAYS[o.kind] for o in pod.metadata.owner_references or () if o.kind in _STAYS)
    if reason := next(owners, ""):
        return reason
    if pod.metadata.deletion_timestamp:
        return "is being deleted"
    return f"says {_EVICT}: false" if (pod.metadata.annotations or {}).get(_EVICT) == "false" else ""


def _not_planned(pod: PlannedPod) -> list[str]:
    affinity = pod.spec.affinity
    others = affinity and [a for a in (affinity.pod_affinity, affinity.pod_anti_affinity) if a and a.required]
    found: list[str] = []
    if others:
        found.append("affinity between pods")
    if pod.spec.topology_spread_constraints:
        found.append("topology spread")
    asked = parse_pod(pod, MemoryUnit.MiB)
    if isinstance(asked, PodRequest) and asked.of(DeviceKind.OTHER):
        found.append("non-GPU devices")
    return found


def _sentences(notes: dict[str, list[str]]) -> Iterable[str]:
    for what, whose in notes.items():
        more = f" and {len(whose) - 3} more" if len(whose) > 3 else ""
        yield f"{what} is not planned with: {'; '.join(whose[:3])}{more}"


def _budgets(
    written: Iterable[tuple[str, DisruptionBudget]], bound: list[Task], pending: list[Task], wrong: Wrong
) -> tuple[SnapshotBudget, ...]:
    found: list[SnapshotBudget] = []
    for who, budget in written:
        try:
            found.append(budget_of(budget, bound, pending))
        except WireError as e:
            wrong(who, str(e))
    return tuple(found)
