"""The table of dialects, and what the rest of Fractile asks of all of them together."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from fractile.dialects.aliyun import Aliyun
from fractile.dialects.dialect import Advertised, Answer, Asked, Dialect, Facts, Kind
from fractile.dialects.nvidia import SLOTS, Nvidia
from fractile.dialects.tencent import Tencent
from fractile.errors import SetupError, WireError
from fractile.model.card import Card
from fractile.model.placement import Placement, Slice
from fractile.model.refusal import Code, Refusal
from fractile.model.request import ContainerRequest, PodRequest, Role
from fractile.model.units import CardUUID, ContainerName, MemoryUnit, PodUID
from fractile.wire import placement as placement_wire
from fractile.wire.devices import MAX_PER_RESOURCE
from fractile.wire.objects import Container, Pod
from fractile.wire.placement import MAX_CONTAINERS
from fractile.wire.quantity import whole_number

DIALECTS: tuple[Dialect, ...] = (Aliyun(), Tencent(), Nvidia())
NAMES = frozenset(dialect.name for dialect in DIALECTS)

_OWNER: dict[str, Dialect] = {resource: dialect for dialect in DIALECTS for resource in dialect.resources}
RESOURCES = frozenset(_OWNER)
NONE: frozenset[str] = frozenset()


def kind(resource: str) -> Kind:
    """What a resource of ours is to kubelet and kube-scheduler."""
    return _OWNER[resource].resources[resource]


def managed() -> dict[str, Kind]:
    """What kube-scheduler asks the extender about, in a stable order: the ``managedResources`` of its configuration.
    It must leave resources without device ids to the extender (``ignoredByScheduler``), since no node has them."""
    return {resource: dialect.resources[resource] for dialect in DIALECTS for resource in dialect.resources}


def parse_pod(pod: Pod, unit: MemoryUnit, dialects: Collection[str] = NAMES) -> PodRequest | Refusal | None:
    """What the pod asks for; None when no dialect claims it; a Refusal when the request makes no sense.

    Containers that ask through a dialect which is not among ``dialects`` are somebody else's, unless the pod is bound
    and its placement names them: what was given stays given. Annotations can be edited at any time. Those of a pod that
    is bound already cannot unmake its request, or an edit would free its cards: if they make no sense they say nothing.
    """
    annotations = pod.metadata.annotations or {}
    off = frozenset(r for r, d in _OWNER.items() if d.name not in dialects) if len(dialects) < len(NAMES) else NONE
    kept = _placed(annotations) if off and pod.spec.node_name else NONE
    parsed = _parse(pod, unit, annotations, off=off, kept=kept)
    bound = isinstance(parsed, Refusal) and pod.spec.node_name
    return _parse(pod, unit, {}, off=off, kept=kept) if bound else parsed


def _placed(annotations: Mapping[str, str]) -> frozenset[str]:
    try:
        return frozenset(c.container for c in placement_wire.decode(annotations[placement_wire.ANNOTATION]).containers)
    except (KeyError, WireError):
        return NONE


def _parse(
    pod: Pod, unit: MemoryUnit, annotations: Mapping[str, str], *, off: frozenset[str], kept: frozenset[str]
) -> PodRequest | Refusal | None:
    found: list[ContainerRequest] = []
    ours = RESOURCES - off
    for role, index, container in _numbered(pod):
        if not asks_for(container, RESOURCES if container.name in kept else ours):
            continue
        amounts = _amounts(container)
        if isinstance(amounts, Refusal):
            return amounts
        if not any(amounts[r] for r in (amounts if container.name in kept else amounts.keys() - off)):
            continue  # all of ours are zero, which Kubernetes allows and means nothing
        asked = _ask(container, amounts, unit, annotations)
        if isinstance(asked, Refusal):
            return asked
        found.append(
            ContainerRequest(
                ContainerName(container.name),
                role,
                asked.request,
                asked.resource,
                asked.amount,
                tuple(sorted(amounts.items())),
                index,
            )
        )
    if not found:
        return None
    return _together(found) or PodRequest(
        PodUID(pod.metadata.uid),
        pod.metadata.namespace,
        pod.metadata.name,
        _OWNER[found[0].resource].name,
        tuple(found),
    )


def _together(found: Sequence[ContainerRequest]) -> Refusal | None:
    if len(found) > MAX_CONTAINERS:
        return Refusal(
            Code.MALFORMED, f"asks for GPUs in {len(found)} containers; a placement names at most {MAX_CONTAINERS}"
        )
    for dialect in _dialects(found):
        refusal = dialect.together([c for c in found if c.resource in dialect.resources])
        if refusal is not None:
            return refusal
    return None


def containers_in_order(pod: Pod) -> Iterator[tuple[Role, Container]]:
    """All containers in the order in which kubelet admits them, with the role that decides how they count."""
    for role, _, container in _numbered(pod):
        yield role, container


def _numbered(pod: Pod) -> Iterator[tuple[Role, int, Container]]:
    for index, container in enumerate(pod.spec.init_containers or ()):
        yield (Role.SIDECAR if container.restart_policy == "Always" else Role.INIT), index, container
    for index, container in enumerate(pod.spec.containers or ()):
        yield Role.APP, index, container


def asks_for(container: Container, resources: frozenset[str]) -> bool:
    """Whether the container names one of the resources, in whatever amount."""
    named = container.resources
    return named is not None and not (
        resources.isdisjoint(named.requests or ()) and resources.isdisjoint(named.limits or ())
    )


def advertised(
    cards: Sequence[Card], unit: MemoryUnit, *, slots: int = SLOTS, dialects: Collection[str] = NAMES
) -> tuple[Advertised, ...]:
    """Everything a node with these cards reports; SetupError when kubelet could not take that many ids."""
    resources = tuple(a for d in DIALECTS if d.name in dialects for a in d.advertise(cards, unit, slots))
    for resource in resources:
        if resource.total > MAX_PER_RESOURCE:
            raise SetupError(_too_many(resource, cards, unit))
    return resources


def ids_wanted(resource: str, asked: ContainerRequest, slices: Sequence[Slice]) -> dict[CardUUID, int]:
    """How many ids of the resource, of each card, stand for these slices of the container."""
    return _OWNER[resource].ids_wanted(resource, asked, slices)


def slices_held(asked: ContainerRequest, held: Mapping[CardUUID, int], cards: Sequence[Card]) -> tuple[Slice, ...]:
    """The slices that so many ids of the container's primary resource stand for."""
    return _OWNER[asked.resource].slices_held(asked, held, cards)


