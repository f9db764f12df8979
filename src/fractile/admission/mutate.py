"""Compute the smallest patch that lets a new pod be scheduled. Pure and idempotent.

    bare name of a class ──> class.fractile.dev/NAME ──> the slots of its devices ──> defaults ──> scheduler

Each step sees the result of the one before it. A container that asks for nothing of ours is left alone.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import msgspec

from fractile.admission.amounts import MAPS, ContainerAmounts
from fractile.admission.names import HAMI_AMOUNTS, QUOTA_PREFIX, ClassNames, is_bare, slot_of, translated
from fractile.dialects import nvidia
from fractile.dialects.bounds import MOST_CONTAINERS, MOST_NAMES, names_too_many
from fractile.dialects.table import RESOURCES
from fractile.errors import WireError
from fractile.model.words import quoted
from fractile.wire.fractile.resource_class import DEVICE_SLOT, GPU_SLOT, RESOURCE_PREFIX, class_of
from fractile.wire.kubernetes.admission import Op, ReviewedQuota, pointer
from fractile.wire.kubernetes.objects import Container, Pod, ResourceRequirements
from fractile.wire.quantity import whole_number

DEFAULT_SCHEDULER = "default-scheduler"  # what the API server writes when a pod names none

_LONGEST_QUANTITY = 64  # characters
_LISTS = (("initContainers", "init_containers"), ("containers", "containers"))  # the JSON name, and that in our struct


class Mutation(msgspec.Struct, frozen=True):
    """The steps, and warnings for the sender of the object. With a ``refusal`` there are no steps."""

    ops: tuple[Op, ...] = ()
    warnings: tuple[str, ...] = ()
    refusal: str = ""


def mutate_pod(
    pod: Pod, classes: ClassNames, *, resources: frozenset[str] = RESOURCES, scheduler: str = "", gate: str = ""
) -> Mutation:
    """The patch for a pod. ``resources``: those of the families that are served. ``scheduler``: for pods with devices
    that name none; "" changes nothing. ``gate``: a scheduling gate for pods that have none."""
    ops: list[Op] = []
    warnings: list[str] = []
    asks = False
    known = resources | {GPU_SLOT, DEVICE_SLOT}
    found = _concerned(pod, lambda names: _any_ours(names, known) or _any_bare(names, classes))
    if isinstance(found, str):
        return Mutation(refusal=found)
    for *place, container in found:
        amounts = _amounts(container)
        told, refusal = _complete(container, amounts, classes, resources)
        if refusal:
            return Mutation(refusal=refusal)
        ops += amounts.ops("spec", *place, "resources")
        warnings += told
        asks = asks or any(_is_ours(name, resources) for name in amounts.names())
    if asks and scheduler and pod.spec.scheduler_name in ("", DEFAULT_SCHEDULER) and scheduler != DEFAULT_SCHEDULER:
        ops.append(Op("add", pointer("spec", "schedulerName"), scheduler))
    if asks and gate and not (pod.spec.scheduling_gates or pod.spec.node_name):
        ops.append(Op("add", pointer("spec", "schedulingGates"), [{"name": gate}]))
    return Mutation(tuple(ops), tuple(warnings))


def mutate_template(pod: Pod, classes: ClassNames, path: Sequence[str]) -> Mutation:
    """The patch for a template: only bare names, which the API server would refuse, are translated; pods get the
    rest."""
    ops: list[Op] = []
    warnings: list[str] = []
    found = _concerned(pod, lambda names: _any_bare(names, classes))
    if isinstance(found, str):
        return Mutation(refusal=found)
    for *place, container in found:
        amounts = _amounts(container)
        warnings += _translate(container, amounts, classes)
        ops += amounts.ops(*path, *place, "resources")
    return Mutation(tuple(ops), tuple(warnings))


def mutate_quota(quota: ReviewedQuota, classes: ClassNames) -> Mutation:
    """The patch for a quota. Quotas of Caicloud's design limit a class by its bare name
    (evidence/resource-class.md#objects); Kubernetes counts requests of resources with a domain."""
    hard = quota.spec.hard or {}
    ops: list[Op] = []
    for name, value in hard.items():
        to = translated(name.removeprefix(QUOTA_PREFIX), classes)
        if to is not None:
            ops += [
                Op("remove", pointer("spec", "hard", name)),
                Op("add", pointer("spec", "hard", f"{QUOTA_PREFIX}{to}"), value),
            ]
    return Mutation(tuple(ops))


def needs_classes(pod: Pod) -> bool:
    """Whether the pod cannot be mutated before the classes are known."""
    return any(
        is_bare(name) or class_of(name) is not None
        for *_, container in _containers(pod)
        for names in _maps(container)
        for name in names
    )


def _concerned(pod: Pod, ours: Callable[[Mapping[str, Any]], bool]) -> list[tuple[str, int, Container]] | str:
    """The containers that have a name of ours, or why there are too many: a review may hold as many containers and
    names as fit into seven megabytes."""
    asking = (c for c in _containers(pod) if any(map(ours, _maps(c[2]))))
    found = list(islice(asking, MOST_CONTAINERS + 1))
    if len(found) > MOST_CONTAINERS:
        return f"more than {MOST_CONTAINERS} containers ask for devices; that is the most that a pod may have"
    for *_, container in found:
        most = max(map(len, _maps(container)))
        if most > MOST_NAMES:
            return names_too_many(container.name, most)
    return [c for c in found if all(_short(v) for names in _maps(c[2]) for v in names.values())]


def _short(value: Any) -> bool:
    """Whether it may be a quantity; anything else is left for the API server to refuse and never quoted."""
    return len(value) <= _LONGEST_QUANTITY if isinstance(value, str) else isinstance(value, int | float)


def _any_bare(names: Iterable[str], classes: ClassNames) -> bool:
    return any("/" not in name and translated(name, classes) is not None for name in names)


def _containers(pod: Pod) -> Iterator[tuple[str, int, Container]]:
    for name, attribute in _LISTS:
        for index, container in enumerate(getattr(pod.spec, attribute) or ()):
            if container.resources is not None:
                yield name, index, container


def _maps(container: Container) -> tuple[dict[str, Any], dict[str, Any]]:
    resources = container.resources or ResourceRequirements()
    return resources.limits or {}, resources.requests or {}


def _amounts(container: Container) -> ContainerAmounts:
    given = ((name, getattr(container.resources, name, None)) for name in MAPS)
    return ContainerAmounts({name: amounts for name, amounts in given if amounts is not None})


def _is_ours(name: str, resources: frozenset[str]) -> bool:
    return name in resources or name in (GPU_SLOT, DEVICE_SLOT) or class_of(name) is not None


def _any_ours(names: Iterable[str], known: frozenset[str]) -> bool:
    return not known.isdisjoint(names) or any(name.startswith(RESOURCE_PREFIX) for name in names)


def _complete(
    container: Container, amounts: ContainerAmounts, classes: ClassNames, resources: frozenset[str]
) -> tuple[list[str], str]:
    """Apply all steps to one container; returns warnings, and a refusal or ""."""
    told = _translate(container, amounts, classes)
    named = [name for name in amounts.names() if class_of(name) is not None]
    refusal = _two_of_a_kind(container, named, classes)
    if refusal:
        return [], refusal
    for name in named:
        told += _slots(container, amounts, name, classes)
    if nvidia.GPU in resources:
        _one_card(amounts)
    for name in amounts.names():
        if _is_ours(name, resources):
            amounts.request_what_is_limited(name)
    return told, ""


def _translate(container: Container, amounts: ContainerAmounts, classes: ClassNames) -> list[str]:
    """Replace bare names by those of classes. If a bare name is written again, as ``kubectl apply`` does with a
    manifest that was translated before, its new amount counts."""
    told: list[str] = []
    for name in amounts.names():
        to = translated(name, classes)
        if to is None:
            continue
        other = amounts.rename(name, to)
        if other is not None:
            told.append(f"container {container.name[:63]}: {name} replaces {to}, which was {_shown(other)}")
    return told


def _two_of_a_kind(container: Container, named: list[str], classes: ClassNames) -> str:
    """The refusal of two classes of one kind in a container, which cannot work since ids of a slot do not tell the
    class."""
    of_slot: dict[str, str] = {}
    for name in named:
        other = of_slot.setdefault(slot_of(classes.find(class_of(name) or "")), name)
        if other != name:
            return (
                f"container {container.name[:63]} asks for {quoted(other)} and {quoted(name)}; a container can have "
                "devices of one class of each kind; use a class that admits both, or another container"
            )
    return ""


def _slots(container: Container, amounts: ContainerAmounts, name: str, classes: ClassNames) -> list[str]:
    """Add as many slots as the units have devices. Amounts that are not whole numbers are left to the API server."""
    found = classes.find(class_of(name) or "")
    try:
        units = whole_number(amounts.value(name))
    except WireError:
        return []
    slots = str(units * (found.count if found is not None else 1))
    other = amounts.beside(name, slot_of(found), slots)
    if other is None:
        return []
    return [f"container {container.name[:63]} needs {slots} {slot_of(found)} for {units} {name}, not {_shown(other)}"]


def _one_card(amounts: ContainerAmounts) -> None:
    """Add ``nvidia.com/gpu: 1`` as HAMi does: memory or cores without a number of cards mean one card."""
    asked = [name for name in HAMI_AMOUNTS if _positive(amounts.value(name))]
    if asked and amounts.value(nvidia.GPU) is None:
        amounts.beside(asked[0], nvidia.GPU, "1")


def _positive(value: Any) -> bool:
    try:
        return value is not None and whole_number(value) > 0
    except WireError:
        return False


def _shown(value: object) -> str:
    return str(value)[:40]
