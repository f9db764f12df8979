"""Grants whose pod the API server no longer has, while processes of it still run: a pod that was deleted by force.

    deleted with --force ─> its object is gone at once ─> kubelet gives its devices away, and ends its containers later
    meanwhile             ─> the page of limits still allows what it did, and the memory is held

So they count: in PreStart (``precedence``), in the status of the card, by which the control plane's ledger counts them
too, and the sweeper leaves their directories. Said in the log and as an event of the node, once for each pod. Who lives
is the kernel's word: slots that are locked in the region, and processes that the driver shows. Failure rule: closed. A
region that cannot be looked at, because it is leased, counts as in use.
"""

import asyncio
import logging
from collections.abc import Iterable, Sequence

from fractile.agent.pods import NodePods
from fractile.agent.slices import Granted, Slices
from fractile.kube.events import EventRecorder, ObjectRef
from fractile.kube.pacing import Sleep
from fractile.model.placement import Charge
from fractile.model.units import MiB, PodUID
from fractile.region import directory, shared

REASON = "GPUHeldByDeletedPod"

_ROUND = 1.0  # seconds
_MIB = 2**20

log = logging.getLogger(__name__)


class Departed:
    """``run`` looks every second; ``look`` does so now; ``present`` is what the last look found."""

    def __init__(self, slices: Slices, pods: NodePods, events: EventRecorder, *, sleep: Sleep = asyncio.sleep) -> None:
        self._slices = slices
        self._pods = pods
        self._events = events
        self._sleep = sleep
        self._looking = asyncio.Lock()
        self._driven: frozenset[str] = frozenset()
        self._told: frozenset[PodUID] = frozenset()
        self.present: tuple[Granted, ...] = ()
        self.granted: Sequence[Granted] = ()  # all, also those of pods that are there

    def driven(self, tokens: Iterable[str]) -> None:
        """The tokens of the containers whose processes the driver shows now."""
        self._driven = frozenset(tokens)

    async def run(self) -> None:
        """Work forever."""
        while True:
            await self._sleep(_ROUND)
            await self.look()

    async def look(self) -> tuple[Granted, ...]:
        """What counts although its pod is unknown. Nothing while the pods of the node are not all known."""
        async with self._looking:
            if not self._pods.complete:
                return self.present
            self.granted = await asyncio.to_thread(self._slices.read)
            unknown = [g for g in self.granted if self._pods.by_uid(PodUID(g.limits.pod_uid)) is None]
            found = tuple(await asyncio.to_thread(self._alive, unknown)) if unknown else ()
            if found != self.present:
                self.present = found
            self._tell(found)
            return found

    def tokens(self) -> frozenset[str]:
        return frozenset(g.token for g in self.present)

    def _alive(self, granted: Sequence[Granted]) -> list[Granted]:
        return [g for g in granted if g.token in self._driven or shared.find(g.folder / directory.REGION).in_use]

    def _tell(self, found: Sequence[Granted]) -> None:
        by_uid = {PodUID(g.limits.pod_uid): g for g in found}
        for uid in by_uid.keys() - self._told:
            limits = by_uid[uid].limits
            cards = ", ".join(f"{c.memory // _MIB} MiB of card {c.uuid}" for c in limits.cards)
            log.warning("held by a deleted pod pod=%s/%s uid=%s cards=%r", limits.namespace, limits.pod, uid, cards)
            self._events.emit(
                ObjectRef("Node", "", self._pods.node, ""),
                REASON,
                f"processes of pod {limits.namespace}/{limits.pod} (uid {uid}) still hold {cards}, although the pod is "
                "gone from the API server, as after a deletion by force; nobody else gets that until they have ended",
            )
        for uid in self._told - by_uid.keys():
            log.info("no longer held by a deleted pod uid=%s", uid)
        self._told = frozenset(by_uid)


def charges(granted: Iterable[Granted]) -> list[Charge]:
    """What they take of each card, as the ledger counts it."""
    return [
        Charge(c.uuid, MiB(-(-c.memory // _MIB)), c.cores, coreless=not c.cores)
        for g in granted
        for c in g.limits.cards
    ]
