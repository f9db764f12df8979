"""Notices that the region of a running container is gone from ``--state-dir``, or was replaced.

The container has the file mounted and keeps using it, so its limits hold; but this node reads another path, and sees
none of its usage. That cannot be repaired while it runs: a new file would be another ledger than that of its processes.
PreStart makes one when the container restarts. So the loss is only reported, once: in the log, and to the pod. What the
container wrote into its region is not checked here. Failure rule: what cannot be checked now is retried.
"""

import asyncio
import logging
from collections.abc import Mapping

from fractile.agent.limits.journal import Journal
from fractile.agent.limits.restore import Viewers, viewers_now
from fractile.agent.node.pods import NodePods
from fractile.agent.node.procfs import Process
from fractile.kube.events import EventRecorder
from fractile.kube.pacing import Sleep
from fractile.region import directory, plain
from fractile.region.page import FLAG_LOST, ContainerLimits

REASON = "GPULedgerLost"

_ROUND = 2.0  # seconds

log = logging.getLogger(__name__)


class LedgerLost:
    """``viewers``: for each token and its pod, a process of the pod that sees the token's directory."""

    def __init__(
        self,
        journal: Journal,
        pods: NodePods,
        events: EventRecorder,
        *,
        viewers: Viewers | None = None,
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        self._journal = journal
        self._pods = pods
        self._events = events
        self._viewers = viewers or viewers_now
        self._sleep = sleep
        self._told: frozenset[str] = frozenset()

    async def run(self) -> None:
        """Work forever."""
        while True:
            await self._sleep(_ROUND)
            try:
                await self.round()
            except OSError as e:
                log.warning("regions not checked reason=%s", e)

    async def round(self) -> None:
        """Check all directories once."""
        lost = await asyncio.to_thread(self._lost)
        for token in lost.keys() - self._told:
            self._tell(token, lost[token])
        self._told = frozenset(lost)

    def _lost(self) -> Mapping[str, ContainerLimits]:
        """Lost regions of running containers. PreStart provides the region of a container that does not run."""
        without = {
            token: limits
            for token, limits in self._journal.granted().items()
            if not limits.flags & FLAG_LOST and plain.size(self._journal.path(token) / directory.REGION) is None
        }
        asked = {token: limits.pod_uid for token, limits in without.items() if token not in self._told}
        running: Mapping[str, Process] = self._viewers(asked) if asked else {}
        return {token: limits for token, limits in without.items() if token in self._told or token in running}

    def _tell(self, token: str, limits: ContainerLimits) -> None:
        path = self._journal.path(token) / directory.REGION
        log.warning("region lost path=%s pod=%s/%s container=%s", path, limits.namespace, limits.pod, limits.container)
        seen = self._pods.by_uid(limits.pod_uid)
        if seen is not None:
            self._events.emit(seen.pod, REASON, sentence(limits, path=str(path), node=self._pods.node))


def sentence(limits: ContainerLimits, *, path: str, node: str) -> str:
    """The message to the pod's owner."""
    return (
        f"{path} on node {node}, from which the node reads what container {limits.container} uses, was removed or "
        "replaced while the container ran; its processes keep what they were given, but their use is neither shown "
        "nor compared with the driver's figures until the container starts again; to restart it now: kubectl delete "
        f"pod -n {limits.namespace} {limits.pod} (of a Deployment: kubectl rollout restart)"
    )
