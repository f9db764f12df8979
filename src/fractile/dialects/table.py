"""The table of dialects, and what the rest of Fractile asks of all of them together."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fractile.dialects.aliyun import Aliyun
from fractile.dialects.dialect import Advertised, Asked, Dialect
from fractile.errors import SetupError, WireError
from fractile.model.card import Card
from fractile.model.placement import Placement
from fractile.model.refusal import Code, Refusal
from fractile.model.request import ContainerRequest, PodRequest, Role
from fractile.model.units import CardUUID, ContainerName, MemoryUnit, PodUID
from fractile.wire.devices import MAX_PER_RESOURCE
from fractile.wire.objects import Container, Pod
from fractile.wire.placement import MAX_CONTAINERS
from fractile.wire.quantity import whole_number

DIALECTS: tuple[Dialect, ...] = (Aliyun(),)

# Families that share cards in other systems. A container that asks through one of them and through one of ours is
# refused: two programs would hand out the same card.
FOREIGN: dict[str, str] = {
    "tencent.com/vcuda-core": "tencent",
    "tencent.com/vcuda-memory": "tencent",
    "nvidia.com/gpu": "nvidia",
    "nvidia.com/gpumem": "nvidia",
    "nvidia.com/gpumem-percentage": "nvidia",
    "nvidia.com/gpucores": "nvidia",
}

_OWNER: dict[str, Dialect] = {resource: dialect for dialect in DIALECTS for resource in dialect.resources}
_FAMILY: dict[str, str] = FOREIGN | {resource: dialect.name for resource, dialect in _OWNER.items()}
RESOURCES = frozenset(_OWNER)


def parse_pod(pod: Pod, unit: MemoryUnit) -> PodRequest | Refusal | None:
    """What the pod asks for; None when no dialect claims it; a Refusal when the request makes no sense."""
    found: list[ContainerRequest] = []
    for role, container in containers_in_order(pod):
        if not asks_for(container, RESOURCES):
            continue
        amounts = _amounts(container)
        if isinstance(amounts, Refusal):
            return amounts
        if not amounts.keys() & RESOURCES:
            continue  # all of ours are zero, which Kubernetes allows and means nothing
        asked = _ask(container, amounts, unit)
        if isinstance(asked, Refusal):
            return asked
        found.append(ContainerRequest(ContainerName(container.name), role, asked.request, asked.resource, asked.amount))
    if not found:
        return None
    if len(found) > MAX_CONTAINERS:
        return Refusal(
            Code.MALFORMED, f"asks for GPUs in {len(found)} containers; a placement names at most {MAX_CONTAINERS}"
        )
    meta = pod.metadata
    dialect = _OWNER[found[0].resource].name
    return PodRequest(PodUID(meta.uid), meta.namespace, meta.name, dialect, tuple(found))


def containers_in_order(pod: Pod) -> Iterator[tuple[Role, Container]]:
    """All containers in the order in which kubelet admits them, with the role that decides how they count."""
    for container in pod.spec.init_containers or ():
        yield (Role.SIDECAR if container.restart_policy == "Always" else Role.INIT), container
    for container in pod.spec.containers or ():
        yield Role.APP, container


def asks_for(container: Container, resources: frozenset[str]) -> bool:
    """Whether the container names one of the resources, in whatever amount."""
    named = container.resources
    return named is not None and not (
        resources.isdisjoint(named.requests or ()) and resources.isdisjoint(named.limits or ())
    )


def advertised(cards: Sequence[Card], unit: MemoryUnit) -> tuple[Advertised, ...]:
    """Everything a node with these cards reports; SetupError when kubelet could not take that many ids."""
    resources = tuple(a for dialect in DIALECTS for a in dialect.advertise(cards, unit))
    for resource in resources:
        if resource.total > MAX_PER_RESOURCE:
            raise SetupError(_too_many(resource, cards, unit))
    return resources


def container_env(
    resource: str, held: Mapping[CardUUID, int], *, cards: Sequence[Card], unit: MemoryUnit, pod_amount: int
) -> dict[str, str]:
    """The environment of a container that holds these ids of the resource."""
    return _OWNER[resource].environment(resource, held, cards=cards, unit=unit, pod_amount=pod_amount)


def placement_annotations(
    request: PodRequest, placement: Placement, *, cards: Sequence[Card], unit: MemoryUnit, now_ns: int
) -> dict[str, str]:
    """What the dialects' own tools expect on the bound pod, beside ``fractile.dev/placement``."""
    return {
        key: value
        for dialect in _dialects(request)
        for key, value in dialect.annotate(request, placement, cards=cards, unit=unit, now_ns=now_ns).items()
    }


def assigned_annotations(request: PodRequest) -> dict[str, str]:
    """What the agent adds once the containers hold their cards."""
    return {key: value for dialect in _dialects(request) for key, value in dialect.assigned(request).items()}


def _dialects(request: PodRequest) -> list[Dialect]:
    used = {_OWNER[c.resource].name for c in request.containers}
    return [dialect for dialect in DIALECTS if dialect.name in used]


def _amounts(container: Container) -> dict[str, int] | Refusal:
    """The container's positive amounts of all resources that some GPU family claims."""
    resources = container.resources
    if resources is None:
        return {}
    amounts: dict[str, int] = {}
    for source in (resources.requests, resources.limits):
        for resource, value in (source or {}).items():
            if resource not in _FAMILY:
                continue
            amount = _amount(container, resource, value)
            if isinstance(amount, Refusal):
                return amount
            if amounts.setdefault(resource, amount) != amount:
                return _malformed(container, f"asks for {resource} with a limit that differs from its request")
    return {resource: amount for resource, amount in amounts.items() if amount}


def _amount(container: Container, resource: str, value: Any) -> int | Refusal:
    try:
        return whole_number(value)
    except WireError as e:
        return _malformed(container, f"asks for {resource}: {e}")


def _ask(container: Container, amounts: dict[str, int], unit: MemoryUnit) -> Asked | Refusal:
    families = {_FAMILY[resource] for resource in amounts}
    if len(families) > 1:
        return _malformed(container, f"asks for {' and '.join(sorted(amounts))}; ask through one family of names only")
    asked = _OWNER[next(iter(amounts))].ask(amounts, unit)
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
