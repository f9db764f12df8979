"""Keeps the file that a container may write at its size: a container could fill the node's disk through it.

A file system has no limit for one file, so the file is checked once a second and cut back. In between a container can
fill the disk, as with its other files when its ephemeral storage is not limited; kubelet checks that every ten seconds.
Failure rule: what cannot be checked now is retried.
"""

import asyncio
import logging

import msgspec

from fractile.agent.limits.journal import Journal
from fractile.agent.limits.leases import Leases
from fractile.agent.node.pods import NodePods
from fractile.kube.events import EventRecorder
from fractile.kube.pacing import Sleep
from fractile.model.units import PodUID
from fractile.region import directory, shared
from fractile.region.page import ContainerLimits

_ROUND = 1.0  # seconds

log = logging.getLogger(__name__)


class _Look(msgspec.Struct, frozen=True):
    """``cut``: token, limits and freed bytes of the files that were too long; ``leased``: those that could not be
    opened because of a lease."""

    cut: list[tuple[str, ContainerLimits, int]]
    leased: dict[str, ContainerLimits]


class DirectoryBounds:
    """A loop over all granted directories."""

    def __init__(
        self, journal: Journal, pods: NodePods, events: EventRecorder, *, sleep: Sleep = asyncio.sleep
    ) -> None:
        self._journal = journal
        self._pods = pods
        self._events = events
        self._sleep = sleep
        self._leases = Leases(pods, events)

    async def run(self) -> None:
        """Work forever."""
        while True:
            await self._sleep(_ROUND)
            await self.round()

    async def round(self) -> None:
        """Check every file once."""
        look = await asyncio.to_thread(self._look)
        for token, limits, freed in look.cut:
            log.warning("shared file cut back token=%s pod=%s/%s bytes=%d", token, limits.namespace, limits.pod, freed)
            seen = self._pods.by_uid(PodUID(limits.pod_uid))
            if seen is not None:
                self._events.emit(
                    seen.pod,
                    "SharedFileTooLong",
                    f"container {limits.container} wrote beyond the end of {directory.MOUNT}/{directory.REGION}, which "
                    "would fill the node's disk; the file was cut back",
                )
        self._leases.seen(look.leased)

    def _look(self) -> _Look:
        look = _Look([], {})
        root = self._journal.root
        for token, limits in self._journal.granted().items():
            try:
                freed = shared.cut_back(f"{root}/{token}/{directory.REGION}", cards=len(limits.cards))
            except BlockingIOError:
                look.leased[token] = limits
                continue
            except OSError:
                continue
            if freed:
                look.cut.append((token, limits, freed))
        return look
