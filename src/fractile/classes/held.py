"""How many units of each class the pods of a node hold, according to their requests.

A node's capacity of a class never falls below that. When kubelet restarts, it admits every pod again, and permanently
fails running ones for whose resource the node no longer has enough (evidence/kubelet.md#plain-resources; the device
manager spares the resources of device plugins, but not plain ones). With this minimum, an enlarged class or a sick card
costs no running pod. kubelet does not check a resource that the node does not have at all, so a deleted class is
removed entirely.
"""

from collections.abc import Iterable, Mapping

from fractile.errors import WireError
from fractile.model.units import NodeName, PodUID
from fractile.wire.fractile.resource_class import class_of
from fractile.wire.kubernetes.objects import Container, Pod
from fractile.wire.quantity import whole_number

Units = Mapping[str, int]  # of each class

_NONE: dict[str, int] = {}


class HeldUnits:
    """Fed with every pod; the methods return the nodes that changed."""

    def __init__(self) -> None:
        self._pods: dict[PodUID, tuple[NodeName, dict[str, int]]] = {}  # only those that name classes
        self._nodes: dict[NodeName, dict[str, int]] = {}

    def changed(self, pod: Pod) -> NodeName | None:
        """Handle a pod that appeared or changed; returns the node on which it counts from now on."""
        uid = PodUID(pod.metadata.uid)
        if pod.finished:
            return self.gone(uid)
        if not pod.spec.node_name or uid in self._pods:  # the requests of a bound pod no longer change
            return None
        asked = units_asked(pod)
        if not asked:
            return None
        node = NodeName(pod.spec.node_name)
        self._pods[uid] = node, asked
        self._add(node, asked, 1)
        return node

    def gone(self, uid: PodUID) -> NodeName | None:
        """Handle a pod that finished or was deleted; returns the node on which it counted."""
        node, asked = self._pods.pop(uid, (None, _NONE))
        if node is not None:
            self._add(node, asked, -1)
        return node

    def on(self, node: NodeName) -> Units:
        return self._nodes.get(node, _NONE)

    def _add(self, node: NodeName, asked: Units, sign: int) -> None:
        sums = self._nodes.setdefault(node, {})
        for name, units in asked.items():
            sums[name] = sums.get(name, 0) + sign * units
            if not sums[name]:
                del sums[name]
        if not sums:
            del self._nodes[node]


def units_asked(pod: Pod) -> dict[str, int]:
    """The units of each class as Kubernetes counts a pod's requests: the larger of each init container together with
    the sidecars before it, and of sidecars and containers together."""
    sidecars: dict[str, int] = {}
    peak: dict[str, int] = {}
    for container in pod.spec.init_containers or ():
        asked = _asked(container)
        now = _sum((sidecars, asked))
        _raise(peak, now)
        if container.restart_policy == "Always":
            sidecars = now
    _raise(peak, _sum((sidecars, *map(_asked, pod.spec.containers or ()))))
    return peak


def _asked(container: Container) -> dict[str, int]:
    resources = container.resources
    if resources is None:
        return _NONE
    written = {**(resources.limits or {}), **(resources.requests or {})}
    found: dict[str, int] = {}
    for resource, amount in written.items():
        name = class_of(resource)
        if name is not None and (units := _number(amount)):
            found[name] = units
    return found


def _number(amount: object) -> int:
    try:
        return whole_number(amount)
    except WireError:  # the API server rejects such a pod
        return 0


def _sum(parts: Iterable[Units]) -> dict[str, int]:
    found: dict[str, int] = {}
    for part in parts:
        for name, units in part.items():
            found[name] = found.get(name, 0) + units
    return found


def _raise(peak: dict[str, int], now: Units) -> None:
    for name, units in now.items():
        peak[name] = max(peak.get(name, 0), units)
