"""CPU and memory of a pod as kube-scheduler counts them, and a node's capacity of both.

Source: Kubernetes, "Resource sharing within containers" and KEP-753: the maximum of each init container with the
sidecars before it, and of all sidecars and app containers together; plus the pod's overhead. Invalid amounts count as
0: the API server would not have stored them, and a score is not the place to refuse a pod.
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
_POD_SLOTS = 110  # kubelet's default, for nodes that do not report it


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
    """The CPU and memory that a node can give to pods, and its number of pods."""

    cpu: int = 0
    memory: int = 0
    pods: int = _POD_SLOTS


NOTHING = PodTotals()


def of_pod(pod: Pod) -> PodTotals:
    """What kube-scheduler counts for the pod."""
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
    """The capacity from the node's status."""
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


_CPU, _MEMORY = 1000, -_MIB  # multipliers; a negative one divides


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
