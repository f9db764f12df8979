"""The table of dialects, and the functions that cover all of them."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

from fractile.dialects.aliyun import Aliyun
from fractile.dialects.bounds import too_many_containers, too_many_names, too_many_parts, too_many_to_start
from fractile.dialects.classes import ClassDialect
from fractile.dialects.dialect import Advertised, ContainerResponse, Dialect, Facts, ParsedRequest, ResourceKind
from fractile.dialects.nvidia import SLOTS, NvidiaDialect
from fractile.dialects.tencent import Tencent
from fractile.dialects.wishes import NONE as NOTHING_SAID
from fractile.dialects.wishes import Wishes
from fractile.errors import SetupError, WireError
from fractile.model.card import GPU, Card
from fractile.model.placement import Placement, Slice
from fractile.model.refusal import Code, Refusal
from fractile.model.request import ContainerRequest, PodRequest, Role
from fractile.model.units import CardUUID, ContainerName, MemoryUnit, PodUID
from fractile.model.words import quoted
from fractile.wire.fractile import placement as placement_wire
from fractile.wire.fractile.device_ids import MAX_PER_RESOURCE
from fractile.wire.fractile.resource_class import DEVICE_SLOT, GPU_SLOT, RESOURCE_PREFIX, class_of
from fractile.wire.kubernetes.objects import Container, Pod, ResourceRequirements
from fractile.wire.quantity import whole_number

_CLASSES = ClassDialect()
DIALECTS: tuple[Dialect, ...] = (Aliyun(), Tencent(), NvidiaDialect(), _CLASSES)
NAMES = frozenset(dialect.name for dialect in DIALECTS)

_OWNER: dict[str, Dialect] = {resource: dialect for dialect in DIALECTS for resource in dialect.resources}
RESOURCES = frozenset(_OWNER)
_SLOTS = frozenset(_CLASSES.resources)
NONE: frozenset[str] = frozenset()

_WISHES = frozenset(key for dialect in DIALECTS for key in dialect.wishes)
_ALIKE = 4096  # containers in the cache
_SMALL = 16  # most resources of a cached container; hand-written ones have fewer
_SHORT = 1024  # most characters of all its names and amounts


def kind(resource: str) -> ResourceKind:
    """How kubelet and kube-scheduler treat a resource of ours."""
    return _OWNER[resource].resources[resource]


def owner(resource: str) -> Dialect | None:
    """The dialect that owns the name, by the table or as the name of a class; None when it is not ours."""
    return _OWNER.get(resource) or (_CLASSES if resource.startswith(RESOURCE_PREFIX) else None)


def _is_ours(resource: str) -> bool:
    return owner(resource) is not None


def managed() -> dict[str, ResourceKind]:
    """The ``managedResources`` of kube-scheduler's configuration, in a stable order. It must leave resources without
    device ids to the extender (``ignoredByScheduler``), since no node has them."""
    return {resource: dialect.resources[resource] for dialect in DIALECTS for resource in dialect.resources}


def names_ours(pod: Pod) -> bool:
    """Whether any of the pod's containers names a resource of ours, in any amount: kube-scheduler then calls the
    extender for the pod and leaves its Binding to us (evidence/kube-scheduler.md#managed-resources)."""
    spec = pod.spec
    return any(
        owner(resource) is not None
        for container in (*(spec.init_containers or ()), *(spec.containers or ()))
        if container.resources is not None
        for amounts in (container.resources.requests, container.resources.limits)
        for resource in amounts or ()
    )


def parse_pod(pod: Pod, unit: MemoryUnit, dialects: Collection[str] = NAMES) -> PodRequest | Refusal | None:
    """What the pod asks for; None when no dialect claims it; a Refusal when the request makes no sense.

    Containers that ask through a dialect outside ``dialects`` are ignored, unless the pod is bound and its placement
    names them: what was allocated stays allocated. Annotations can be edited at any time. Invalid annotations of a
    bound pod are ignored, or an edit would free its cards.
    """
    annotations = pod.metadata.annotations or {}
    said = _Said(annotations)
    off = frozenset(r for r, d in _OWNER.items() if d.name not in dialects) if len(dialects) < len(NAMES) else NONE
    kept = _placed(annotations) if off and pod.spec.node_name else NONE
    parsed = _parse(pod, unit, said, off=off, kept=kept)
    bound = isinstance(parsed, Refusal) and pod.spec.node_name
    return _parse(pod, unit, _Said({}), off=off, kept=kept) if bound else parsed


class _Said:
    """The wishes of one pod; each family reads them once, when the first container asks through it."""

    def __init__(self, annotations: Mapping[str, str]) -> None:
        self._annotations = annotations
        self._read: dict[str, Wishes | Refusal] = {}
        self.nothing = _WISHES.isdisjoint(annotations)

    def to(self, dialect: Dialect) -> Wishes | Refusal:
        if self.nothing:
            return NOTHING_SAID
        if dialect.name not in self._read:
            self._read[dialect.name] = dialect.read(self._annotations)
        return self._read[dialect.name]


_SILENT = _Said({})


def _placed(annotations: Mapping[str, str]) -> frozenset[str]:
    try:
        return frozenset(c.container for c in placement_wire.decode(annotations[placement_wire.ANNOTATION]).containers)
    except (KeyError, WireError):
        return NONE


def _parse(
    pod: Pod, unit: MemoryUnit, said: _Said, *, off: frozenset[str], kept: frozenset[str]
) -> PodRequest | Refusal | None:
    found: list[ContainerRequest] = []
    plain = not off and said.nothing
    ours = RESOURCES - off
    bound = bool(pod.spec.node_name)
    for role, index, container in _with_resources(pod):
        kept_one = container.name in kept
        if not asks_for(container, RESOURCES if kept_one else ours):
            continue
        refusal = too_many_names(container, bound=bound, ours=_is_ours)
        if refusal is not None:
            return refusal
        requests = (plain and _known(container, role, index, unit)) or _requests(
            container, role, index, unit=unit, said=said, off=NONE if kept_one else off
        )
        if isinstance(requests, Refusal):
            return requests
        found += requests
        refusal = too_many_containers(found)
        if refusal is not None:
            return refusal
    if not found:
        return None
    return _together(found, bound=bound) or PodRequest(
        PodUID(pod.metadata.uid),
        pod.metadata.namespace,
        pod.metadata.name,
        _OWNER[found[0].resource].name,
        tuple(found),
    )


def _known(
    container: Container, role: Role, index: int, unit: MemoryUnit
) -> tuple[ContainerRequest, ...] | Refusal | None:
    """The cached request of a container, by its resources alone: it is the same for the thousands of pods of a
    workload. None for containers that are too large to cache and for amounts that the API server would not send in this
    form."""
    resources = container.resources
    if resources is None:
        return None
    requests, limits = resources.requests or {}, resources.limits or {}
    if len(requests) + len(limits) > _SMALL:
        return None
    amounts = *requests.values(), *limits.values()
    if any(type(amount) is not str for amount in amounts):  # 1 and True are one key
        return None
    if len(container.name) + sum(map(len, (*requests, *limits, *amounts))) > _SHORT:  # cache entries must be small
        return None
    return _alike(container.name, role, index, unit, tuple(requests.items()), tuple(limits.items()))


_Written = tuple[tuple[str, str], ...]


@lru_cache(maxsize=_ALIKE)
def _alike(
    name: str, role: Role, index: int, unit: MemoryUnit, requests: _Written, limits: _Written
) -> tuple[ContainerRequest, ...] | Refusal:
    written = Container(name=name, resources=ResourceRequirements(limits=dict(limits), requests=dict(requests)))
    return _requests(written, role, index, unit=unit, said=_SILENT, off=NONE)


def _requests(
    container: Container,
    role: Role,
    index: int,
    *,
    unit: MemoryUnit,
    said: _Said,
    off: frozenset[str],
) -> tuple[ContainerRequest, ...] | Refusal:
    """The requests of one container that names resources of ours; empty when it asks for nothing that is served."""
    amounts = _amounts(container)
    if isinstance(amounts, Refusal):
        return amounts
    if not any(n for r, n in amounts.items() if not _is_off(r, off)):
        return ()  # all of ours are zero, which Kubernetes allows; it has no meaning
    asked = _ask(container, amounts, unit, said)
    if isinstance(asked, Refusal):
        return asked
    return tuple(_request(container, role, index, amounts, one) for one in asked)


def _is_off(resource: str, off: frozenset[str]) -> bool:
    return resource in off or (DEVICE_SLOT in off and class_of(resource) is not None)


def _request(
    container: Container, role: Role, index: int, amounts: Mapping[str, int], asked: ParsedRequest
) -> ContainerRequest:
    """The request with those of the container's ``amounts`` that are of its family; classes belong to each request."""
    own = _OWNER[asked.resource]
    mine = (
        (resource, amount)
        for resource, amount in sorted(amounts.items())
        if resource == asked.resource or (owner(resource) is own and resource not in _SLOTS)
    )
    name = ContainerName(container.name)
    return ContainerRequest(name, role, asked.request, asked.resource, asked.amount, tuple(mine), index)


def _together(found: Sequence[ContainerRequest], *, bound: bool) -> Refusal | None:
    refusal = None if bound else too_many_to_start(found) or too_many_parts(found)
    if refusal is not None:
        return refusal
    for dialect in _dialects(found) if len(found) > 1 else ():
        refusal = dialect.together([c for c in found if c.resource in dialect.resources])
        if refusal is not None:
            return refusal
    return None


def containers_in_order(pod: Pod) -> Iterator[tuple[Role, Container]]:
    """All containers in the order in which kubelet admits them, with the role that decides how each counts."""
    for container in pod.spec.init_containers or ():
        yield _role_of_init(container), container
    for container in pod.spec.containers or ():
        yield Role.APP, container


def _role_of_init(container: Container) -> Role:
    return Role.SIDECAR if container.restart_policy == "Always" else Role.INIT


def _with_resources(pod: Pod) -> Iterator[tuple[Role, int, Container]]:
    """The containers with resources, each with its role and its index in its list. Others, which can be very many, are
    skipped."""
    for index, container in enumerate(pod.spec.init_containers or ()):
        if container.resources is not None:
            yield _role_of_init(container), index, container
    for index, container in enumerate(pod.spec.containers or ()):
        if container.resources is not None:
            yield Role.APP, index, container


def asks_for(container: Container, resources: frozenset[str]) -> bool:
    """Whether the container names one of the resources, in any amount, or a class, if ``resources`` has a slot."""
    named = container.resources
    if named is None:
        return False
    requests, limits = named.requests or (), named.limits or ()
    if not (resources.isdisjoint(requests) and resources.isdisjoint(limits)):
        return True
    return not resources.isdisjoint(_SLOTS) and any(
        r.startswith(RESOURCE_PREFIX) for some in (requests, limits) for r in some
    )


def advertised(
    cards: Sequence[Card], unit: MemoryUnit, *, slots: int = SLOTS, dialects: Collection[str] = NAMES
) -> tuple[Advertised, ...]:
    """Everything a node with these cards reports; SetupError when kubelet could not take that many ids."""
    gpus = [c for c in cards if c.type == GPU]  # the only devices that the other families know
    served = (d for d in DIALECTS if d.name in dialects)
    resources = tuple(a for d in served for a in d.advertise(cards if d is _CLASSES else gpus, unit, slots))
    for resource in resources:
        if resource.total > MAX_PER_RESOURCE:
            raise SetupError(_too_many(resource, cards, unit))
    return resources


def ids_wanted(resource: str, asked: ContainerRequest, slices: Sequence[Slice]) -> dict[CardUUID, int]:
    """How many of the resource's ids of each card stand for these slices of the container."""
    return _OWNER[resource].ids_wanted(resource, asked, slices)


def slices_held(
    asked: ContainerRequest, held: Mapping[CardUUID, int], cards: Sequence[Card], given: Sequence[Slice] = ()
) -> tuple[Slice, ...]:
    """The slices that the held ids of the container's primary resource stand for; ``given``: those of its placement."""
    return _OWNER[asked.resource].slices_held(asked, held, cards, given)


def torn(resource: str, held: Mapping[CardUUID, int]) -> bool:
    """Whether these ids of a primary resource are of no use to any container."""
    return _OWNER[resource].torn(resource, held)


def container_answer(
    resource: str, held: Mapping[CardUUID, int], *, cards: Sequence[Card], unit: MemoryUnit, facts: Facts
) -> ContainerResponse:
    """What a container that holds these ids of a primary resource gets besides its mounts."""
    return _OWNER[resource].answer(resource, held, cards=cards, unit=unit, facts=facts)


def placement_annotations(
    request: PodRequest, placement: Placement, *, cards: Sequence[Card], unit: MemoryUnit, now_ns: int
) -> dict[str, str]:
    """The annotations that the dialects' own tools expect on the bound pod, besides ``fractile.dev/placement``."""
    return {
        key: value
        for dialect in _dialects(request.containers)
        for key, value in dialect.annotate(request, placement, cards=cards, unit=unit, now_ns=now_ns).items()
    }


def assigned_annotations(request: PodRequest) -> dict[str, str]:
    """The annotations that the agent adds once the containers hold their cards."""
    return {key: value for dialect in _dialects(request.containers) for key, value in dialect.assigned(request).items()}


def _dialects(containers: Sequence[ContainerRequest]) -> list[Dialect]:
    used = {_OWNER[c.resource].name for c in containers}
    return [dialect for dialect in DIALECTS if dialect.name in used]


def _amounts(container: Container) -> dict[str, int] | Refusal:
    """The container's amounts of our resources: positive ones, and zeros of resources without device ids."""
    resources = container.resources
    if resources is None:
        return {}
    amounts: dict[str, int] = {}
    for source in (resources.requests, resources.limits):
        for resource, value in (source or {}).items():
            if owner(resource) is None:
                continue
            amount = _amount(container, resource, value)
            if isinstance(amount, Refusal):
                return amount
            if amounts.setdefault(resource, amount) != amount:
                return _malformed(container, f"asks for {resource} with a limit that differs from its request")
    return {resource: amount for resource, amount in amounts.items() if amount or _is_amount(resource)}


def _is_amount(resource: str) -> bool:
    return resource in _OWNER and kind(resource) is ResourceKind.AMOUNT


def _amount(container: Container, resource: str, value: Any) -> int | Refusal:
    try:
        return whole_number(value)
    except WireError as e:
        return _malformed(container, f"asks for {resource}: {e}")


def _ask(container: Container, amounts: dict[str, int], unit: MemoryUnit, said: _Said) -> list[ParsedRequest] | Refusal:
    """What the container asks for: GPUs, other devices, or both."""
    gpus, others = _by_kind(amounts)
    families = {_family(resource).name for resource, amount in gpus.items() if amount}
    if len(families) > 1:
        wanted = sorted(resource for resource, amount in gpus.items() if amount)
        return _malformed(container, f"asks for {' and '.join(wanted)}; use the names of one family only")
    found: list[ParsedRequest] = []
    for mine in filter(None, (gpus if families else {}, others)):
        dialect = _family(next(resource for resource, amount in mine.items() if amount))
        own = {resource: amount for resource, amount in mine.items() if owner(resource) is dialect}
        wishes = said.to(dialect)
        if isinstance(wishes, Refusal):
            return wishes
        asked = dialect.ask(own, unit=unit, wishes=wishes)
        if isinstance(asked, Refusal):
            return _malformed(container, asked.message)
        found.append(asked)
    return found


def _by_kind(amounts: Mapping[str, int]) -> tuple[dict[str, int], dict[str, int]]:
    """Split the amounts into those for GPUs and those for other devices. Classes go with the slots that the container
    names; if it names both kinds, each class may mean either."""
    if DEVICE_SLOT not in amounts:
        return dict(amounts), {}
    classes = {r: n for r, n in amounts.items() if class_of(r) is not None}
    gpus = {r: n for r, n in amounts.items() if r != DEVICE_SLOT and (r not in classes or GPU_SLOT in amounts)}
    return gpus, {DEVICE_SLOT: amounts[DEVICE_SLOT]} | classes


def _family(resource: str) -> Dialect:
    found = owner(resource)
    assert found is not None, resource
    return found


def _malformed(container: Container, what: str) -> Refusal:
    return Refusal(Code.MALFORMED, f"container {quoted(container.name)} {what}")


def _too_many(resource: Advertised, cards: Sequence[Card], unit: MemoryUnit) -> str:
    if resource.resource in _SLOTS:
        return (
            f"{resource.resource} needs {resource.total} device ids on this node, kubelet takes at most "
            f"{MAX_PER_RESOURCE}; let fewer pods share each device"
        )
    fits = (
        f"start the cluster's agents with --memory-unit {larger.name}"
        for larger in MemoryUnit
        if larger > unit and sum(c.memory // larger for c in cards) <= MAX_PER_RESOURCE
    )
    return (
        f"{resource.resource} in {unit.name} needs {resource.total} device ids on this node, kubelet takes at most "
        f"{MAX_PER_RESOURCE}; {next(fits, 'no larger unit fits either')}"
    )
