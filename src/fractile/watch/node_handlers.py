"""Nodes, pods and namespaces of the API -> what scores need to know about them.

Failure rule: what cannot be read counts as nothing. Scores only order nodes that fit; fitting is decided elsewhere.
"""

from collections.abc import Hashable, Sequence
from hashlib import blake2b
from typing import Any

import msgspec

from fractile.dialects.table import NAMES, parse_pod
from fractile.kube.reflector import Gone
from fractile.ledger.arrays import CardArrays
from fractile.ledger.node_totals import NodeTotals
from fractile.ledger.wishes import wish_of
from fractile.model.pod_demand import PodDemand
from fractile.model.request import ANY, ContainerRequest, PodRequest
from fractile.model.units import MemoryUnit, NodeName, PodUID
from fractile.watch.pod_mix import SeenPods
from fractile.wire.kubernetes.objects import Namespace, Pod
from fractile.wire.kubernetes.pod_totals import PodTotals, of_node, of_pod

_ALIKE = 4096  # kinds of pods that are remembered
_FEW = 8  # the most containers that are kept individually


class NodeHandlers:
    """Keeps CPU and memory of nodes, and the pods seen. Pods that ask by class count for the mix only when their node
    is chosen: what a class gives is not known before."""

    def __init__(
        self,
        totals: NodeTotals,
        seen: SeenPods,
        arrays: CardArrays,
        unit: MemoryUnit,
        dialects: frozenset[str] = NAMES,
    ) -> None:
        self._totals = totals
        self._seen = seen
        self._arrays = arrays
        self._unit = unit
        self._dialects = dialects
        self._wishes: dict[Hashable, PodDemand] = {}

    def node_changed(self, name: str, allocatable: dict[str, Any] | None) -> None:
        """Handle a node with its allocatable resources."""
        self._totals.put_node(NodeName(name), of_node(allocatable))

    def node_gone(self, gone: Gone) -> None:
        self._totals.drop_node(NodeName(gone.name))

    def pod_changed(self, pod: Pod) -> None:
        """Handle a pod that appeared or changed."""
        uid = PodUID(pod.metadata.uid)
        if pod.finished:
            self.pod_gone(uid)
            return
        request = parse_pod(pod, self._unit, self._dialects)
        known = request if isinstance(request, PodRequest) else None
        wish = self._wish(known, of_pod(pod))
        if known is not None:
            by_class = any(c.request.device_class for c in known.containers)
            self._seen.put(uid, PodDemand(wish.cpu, wish.memory) if by_class else wish)
        if pod.spec.node_name:
            self._totals.put_pod(uid, NodeName(pod.spec.node_name), wish)

    def pod_expected(self, pod: Pod, node: str) -> None:
        """Count a nominated pod on its node."""
        request = parse_pod(pod, self._unit, self._dialects)
        known = request if isinstance(request, PodRequest) else None
        self._totals.put_pod(PodUID(pod.metadata.uid), NodeName(node), self._wish(known, of_pod(pod)))

    def pod_not_expected(self, uid: PodUID) -> None:
        """Uncount a pod that is no longer nominated."""
        self._totals.drop_pod(uid)

    def _wish(self, request: PodRequest | None, totals: PodTotals) -> PodDemand:
        """The demand. It is the same for all pods of a workload, so it is cached unless it depends on the cards."""
        containers = () if request is None else request.containers
        if not all(c.request.selector is ANY for c in containers):
            return wish_of(request, totals, self._arrays)
        key = _key(containers, totals)
        found = self._wishes.get(key)
        if found is None:
            if len(self._wishes) >= _ALIKE:
                self._wishes.clear()
            found = self._wishes[key] = wish_of(request, totals, self._arrays)
        return found

    def pod_gone(self, uid: PodUID) -> None:
        """Handle a pod that finished or was deleted."""
        self._totals.drop_pod(uid)
        self._seen.gone(uid)


def _key(containers: Sequence[ContainerRequest], totals: PodTotals) -> Hashable:
    """What determines the demand, without names; sixteen bytes where it would be long."""
    asked = tuple(_asked(c) for c in containers)
    if len(asked) <= _FEW:
        return asked, totals
    return blake2b(msgspec.json.encode((asked, totals)), digest_size=16).digest()  # JSON has integers of any size


def _asked(c: ContainerRequest) -> tuple[object, ...]:
    r = c.request
    return c.role, c.resource, c.amount, r.count, r.memory, r.memory_percent, r.cores, r.exclusive, r.shares


class NamespacePolicies(dict[str, str]):
    """The policies that namespaces name for their pods, by name of the namespace."""

    def __init__(self, annotation: str) -> None:
        super().__init__()
        self._annotation = annotation

    def changed(self, namespace: Namespace) -> None:
        meta = namespace.metadata
        said = (meta.annotations or {}).get(self._annotation, "")
        if said:
            self[meta.name] = said
        else:
            self.pop(meta.name, None)

    def gone(self, gone: Gone) -> None:
        self.pop(gone.name, None)
