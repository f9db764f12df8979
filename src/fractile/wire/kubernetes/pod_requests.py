"""A pod's requests and limits of every resource, as Kubernetes adds them up.

The maximum of each init container with the sidecars before it, and of all sidecars and containers together. Pod-level
requests replace the sum for CPU, memory and huge pages; the pod's overhead is added. A container with a limit but no
request requests the limit. Source: k8s.io/component-helpers/resource of 1.36 (PodRequests, PodLimits) and the defaults
of the API server. A resize in progress is ignored.
"""

from collections.abc import Callable, Iterable, Mapping
from fractions import Fraction
from functools import lru_cache
from typing import Any

from fractile.errors import WireError
from fractile.wire.kubernetes.objects import Container, KubeStruct, ObjectMeta, PodStatus, ResourceRequirements
from fractile.wire.quantity import parse

Amounts = dict[str, Fraction]  # in units of the resource: CPUs, bytes, devices

CPU, MEMORY, PODS = "cpu", "memory", "pods"
_POD_LEVEL = (CPU, MEMORY)
_HUGE_PAGES = "hugepages-"
_NATIVE = "kubernetes.io/"
_SIDECAR = "Always"
_THOUSANDTHS = 1000
_ALIKE = 4096  # cached spellings: the thousands of pods of a workload have the same few


class CountedSpec(KubeStruct, frozen=True):
    """The fields that determine amounts and node."""

    node_name: str = ""
    scheduler_name: str = ""
    containers: list[Container] | None = None
    init_containers: list[Container] | None = None
    overhead: dict[str, Any] | None = None
    resources: ResourceRequirements | None = None


class CountedPod(KubeStruct, frozen=True):
    """A pod whose amounts are added up."""

    metadata: ObjectMeta = ObjectMeta()
    spec: CountedSpec = CountedSpec()
    status: PodStatus = PodStatus()

    @property
    def holds(self) -> bool:
        """Whether it takes from a node: it is bound, and its containers have not ended permanently."""
        return bool(self.spec.node_name) and self.status.phase not in ("Succeeded", "Failed")


def is_extended(resource: str) -> bool:
    """Whether it is an extended resource, of a device plugin or an administrator: ``nvidia.com/gpu``, not ``cpu``."""
    return "/" in resource and _NATIVE not in resource and not resource.startswith("requests.")


def requests(pod: CountedPod, *, if_missing: Mapping[str, Fraction] | None = None) -> Amounts:
    """The pod's requests. ``if_missing``: what a container without a request counts. WireError for an invalid
    amount."""
    default = if_missing or {}
    summed = _summed(pod, lambda container: {**default, **_requested(container)})
    if pod.spec.resources is not None:
        whole = _amounts(pod.spec.resources.limits) | _amounts(pod.spec.resources.requests)
        summed |= {name: amount for name, amount in whole.items() if _of_whole_pods(name)}
    for name, amount in _amounts(pod.spec.overhead).items():
        summed[name] = summed.get(name, Fraction(0)) + amount
    return summed


def limits(pod: CountedPod) -> Amounts:
    """The pod's limits. As in kubectl describe, containers without one add nothing: a bound only if all have one."""
    summed = _summed(pod, lambda container: _amounts(container.resources.limits if container.resources else None))
    if pod.spec.resources is not None:
        whole = _amounts(pod.spec.resources.limits)
        summed |= {name: amount for name, amount in whole.items() if _of_whole_pods(name)}
    for name, amount in _amounts(pod.spec.overhead).items():
        if summed.get(name):
            summed[name] += amount
    return summed


def amounts(said: Mapping[str, Any] | None) -> Amounts:
    """Parse the amounts of a node's status or any other map of quantities; WireError names the resource."""
    return _amounts(said)


def _summed(pod: CountedPod, of: Callable[[Container], Amounts]) -> Amounts:
    sidecars: Amounts = {}
    starting: Amounts = {}
    for container in pod.spec.init_containers or ():
        now = _plus(sidecars, of(container))
        starting = _most(starting, now)
        if container.restart_policy == _SIDECAR:
            sidecars = now
    running = _total((sidecars, *(of(container) for container in pod.spec.containers or ())))
    return _most(running, starting)


def _requested(container: Container) -> Amounts:
    if container.resources is None:
        return {}
    return _amounts(container.resources.limits) | _amounts(container.resources.requests)


def _of_whole_pods(resource: str) -> bool:
    return resource in _POD_LEVEL or resource.startswith(_HUGE_PAGES)


def _amounts(said: Mapping[str, Any] | None) -> Amounts:
    return {name: _amount(name, value) for name, value in (said or {}).items()}


def _amount(name: str, value: object) -> Fraction:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise WireError(f"{name}: {type(value).__name__} is not a quantity; write a number such as 4 or 500m")
    try:
        found = Fraction(value) if isinstance(value, int) else _parsed(str(value))
    except WireError as e:
        raise WireError(f"{name}: {e}") from None
    if found < 0:
        raise WireError(f"{name}: {value} is negative")
    return found


_parsed = lru_cache(maxsize=_ALIKE)(parse)


def _plus(a: Amounts, b: Amounts) -> Amounts:
    return {name: a.get(name, Fraction(0)) + b.get(name, Fraction(0)) for name in a | b}


def _most(a: Amounts, b: Amounts) -> Amounts:
    return {name: max(a.get(name, Fraction(0)), b.get(name, Fraction(0))) for name in a | b}


def _total(parts: Iterable[Amounts]) -> Amounts:
    total: Amounts = {}
    for part in parts:
        total = _plus(total, part)
    return total


class CountedNodeStatus(KubeStruct, frozen=True):
    """``requested`` is not a field of Kubernetes: hand-written files give with it what is already taken."""

    capacity: dict[str, Any] | None = None
    allocatable: dict[str, Any] | None = None
    requested: dict[str, Any] | None = None


class CountedNode(KubeStruct, frozen=True):
    """A node with all its resources."""

    metadata: ObjectMeta = ObjectMeta()
    status: CountedNodeStatus = CountedNodeStatus()

    @property
    def given(self) -> dict[str, Any]:
        """What pods may take, as written: allocatable, or the capacity if that is missing."""
        said = self.status.allocatable
        return (self.status.capacity or {}) if said is None else said


def rounded_up(amount: Fraction) -> int:
    """The amount as a whole number, rounded up as in Kubernetes."""
    return -(-amount.numerator // amount.denominator)


def quantity(amount: Fraction) -> str:
    """The amount as Kubernetes writes it: a whole number or thousandths, the smallest unit that it counts."""
    if amount.denominator == 1:
        return str(amount.numerator)
    return f"{rounded_up(amount * _THOUSANDTHS)}m"
