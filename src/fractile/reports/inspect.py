"""A report on the cluster's cards, from the API server's objects.

The control plane need not run: the same code that feeds its ledger feeds a ledger here, so both accept and doubt the
same pods. Pure: objects in, report out.
"""

from collections.abc import Iterable, Sequence

import msgspec

from fractile.dialects.agents import memory_unit, served
from fractile.errors import WireError
from fractile.ledger.ledger import Entry, Ledger
from fractile.model.card import GPU, Card
from fractile.model.placement import Charge
from fractile.model.refusal import Refusal
from fractile.model.request import ContainerRequest
from fractile.model.units import CardUUID, MemoryUnit, NodeName, PodUID
from fractile.watch.duplicate_cards import same_index
from fractile.watch.event_handlers import PodHandlers
from fractile.watch.waiting_pods import WaitingPod, WaitingPods
from fractile.wire.fractile import departed, extended_resource, isolation, placement
from fractile.wire.fractile.extended_resource import ExtendedResource, ExtendedResourceStatus
from fractile.wire.kubernetes.objects import Node, Pod
from fractile.wire.output import inspect

_UNBELIEVED = f"Fractile rejects this pod's {placement.ANNOTATION}: "


class InspectedObjects(msgspec.Struct, frozen=True):
    """What was read from the API server."""

    cards: Sequence[ExtendedResource]
    nodes: Sequence[Node]
    pods: Sequence[Pod]


def survey(objects: InspectedObjects) -> inspect.Inspection:
    """The report on the whole cluster."""
    problems: list[inspect.Problem] = []
    cards = _cards(objects.cards, problems)
    unit = memory_unit(objects.nodes, cards)
    ledger, waiting = Ledger(lambda: 0.0), WaitingPods()
    for node, card in cards:
        ledger.put_card(node, card)
    handlers = _handlers(ledger=ledger, waiting=waiting, unit=unit, dialects=served(objects.cards), problems=problems)
    for pod in objects.pods:
        handlers.changed(pod)
    problems += same_index(cards, objects.cards)
    problems += _unenforced(objects.pods)
    problems += _lost_cards(ledger, {card.uuid for _, card in cards}, objects.pods)
    # `fractile devices` shows other devices; here they only complete the records of pods that hold both.
    holders = _holders(ledger, objects.pods)
    _add_departed(holders, objects.cards, {card.uuid for _, card in cards})
    nodes = _nodes((c for c in cards if c[1].type == GPU), holders)
    return inspect.Inspection(
        memory_unit=unit.name,
        totals=_sum(card for node in nodes for card in node.cards),
        nodes=nodes,
        # Creation times are in whole seconds, so pods of one apply are ordered by name rather than by random UID.
        waiting=tuple(map(_waiting, sorted(waiting.oldest_first(), key=lambda p: (p.created, p.namespace, p.name)))),
        problems=tuple(problems),
    )


def only(report: inspect.Inspection, node: str) -> inspect.Inspection:
    """The part about one node: its cards, their sums and its problems. Waiting pods belong to no node."""
    nodes = tuple(n for n in report.nodes if n.name == node)
    return msgspec.structs.replace(
        report,
        nodes=nodes,
        totals=_sum(card for n in nodes for card in n.cards),
        waiting=(),
        problems=tuple(p for p in report.problems if p.node == node),
    )


def _cards(resources: Iterable[ExtendedResource], problems: list[inspect.Problem]) -> list[tuple[NodeName, Card]]:
    found: list[tuple[NodeName, Card]] = []
    for resource in resources:
        if resource.status.phase in (extended_resource.UNHEALTHY, extended_resource.LOST):
            problems.append(_sick(resource))
        try:
            extended_resource.withheld(resource)  # raises for what the control plane does not count either
            found.append(extended_resource.to_card(resource))
        except WireError as e:
            meta = resource.metadata
            problems.append(
                inspect.Problem(
                    kind=extended_resource.KIND,
                    namespace="",
                    name=meta.name,
                    uid=meta.uid,
                    node=resource.spec.node_name,
                    reason=str(e),
                )
            )
    return sorted(found, key=lambda c: (c[0], c[1].index, c[1].uuid))


