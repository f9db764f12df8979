"""Which pod does a container id belong to? Used only for processes that no token directory explains.

The pods of the node are listed with the ids of their containers, at most once in a few seconds, and kept until an
unknown id comes. A container may make cgroups below its own and name them after another pod, which would then be
evicted for it: so places inside a pod that is not known, such as one that was deleted by force, are not looked up. The
agent itself may run inside such pods, in a cluster within a cluster: they do not count. Failure rule: if the API server
does not answer, the owner is unknown for now.
"""

import asyncio
import logging
import time
from collections.abc import Collection, Iterator, Sequence

import msgspec

from fractile.agent.node.cgroup import CgroupPlace
from fractile.agent.node.pods import NodePods, placement_of
from fractile.errors import ApiError, Unreachable, WireError
from fractile.kube import paths
from fractile.kube.client import KubeClient
from fractile.kube.pacing import Clock
from fractile.model.placement import charges
from fractile.model.units import CardUUID, PodUID
from fractile.wire.kubernetes.objects import KubeStruct, ObjectMeta

_LIST = 3.0  # seconds
_PAUSE = 3.0

log = logging.getLogger(__name__)


class ProcessOwner(msgspec.Struct, frozen=True):
    """A pod, and the container if it is known."""

    uid: str
    namespace: str
    pod: str
    container: str = ""


class _Container(KubeStruct, frozen=True):
    name: str = ""
    container_id: str | None = msgspec.field(default=None, name="containerID")


class _Status(KubeStruct, frozen=True):
    container_statuses: list[_Container] | None = None
    init_container_statuses: list[_Container] | None = None
    ephemeral_container_statuses: list[_Container] | None = None


class _Pod(KubeStruct, frozen=True):
    metadata: ObjectMeta = ObjectMeta()
    status: _Status = _Status()


class Owners:
    """Knows the containers of this node by id. ``around``: the pods in which the agent itself runs."""

    def __init__(
        self,
        client: KubeClient,
        pods: NodePods,
        *,
        around: Collection[PodUID] = (),
        clock: Clock = time.monotonic,
    ) -> None:
        self._around = around
        self._client = client
        self._pods = pods
        self._clock = clock
        self._by_id: dict[str, ProcessOwner] = {}
        self._listed: frozenset[str] | None = None  # UIDs; None: never listed
        self._next = 0.0

    async def of(self, places: Sequence[CgroupPlace]) -> ProcessOwner | None:
        """The owner of a process in these places, the outermost that this node has; None: no owner, or not known
        yet."""
        owner = self._known(places)
        if (owner is None or not owner.container) and self._clock() >= self._next:
            self._next = self._clock() + _PAUSE
            await self._list()
            owner = self._known(places)
        return owner

    @property
    def node(self) -> str:
        return self._pods.node

    def outermost(self, places: Sequence[CgroupPlace]) -> PodUID:
        """The pod of this node's kubelet that contains the process; "" for none."""
        return next((p.pod_uid for p in places if p.pod_uid and p.pod_uid not in self._around), PodUID(""))

    def holds(self, places: Sequence[CgroupPlace], card: CardUUID) -> bool:
        """Whether the process's pod was given a part of the card, by its placement; also True while the pods of the
        node are not known yet."""
        if not self._pods.complete:
            return True
        owner = self._known(places)
        seen = self._pods.by_uid(PodUID(owner.uid)) if owner is not None else None
        try:
            placement = placement_of(seen.pod) if seen is not None else None
        except WireError:
            return False
        if placement is None or placement.node != self._pods.node:
            return False
        return any(charge.card == card for charge in charges(placement))

    def containers(self, uid: str) -> frozenset[str]:
        """The known ids of the pod's containers."""
        return frozenset(container for container, owner in self._by_id.items() if owner.uid == uid)

    async def gone(self, uid: PodUID) -> bool:
        """Whether the API server has no such pod on this node; also False if it has not answered."""
        if not self._pods.complete or self._pods.by_uid(uid) is not None:
            return False
        if self._clock() >= self._next:
            self._next = self._clock() + _PAUSE
            await self._list()
        return self._listed is not None and uid not in self._listed

    def _known(self, places: Sequence[CgroupPlace]) -> ProcessOwner | None:
        for place in places:
            owner = self._by_id.get(place.container_id) or self._by_uid(place)
            if owner is not None:
                return owner
            if place.pod_uid and place.pod_uid not in self._around:
                return None
        return None

    def _by_uid(self, place: CgroupPlace) -> ProcessOwner | None:
        seen = self._pods.by_uid(place.pod_uid)
        if seen is None:
            return None
        return ProcessOwner(seen.pod.metadata.uid, seen.pod.metadata.namespace, seen.pod.metadata.name)

    async def _list(self) -> None:
        try:
            async with asyncio.timeout(_LIST):
                found, _ = await self._client.list(
                    paths.pods(), _Pod, field_selector=f"spec.nodeName={self._pods.node}"
                )
        except (ApiError, Unreachable, WireError, TimeoutError) as e:
            log.warning("containers of the node not listed reason=%s", e or "no answer")
            return
        self._listed = frozenset(pod.metadata.uid for pod in found)
        self._by_id = {container: owner for pod in found for container, owner in _containers(pod)}


def _containers(pod: _Pod) -> Iterator[tuple[str, ProcessOwner]]:
    meta, status = pod.metadata, pod.status
    for some in (status.container_statuses, status.init_container_statuses, status.ephemeral_container_statuses):
        for container in some or ():
            text = container.container_id  # containerd://0123...
            if text and (number := text.rpartition("//")[2]):
                yield number, ProcessOwner(meta.uid, meta.namespace, meta.name, container.name)
