"""What was seen of the cluster at one moment, from all who keep books. Pure data."""

from collections.abc import Mapping, Set
from fractions import Fraction

import msgspec

from fractile.dialects.table import parse_pod
from fractile.errors import WireError
from fractile.model.card import Card
from fractile.model.placement import Placement
from fractile.model.request import PodRequest
from fractile.model.units import MemoryUnit, NodeName
from fractile.wire.foreign.kubelet_checkpoint import Recorded
from fractile.wire.fractile import placement
from fractile.wire.fractile.resource_class import ResourceClass
from fractile.wire.kubernetes.objects import KubeStruct, ObjectMeta, Pod, PodSpec, PodStatus

Record = Mapping[tuple[str, str, str], Mapping[str, Set[str]]]  # namespace, pod, container -> resource -> ids


class ContainerStatus(KubeStruct, frozen=True):
    name: str = ""
    container_id: str | None = msgspec.field(default=None, name="containerID")
    restart_count: int = 0
    ready: bool = False


class Status(KubeStruct, frozen=True):
    phase: str = ""
    reason: str | None = None
    message: str | None = None
    container_statuses: list[ContainerStatus] | None = None
    init_container_statuses: list[ContainerStatus] | None = None


class SeenPod(KubeStruct, frozen=True):
    """A pod with the fields that say what became of its containers."""

    metadata: ObjectMeta = ObjectMeta()
    spec: PodSpec = PodSpec()
    status: Status = Status()

    @property
    def uid(self) -> str:
        return self.metadata.uid

    @property
    def name(self) -> str:
        return self.metadata.name

    @property
    def plain(self) -> Pod:
        return Pod(metadata=self.metadata, spec=self.spec, status=PodStatus(phase=self.status.phase))

    @property
    def finished(self) -> bool:
        return self.plain.finished

    @property
    def bound(self) -> bool:
        return bool(self.spec.node_name)

    @property
    def leaving(self) -> bool:
        return self.metadata.deletion_timestamp is not None

    @property
    def running(self) -> bool:
        """Whether all its containers do."""
        statuses = self.status.container_statuses or []
        return self.status.phase == "Running" and bool(statuses) and all(s.ready for s in statuses)

    @property
    def started(self) -> bool:
        """Whether kubelet has ever started a container of it."""
        both = [*(self.status.container_statuses or ()), *(self.status.init_container_statuses or ())]
        return any(s.container_id for s in both)

    @property
    def life(self) -> tuple[tuple[str, str | None, int], ...]:
        """What stays the same as long as nobody kills it."""
        return tuple((s.name, s.container_id, s.restart_count) for s in self.status.container_statuses or ())

    @property
    def request(self) -> PodRequest | None:
        found = parse_pod(self.plain, MemoryUnit.MiB)
        return found if isinstance(found, PodRequest) else None

    @property
    def placement(self) -> Placement | None:
        """What its annotation says; None without one that makes sense."""
        text = (self.metadata.annotations or {}).get(placement.ANNOTATION)
        try:
            return None if text is None else placement.decode(text)
        except WireError:
            return None


class Token(msgspec.Struct, frozen=True):
    """A directory of an agent: whose it is, empty when that is not written yet, and the bytes of each card."""

    node: str
    name: str
    uid: str = ""
    container: str = ""
    cards: tuple[tuple[str, int], ...] = ()


class LedgerReport(msgspec.Struct, frozen=True):
    """What the control plane that leads says of its ledger."""

    bound: int
    assumed: int
    conflicts: int


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """``allocatable``: of each node, by resource. ``records``, ``listed``: kubelet's checkpoint and pod-resources, by
    node. ``ledger`` is None when no replica is ready. ``denied``: by UID when a kubelet did not admit a pod for want of
    the device plugin, in seconds since 1970."""

    pods: tuple[SeenPod, ...]
    cards: tuple[tuple[NodeName, Card], ...]
    allocatable: Mapping[str, Mapping[str, Fraction]]
    classes: tuple[ResourceClass, ...] = ()
    records: Mapping[str, tuple[Recorded, ...]]
    listed: Mapping[str, Record]
    tokens: tuple[Token, ...]
    ledger: LedgerReport | None
    denied: Mapping[str, float] = msgspec.field(default_factory=dict[str, float])

    @property
    def holding(self) -> list[SeenPod]:
        """The pods that hold cards."""
        return [p for p in self.pods if p.bound and not p.finished and p.request is not None]