def _sick(resource: ExtendedResource) -> inspect.Problem:
    spec, status, meta = resource.spec, resource.status, resource.metadata
    named = f"card {spec.index} of {spec.node_name}" if spec.type == GPU else f"{spec.type} {spec.device_id}"
    return inspect.Problem(
        kind=extended_resource.KIND,
        namespace="",
        name=meta.name,
        uid=meta.uid,
        node=spec.node_name,
        reason=f"{named} is unhealthy{_why(status)}",
    )


def _why(status: ExtendedResourceStatus) -> str:
    """Since when and why, as far as known: agents of earlier versions report nothing more than the phase."""
    since = f" since {status.last_transition_time}" if status.last_transition_time else ""
    reason = f" ({status.reason}): {status.message}" if status.reason else ""
    until = f"; back at {status.returns_at} if nothing else happens" if status.returns_at else ""
    return f"{since}{reason}{until}"


def _handlers(
    *,
    ledger: Ledger,
    waiting: WaitingPods,
    unit: MemoryUnit,
    dialects: frozenset[str],
    problems: list[inspect.Problem],
) -> PodHandlers:
    def warn(pod: Pod, _reason: str, message: str) -> None:
        problems.append(_pod_problem(pod, message.removeprefix(_UNBELIEVED)))

    def moving(pod: Pod) -> None:
        if placement.CHOICE_ANNOTATION in (pod.metadata.annotations or {}):
            problems.append(
                _pod_problem(
                    pod, "kubelet chose other cards than planned; it starts when the control plane has confirmed them"
                )
            )

    return PodHandlers(
        ledger=ledger,
        waiting=waiting,
        unit=unit,
        warn=warn,
        freed=lambda node: None,
        needs_repair=moving,
        dialects=dialects,
    )


def _unenforced(pods: Iterable[Pod]) -> list[inspect.Problem]:
    """Pods whose limits the agent does not enforce: their neighbours may get less than they asked for."""
    found: list[inspect.Problem] = []
    for pod in pods:
        state = (pod.metadata.annotations or {}).get(isolation.STATE)
        if state is not None and not pod.finished:
            found.append(_pod_problem(pod, f"its limits are not enforced: {isolation.reason(state)}"))
    return found


def _lost_cards(ledger: Ledger, known: set[CardUUID], pods: Iterable[Pod]) -> list[inspect.Problem]:
    """Pods that hold cards which no node reports: their memory is in no sum."""
    found: list[inspect.Problem] = []
    for pod in pods:
        entry = ledger.entry(PodUID(pod.metadata.uid))
        lost = [c.card for c in entry.charges if c.card not in known] if entry else []
        if lost:
            found.append(_pod_problem(pod, f"holds {', '.join(lost)}, which no node reports"))
    return found


def _pod_problem(pod: Pod, reason: str) -> inspect.Problem:
    meta = pod.metadata
    return inspect.Problem(
        kind="Pod", namespace=meta.namespace, name=meta.name, uid=meta.uid, node=pod.spec.node_name, reason=reason
    )


def _holders(ledger: Ledger, pods: Iterable[Pod]) -> dict[CardUUID, list[inspect.CardHolder]]:
    found: dict[CardUUID, list[inspect.CardHolder]] = {}
    for pod in sorted(pods, key=lambda p: (p.metadata.namespace, p.metadata.name)):
        entry = ledger.entry(PodUID(pod.metadata.uid))
        if entry is not None:
            for charge in entry.charges:
                found.setdefault(charge.card, []).append(_holder(pod, entry, charge))
    return found


def _add_departed(
    holders: dict[CardUUID, list[inspect.CardHolder]], resources: Iterable[ExtendedResource], known: set[CardUUID]
) -> None:
    """Add deleted pods whose processes still hold cards."""
    for resource in resources:
        card = CardUUID(resource.spec.device_id)
        gone = departed.departed(resource) if card in known else ()
        for key in sorted({(d.namespace, d.pod) for d in gone}):
            own = [d for d in gone if (d.namespace, d.pod) == key]
            holders.setdefault(card, []).append(_departed_holder(*key, own))


