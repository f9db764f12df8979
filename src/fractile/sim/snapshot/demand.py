"""The demand of a pod's manifest, as the planner counts it. The dialects determine which cards and how much of them, as
in the extender; CPU and memory are Kubernetes' requests, or limits if there are none.

With several containers, CPU, memory and parts of cards add up as in Kubernetes (the maximum of all running containers
together and of each init container), and the parts are assumed to be on one card. In a pod with whole cards, a part
counts as a whole card. Neither is ever less than what the pod will need.
"""

from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from functools import lru_cache
from typing import Any

import msgspec

from fractile.dialects.table import NAMES, containers_in_order, parse_pod
from fractile.dialects.units import FamilyUnits, units_of
from fractile.errors import WireError
from fractile.model.refusal import Refusal
from fractile.model.request import ANY, ContainerRequest, PodRequest, Request, Role, Selector
from fractile.model.units import MemoryUnit
from fractile.policy.nodes.where import where_of
from fractile.sim.snapshot.cluster_snapshot import Demand, DemandPart
from fractile.wire.kubernetes.manifests import PlannedPod
from fractile.wire.kubernetes.objects import Container
from fractile.wire.quantity import parse

_MIB = 2**20
_MOST = 2**60
_SHORT = 20  # characters
_NO_OVERHEAD: dict[str, Any] = {}
Resolve = Callable[[PodRequest], PodRequest | Refusal]


class RequestReading(msgspec.Struct, frozen=True):
    """How requests are read: ``unit`` of the memory families, ``resolve`` for classes, ``families`` that are served."""

    unit: MemoryUnit
    resolve: Resolve
    families: frozenset[str] = NAMES


def demand_of(pod: PlannedPod, reading: RequestReading) -> Demand | Refusal:
    """The demand; a Refusal when the request is invalid. WireError for CPU or memory that is not a quantity."""
    found = parse_pod(pod, reading.unit, reading.families)
    if isinstance(found, PodRequest):
        found = reading.resolve(found)
    if isinstance(found, Refusal):
        return found
    overhead = pod.spec.overhead or _NO_OVERHEAD
    return Demand(
        cpu=_peak(pod, "cpu", milli) + _amount(overhead.get("cpu", "0"), "overhead.cpu", milli),
        memory=_peak(pod, "memory", mebibytes) + _amount(overhead.get("memory", "0"), "overhead.memory", mebibytes),
        part=_part(found.gpus) if found else None,
        where=where_of(pod.spec),
    )


def units_asked(pod: PlannedPod, reading: RequestReading) -> FamilyUnits | None:
    """The units in which the pod asks for GPUs; None where it asks by classes, in several families, or for none."""
    found = parse_pod(pod, reading.unit, reading.families)
    return units_of(found.gpus, reading.unit) if isinstance(found, PodRequest) else None


def milli(value: Any, field: str) -> int:
    """A quantity of CPU in thousandths, rounded up."""
    return -int(-_quantity(value, field) * 1000 // 1)


def mebibytes(value: Any, field: str) -> int:
    """A quantity of memory in MiB, rounded up."""
    return -int(-_quantity(value, field) / _MIB // 1)


def _quantity(value: Any, field: str) -> Fraction:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise WireError(f"{field}: a {type(value).__name__} is not a quantity")
    try:
        found = Fraction(value) if isinstance(value, int) else parse(str(value))
    except WireError as e:
        raise WireError(f"{field}: {e}") from None
    if not 0 <= found < _MOST:
        raise WireError(f"{field}: {str(value)[:40]} is negative or absurd")
    return found


@lru_cache(maxsize=4096)  # a cluster's pods request a few hundred different amounts
def _known(text: str, read: Callable[[Any, str], int]) -> int:
    return read(text, "")


def _amount(value: Any, field: str, read: Callable[[Any, str], int]) -> int:
    """The value parsed by ``read``; recurring texts are parsed only once."""
    if type(value) is str and len(value) <= _SHORT:
        try:
            return _known(value, read)
        except WireError:
            pass  # raised again below, with the field
    return read(value, field)


def _peak(pod: PlannedPod, resource: str, read: Callable[[Any, str], int]) -> int:
    running = peak = 0
    for role, container in containers_in_order(pod):
        amount = _amount(_requested(container, resource), f"container {container.name} {resource}", read)
        peak = max(peak, running + amount)
        if role is not Role.INIT:
            running += amount
    return peak


def _requested(container: Container, resource: str) -> Any:
    found = container.resources
    if found is None:
        return "0"
    limits: Mapping[str, Any] = found.limits or {}
    return (found.requests or {}).get(resource, limits.get(resource, "0"))


def _part(asked: Sequence[ContainerRequest]) -> DemandPart | None:
    if not asked:
        return None
    running = [c.request for c in asked if c.role is not Role.INIT]
    before = [_together([c.request]) for c in asked if c.role is Role.INIT]
    parts = [*([_together(running)] if running else []), *before]
    selectors = dict.fromkeys(c.request.selector for c in asked if c.request.selector != ANY)
    return DemandPart(
        count=max(p.count for p in parts),
        memory=max(p.memory for p in parts),
        share=max(p.share for p in parts),
        compute=max(p.compute for p in parts),
        exclusive=any(p.exclusive for p in parts),
        selectors=tuple[Selector, ...](selectors),
    )


def _together(requests: Sequence[Request]) -> DemandPart:
    if any(r.exclusive for r in requests):
        return DemandPart(sum(r.count for r in requests), exclusive=True)
    share, compute = sum(10 * r.memory_percent for r in requests), sum(10 * r.cores for r in requests)
    if max(share, compute) > 1000:  # more than one card has: then one card for each container
        return DemandPart(
            sum(r.count for r in requests),
            memory=max(r.memory for r in requests),
            share=max(10 * r.memory_percent for r in requests),
            compute=max(10 * r.cores for r in requests),
        )
    return DemandPart(
        max(r.count for r in requests), memory=sum(r.memory for r in requests), share=share, compute=compute
    )
