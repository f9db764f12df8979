"""Grants whose pod the API server no longer has, while its processes still run: a pod that was deleted by force.

    deleted with --force ─> its object is gone immediately ─> kubelet gives its devices away, ends its containers later
    meanwhile             ─> the page of limits still allows what it did, and the memory is held

So they count: in PreStart (``precedence``), and in the status of the card, from which the control plane's ledger counts
them too; and the sweeper leaves their directories. Reported in the log and as an event of the node, once for each pod.
Liveness comes from the kernel: locked slots in the region, processes that the driver shows, and processes in the
container's cgroup, which may still begin to use the card. What has ended does not start again, so it is polled only for
a while. Failure rule: closed. A region that cannot be read, because it is leased, counts as in use.
"""

import asyncio
import logging
import time
from collections.abc import Iterable, Sequence

from fractile.agent.limits.slices import Granted, Slices
from fractile.agent.node.cgroup_tree import CgroupTree
from fractile.agent.node.pods import NodePods
from fractile.kube.events import EventRecorder, ObjectRef
from fractile.kube.pacing import Clock, Sleep
from fractile.model.placement import Charge
from fractile.model.units import CardUUID, MiB, NodeName, PodUID
from fractile.region import directory, shared

REASON = "GPUHeldByDeletedPod"

_ROUND = 1.0  # seconds
_ENDED = 10.0  # after so long without any sign of life the grant is no longer polled
_NAMED = 8  # containers in the event's message
_SHORT = 13  # digits of a container's id
_MIB = 2**20

log = logging.getLogger(__name__)


class DepartedPods:
    """``run`` polls every second; ``look`` polls now; ``present`` is the result of the last poll."""

    def __init__(
        self,
        slices: Slices,
        pods: NodePods,
        events: EventRecorder,
        *,
        cgroups: CgroupTree | None = None,
        clock: Clock = time.monotonic,
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        self._slices = slices
        self._pods = pods
        self._events = events
        self._cgroups = cgroups or CgroupTree()
        self._clock = clock
        self._sleep = sleep
        self._quiet: dict[str, float] = {}  # tokens of pods that are gone -> since when no process lives
        self._looking = asyncio.Lock()
        self._driven: frozenset[str] = frozenset()
        self._told: frozenset[PodUID] = frozenset()
        self.present: tuple[Granted, ...] = ()
        self.granted: Sequence[Granted] = ()  # all, also those of existing pods

    def driven(self, tokens: Iterable[str]) -> None:
        """Set the tokens of the containers whose processes the driver shows now."""
        self._driven = frozenset(tokens)

    async def run(self) -> None:
        """Work forever."""
        while True:
            await self._sleep(_ROUND)
            await self.look()

    async def look(self) -> tuple[Granted, ...]:
        """The grants that count although their pod is unknown. Unchanged while not all pods of the node are known."""
        async with self._looking:
            if not self._pods.complete:
                return self.present
            self.granted = await asyncio.to_thread(self._slices.read)
            unknown = [g for g in self.granted if self._pods.by_uid(PodUID(g.limits.pod_uid)) is None]
            found = tuple(await asyncio.to_thread(self._alive, unknown)) if unknown else ()
            if found != self.present:
                self.present = found
            await self._tell(found)
            return found

    def tokens(self) -> frozenset[str]:
        return frozenset(g.token for g in self.present)

    def _alive(self, granted: Sequence[Granted]) -> list[Granted]:
        now = self._clock()
        self._quiet = {g.token: self._quiet[g.token] for g in granted if g.token in self._quiet}
        found: list[Granted] = []
        for one in granted:
            if now - self._quiet.get(one.token, now) > _ENDED:
                continue
            if self._lives(one):
                self._quiet.pop(one.token, None)
                found.append(one)
            else:
                self._quiet.setdefault(one.token, now)
        return found

    def _lives(self, granted: Granted) -> bool:
        return (
            granted.token in self._driven
            or shared.find(granted.folder / directory.REGION).in_use
            or self._cgroups.find(granted.limits.pod_uid, token=granted.token) is not None
        )

    def _containers(self, granted: Sequence[Granted]) -> list[str]:
        """The container ids that are found, as short as the tools of container runtimes print them."""
        found = (self._cgroups.container_id(g.limits.pod_uid, token=g.token) for g in granted[:_NAMED])
        return [container[:_SHORT] for container in dict.fromkeys(found) if container]

    async def _tell(self, found: Sequence[Granted]) -> None:
        by_uid: dict[PodUID, list[Granted]] = {}
        for one in found:
            by_uid.setdefault(PodUID(one.limits.pod_uid), []).append(one)
        for uid in by_uid.keys() - self._told:
            own = by_uid[uid]
            limits = own[0].limits
            cards = _amounts(own)
            containers = await asyncio.to_thread(self._containers, own)
            log.warning("held by a deleted pod pod=%s/%s uid=%s cards=%r", limits.namespace, limits.pod, uid, cards)
            self._events.emit(
                ObjectRef("Node", "", self._pods.node, ""),
                REASON,
                f"processes of pod {limits.namespace}/{limits.pod} (uid {uid}) still hold {cards}, although the pod is "
                "gone from the API server, as after a forced deletion; no other pod gets that memory until they have "
                "ended; to free it now, " + _ending(self._pods.node, containers),
            )
        for uid in self._told - by_uid.keys():
            log.info("no longer held by a deleted pod uid=%s", uid)
        self._told = frozenset(by_uid)


def _amounts(granted: Iterable[Granted]) -> str:
    found: dict[CardUUID, int] = {}
    for card in (card for one in granted for card in one.limits.cards):
        found[card.uuid] = found.get(card.uuid, 0) + card.memory
    return ", ".join(f"{memory // _MIB} MiB of card {uuid}" for uuid, memory in found.items())


def _ending(node: NodeName, containers: Sequence[str]) -> str:
    """How to end them. By container ids: a pid may belong to another process by the time the event is read."""
    if not containers:
        return f"end them on node {node}"
    return f"stop their containers on node {node}: crictl stop {' '.join(containers)}"


def charges(granted: Iterable[Granted]) -> list[Charge]:
    """What they take of each card, as the ledger counts it."""
    return [
        Charge(c.uuid, MiB(-(-c.memory // _MIB)), c.cores, coreless=not c.cores)
        for g in granted
        for c in g.limits.cards
    ]
