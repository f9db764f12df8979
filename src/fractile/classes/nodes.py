"""The nodes as the class controllers see them: whether they are ready, and their units of classes."""

import sys
from collections.abc import Callable, Mapping

import msgspec

from fractile.errors import WireError
from fractile.model.units import NodeName
from fractile.wire.fractile.resource_class import class_of
from fractile.wire.kubernetes.manifests import PlannedNodeSpec
from fractile.wire.kubernetes.objects import KubeStruct, ObjectMeta
from fractile.wire.quantity import whole_number

Units = Mapping[str, int]  # of each class
_UNREADABLE = -1  # differs from every number that we would write


class NodeCondition(KubeStruct, frozen=True):
    type: str = ""
    status: str = ""
    last_transition_time: str = ""


class ConditionedNodeStatus(KubeStruct, frozen=True):
    capacity: dict[str, str | int] | None = None
    allocatable: dict[str, str | int] | None = None
    conditions: list[NodeCondition] | None = None


class NodeWithTaints(KubeStruct, frozen=True):
    """A node with the fields that give its condition and what keeps pods away from it."""

    metadata: ObjectMeta = ObjectMeta()
    spec: PlannedNodeSpec = PlannedNodeSpec()
    status: ConditionedNodeStatus = ConditionedNodeStatus()


class KnownNode(msgspec.Struct, frozen=True):
    """One node. ``since``: when it was first seen not ready, on the caller's clock; None while it is ready. ``stamp``:
    the API's own time of that, which is the same for all replicas."""

    capacity: Units
    allocatable: Units
    since: float | None = None
    stamp: str = ""


class Nodes:
    """Fed by a watch. Nodes with equal units share one mapping."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._known: dict[NodeName, KnownNode] = {}
        self._shared: dict[tuple[tuple[str, int], ...], Units] = {}
        self._absent: dict[NodeName, float] = {}  # nodes that were looked up and do not exist

    def changed(self, node: NodeWithTaints) -> bool:
        """Handle a node that appeared or changed; returns whether anything stored here changed."""
        name = NodeName(sys.intern(node.metadata.name))
        before = self._known.get(name)
        ready = next((c for c in node.status.conditions or () if c.type == "Ready"), NodeCondition())
        away = ready.status != "True"
        since = before.since if before is not None and before.since is not None else self._clock()
        known = KnownNode(
            self._units(node.status.capacity),
            self._units(node.status.allocatable),
            since if away else None,
            ready.last_transition_time if away else "",
        )
        self._absent.pop(name, None)
        if known == before:
            return False
        self._known[name] = known
        return True

    def gone(self, name: NodeName) -> None:
        self._known.pop(name, None)

    def find(self, name: NodeName) -> KnownNode | None:
        return self._known.get(name)

    def away_for(self, name: NodeName) -> float:
        """For how many seconds the node has been not ready or absent; 0 when it is ready."""
        known = self._known.get(name)
        if known is not None:
            return 0.0 if known.since is None else self._clock() - known.since
        return self._clock() - self._absent.setdefault(name, self._clock())

    def away(self) -> list[NodeName]:
        """The nodes that are not ready, and those that were looked up in vain."""
        return [*(name for name, known in self._known.items() if known.since is not None), *self._absent]

    def forget_absent(self, name: NodeName) -> None:
        """Forget an absent node to which nothing refers any longer."""
        self._absent.pop(name, None)

    def __len__(self) -> int:
        return len(self._known)

    def _units(self, resources: Mapping[str, str | int] | None) -> Units:
        pairs = tuple(
            sorted((name, _number(a)) for r, a in (resources or {}).items() if (name := class_of(r)) is not None)
        )
        return self._shared.setdefault(pairs, dict(pairs)) if len(self._shared) < _SHARED else dict(pairs)


_SHARED = 4096


def _number(amount: str | int) -> int:
    try:
        return whole_number(amount)
    except WireError:
        return _UNREADABLE
