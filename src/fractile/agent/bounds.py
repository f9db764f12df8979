"""Keeps the file that a container may write at its size: a container could fill the node's disk through it.

A file system has no limit for one file, so the file is looked at once a second and cut back. In between a container can
hold the disk full, as with its other files where nobody limits its ephemeral storage; kubelet looks at that every ten
seconds. Failure rule: what cannot be looked at now is looked at again.
"""

import asyncio
import logging

from fractile.agent.journal import Journal
from fractile.agent.pods import NodePods
from fractile.kube.events import EventRecorder
from fractile.kube.pacing import Sleep
from fractile.model.units import PodUID
from fractile.region import directory, shared
from fractile.region.page import Limits

_ROUND = 1.0  # seconds

log = logging.getLogger(__name__)


class Bounds:
    """A loop over all granted directories."""

    def __init__(
        self, journal: Journal, pods: NodePods, events: EventRecorder, *, sleep: Sleep = asyncio.sleep
    ) -> None:
        self._journal = journal
        self._pods = pods
        self._events = events
        self._sleep = sleep

    async def run(self) -> None:
        """Work forever."""
        while True:
            await self._sleep(_ROUND)
            await self.round()

    async def round(self) -> None:
        """One look at every file."""
        for token, limits, freed in await asyncio.to_thread(self._cut_back):
            log.warning("shared file cut back token=%s pod=%s/%s bytes=%d", token, limits.namespace, limits.pod, freed)
            seen = self._pods.by_uid(PodUID(limits.pod_uid))
            if seen is not None:
                self._events.emit(
                    seen.pod,
                    "SharedFileTooLong",
                    f"container {limits.container} wrote beyond the end of {directory.MOUNT}/{directory.REGION}, which "
                    "would fill the node's disk; the file was cut back",
                )

    def _cut_back(self) -> list[tuple[str, Limits, int]]:
        found: list[tuple[str, Limits, int]] = []
        root = self._journal.root
        for token, limits in self._journal.granted().items():
            try:
                freed = shared.cut_back(f"{root}/{token}/{directory.REGION}", cards=len(limits.cards))
            except OSError:
                continue
            if freed:
                found.append((token, limits, freed))
        return found