def container_answer(
    resource: str, held: Mapping[CardUUID, int], *, cards: Sequence[Card], unit: MemoryUnit, facts: Facts
) -> Answer:
    """What a container that holds these ids of a primary resource gets besides its mounts."""
    return _OWNER[resource].answer(resource, held, cards=cards, unit=unit, facts=facts)


def placement_annotations(
    request: PodRequest, placement: Placement, *, cards: Sequence[Card], unit: MemoryUnit, now_ns: int
) -> dict[str, str]:
    """What the dialects' own tools expect on the bound pod, beside ``fractile.dev/placement``."""
    return {
        key: value
        for dialect in _dialects(request.containers)
        for key, value in dialect.annotate(request, placement, cards=cards, unit=unit, now_ns=now_ns).items()
    }


def assigned_annotations(request: PodRequest) -> dict[str, str]:
    """What the agent adds once the containers hold their cards."""
    return {key: value for dialect in _dialects(request.containers) for key, value in dialect.assigned(request).items()}


def _dialects(containers: Sequence[ContainerRequest]) -> list[Dialect]:
    used = {_OWNER[c.resource].name for c in containers}
    return [dialect for dialect in DIALECTS if dialect.name in used]


def _amounts(container: Container) -> dict[str, int] | Refusal:
    """The container's amounts of all resources of ours that are positive; zeros where there are no device ids."""
    resources = container.resources
    if resources is None:
        return {}
    amounts: dict[str, int] = {}
    for source in (resources.requests, resources.limits):
        for resource, value in (source or {}).items():
            if resource not in _OWNER:
                continue
            amount = _amount(container, resource, value)
            if isinstance(amount, Refusal):
                return amount
            if amounts.setdefault(resource, amount) != amount:
                return _malformed(container, f"asks for {resource} with a limit that differs from its request")
    return {resource: amount for resource, amount in amounts.items() if amount or kind(resource) is Kind.AMOUNT}


def _amount(container: Container, resource: str, value: Any) -> int | Refusal:
    try:
        return whole_number(value)
    except WireError as e:
        return _malformed(container, f"asks for {resource}: {e}")


def _ask(
    container: Container, amounts: dict[str, int], unit: MemoryUnit, annotations: Mapping[str, str]
) -> Asked | Refusal:
    wanted = [resource for resource, amount in amounts.items() if amount]
    families = {_OWNER[resource].name for resource in wanted}
    if len(families) > 1:
        return _malformed(container, f"asks for {' and '.join(sorted(wanted))}; ask through one family of names only")
    dialect = _OWNER[wanted[0]]
    mine = {resource: amount for resource, amount in amounts.items() if resource in dialect.resources}
    asked = dialect.ask(mine, unit=unit, annotations=annotations)
    return _malformed(container, asked.message) if isinstance(asked, Refusal) else asked


def _malformed(container: Container, what: str) -> Refusal:
    return Refusal(Code.MALFORMED, f"container {container.name} {what}")


def _too_many(resource: Advertised, cards: Sequence[Card], unit: MemoryUnit) -> str:
    fits = (
        f"start the cluster's agents with --memory-unit {larger.name}"
        for larger in MemoryUnit
        if larger > unit and sum(c.memory // larger for c in cards) <= MAX_PER_RESOURCE
    )
    return (
        f"{resource.resource} in {unit.name} needs {resource.total} device ids on this node, kubelet takes at most "
        f"{MAX_PER_RESOURCE}; {next(fits, 'no larger unit fits either')}"
    )
