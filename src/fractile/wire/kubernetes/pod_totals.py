"""CPU and memory of a pod as kube-scheduler counts them, and what a node can give of both.

Source: Kubernetes, "Resource sharing within containers" and KEP-753: the larger of every init container together with
the sidecars before it, and of sidecars and app containers together; plus the pod's overhead. Amounts that make no sense
count as 0: the API server would not have stored them, and scores are no place to refuse a pod.
"""

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import msgspec

from fractile.errors import WireError
from fractile.wire.kubernetes.objects import Container, Pod
from fractile.wire.quantity import parse

_MIB = 2**20
_MOST = 2**40  # thousandths of CPUs, MiB: larger than any node
_POD_SLOTS = 110  # kubelet's own limit, where a node does not say


class PodTotals(msgspec.Struct, frozen=True):
    """CPU in thousandths, memory in MiB, rounded up."""

    cpu: int = 0
    memory: int = 0

    def __add__(self, other: "PodTotals") -> "PodTotals":
        return PodTotals(self.cpu + other.cpu, self.memory + other.memory)

    def most(self, other: "PodTotals") -> "PodTotals":
        """The larger of each."""
        return PodTotals(max(self.cpu, other.cpu), max(self.memory, other.memory))


class NodeCapacity(msgspec.Struct, frozen=True):
    """What a node can give to pods, and to how many."""

    cpu: int = 0
    memory: int = 0
    pods: int = _POD_SLOTS


NOTHING = PodTotals()


def of_pod(pod: Pod) -> PodTotals:
    """What kube-scheduler counts of the pod."""
    running = most = NOTHING
    for container in pod.spec.init_containers or ():
        wanted = _of_container(container)
        most = most.most(running + wanted)
        if container.restart_policy == "Always":
            running += wanted
    for container in pod.spec.containers or ():
        running += _of_container(container)
    return most.most(running) + _of(pod.spec.overhead)


def of_node(allocatable: Mapping[str, Any] | None) -> NodeCapacity:
    """What the node says in its status."""
    said = allocatable or {}
    totals = _of(said, up=False)
    pods = _amount(said.get("pods"), 1, up=False) if "pods" in said else _POD_SLOTS
    return NodeCapacity(totals.cpu, totals.memory, pods)


def _of_container(container: Container) -> PodTotals:
    resources = container.resources
    if resources is None:
        return NOTHING
    limits, requests = resources.limits or {}, resources.requests or {}
    return _of({name: requests.get(name, limits.get(name)) for name in ("cpu", "memory")})


def _of(amounts: Mapping[str, Any] | None, *, up: bool = True) -> PodTotals:
    if not amounts:
        return NOTHING
    return PodTotals(
        _amount(amounts.get("cpu"), _CPU, up=up),
        _amount(amounts.get("memory"), _MEMORY, up=up),
    )


_CPU, _MEMORY = 1000, -_MIB  # times so much, or, if it is negative, divided by so much


def _amount(value: object, unit: int, *, up: bool) -> int:
    return _read(str(value), unit, up) if isinstance(value, str | int) else 0


@lru_cache(maxsize=4096)
def _read(text: str, unit: int, up: bool) -> int:
    try:
        exact = parse(text)
    except WireError:
        return 0
    scaled = exact * unit if unit > 0 else exact / -unit
    whole = -(-scaled // 1) if up else scaled // 1
    return max(0, min(int(whole), _MOST))