def _departed_holder(namespace: str, pod: str, parts: Sequence[departed.DepartedContainer]) -> inspect.CardHolder:
    return inspect.CardHolder(
        namespace=namespace,
        name=pod,
        uid="",
        phase=departed.PHASE,
        memory_mib=sum(d.memory for d in parts),
        cores_percent=sum(d.cores for d in parts),
        containers=tuple(
            inspect.ContainerShare(name=d.container, role="", memory_mib=d.memory, cores_percent=d.cores) for d in parts
        ),
    )


def _holder(pod: Pod, entry: Entry, charge: Charge) -> inspect.CardHolder:
    meta = pod.metadata
    return inspect.CardHolder(
        namespace=meta.namespace,
        name=meta.name,
        uid=meta.uid,
        phase=pod.status.phase,
        memory_mib=charge.memory,
        cores_percent=charge.cores,
        containers=tuple(
            inspect.ContainerShare(name=c.container, role=c.role.value, memory_mib=s.memory, cores_percent=s.cores)
            for c in entry.placement.containers
            for s in c.slices
            if s.card == charge.card
        ),
    )


def _nodes(
    cards: Iterable[tuple[NodeName, Card]], holders: dict[CardUUID, list[inspect.CardHolder]]
) -> tuple[inspect.NodeReport, ...]:
    by_node: dict[NodeName, list[inspect.CardReport]] = {}
    for node, card in cards:
        by_node.setdefault(node, []).append(_card(card, holders.get(card.uuid, [])))
    return tuple(
        inspect.NodeReport(name=node, totals=_sum(reports), cards=tuple(reports)) for node, reports in by_node.items()
    )


def _card(card: Card, pods: list[inspect.CardHolder]) -> inspect.CardReport:
    allocated = sum(p.memory_mib for p in pods)
    return inspect.CardReport(
        uuid=card.uuid,
        index=card.index,
        model=card.model,
        pci_bus_id=card.pci_bus_id,
        healthy=card.healthy,
        memory_mib=card.memory,
        allocated_mib=allocated,
        free_mib=max(0, card.memory - allocated) if card.healthy else 0,
        allocated_percent=_percent(allocated, card.memory),
        allocated_cores_percent=sum(p.cores_percent for p in pods),
        pods=tuple(pods),
    )


def _sum(cards: Iterable[inspect.CardReport]) -> inspect.Amounts:
    count = memory = allocated = free = 0
    for card in cards:
        count += 1
        memory += card.memory_mib
        allocated += card.allocated_mib
        free += card.free_mib
    return inspect.Amounts(
        cards=count,
        memory_mib=memory,
        allocated_mib=allocated,
        free_mib=free,
        allocated_percent=_percent(allocated, memory),
    )


def _percent(part: int, whole: int) -> float:
    return round(100 * part / whole, 1) if whole > 0 else 0.0


def _waiting(pod: WaitingPod) -> inspect.WaitingPodReport:
    request = pod.request
    refused = isinstance(request, Refusal)
    return inspect.WaitingPodReport(
        namespace=pod.namespace,
        name=pod.name,
        uid=pod.uid,
        created=pod.created,
        requests=() if refused else tuple(asked(c) for c in request.containers),
        refusal=request.message if refused else "",
    )


def asked(container: ContainerRequest) -> inspect.WaitingContainer:
    """What one container asks for, in the form of the reports."""
    return inspect.WaitingContainer(
        container=container.container,
        role=container.role.value,
        resource=container.resource,
        amount=container.amount,
        count=container.request.count,
        memory_mib=container.request.memory,
        exclusive=container.request.exclusive,
        cores_percent=container.request.cores,
        memory_percent=container.request.memory_percent,
        device_class=container.request.device_class,
    )
