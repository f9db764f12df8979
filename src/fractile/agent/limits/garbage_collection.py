"""Removes the token directories of containers that have gone.

Directories that processes of a departed pod still use stay. Failure rule: when in doubt, keep. A directory is removed
only if every round of the last minutes found it unowned, by kubelet's records and by the API server's pods: kubelet
records an Allocate after its answer. If the record of what was given is gone, the page of limits names the owner. The
minutes are measured by a clock that never jumps; the age of files is not used.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Container, Mapping

from fractile.agent.kubelet.kubelet_state import Kubelet, KubeletState, KubeletStateMissing, mounted
from fractile.agent.limits.journal import Grant, Journal
from fractile.agent.node.pods import NodePods
from fractile.kube.pacing import Clock, Sleep
from fractile.model.units import PodUID
from fractile.region.page import ContainerLimits
from fractile.wire.fractile.device_ids import to_ranges

_ROUND = 60.0  # seconds
_UNOWNED = 300.0  # for so long

log = logging.getLogger(__name__)


class GarbageCollector:
    """A loop over all token directories."""

    def __init__(
        self,
        kubelet: Kubelet,
        pods: NodePods,
        journal: Journal,
        *,
        in_use: Callable[[], Container[str]] = frozenset,
        clock: Clock = time.monotonic,
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        self._kubelet = kubelet
        self._pods = pods
        self._journal = journal
        self._in_use = in_use
        self._clock = clock
        self._sleep = sleep
        self._suspects: dict[str, float] = {}  # since when they are unowned

    async def run(self) -> None:
        """Work forever."""
        while True:
            await self._sleep(_ROUND)
            await self.round()

    async def round(self) -> None:
        """Check all directories once."""
        try:
            if not await self._pods.synced(0.0):
                return
            state = await self._kubelet.state()
        except KubeletStateMissing as e:
            log.info("sweep skipped reason=%s", e)
            return
        grants, unrecorded = await asyncio.to_thread(self._directories)
        active = self._pods.active()
        owned = await asyncio.to_thread(self._owned, grants, state, active)
        now = self._clock()
        in_use = self._in_use()
        unowned = {g.token for g in grants if g.token not in in_use and g.token not in owned}
        unowned.update(t for t, limits in unrecorded.items() if t not in in_use and limits.pod_uid not in active)
        self._suspects = {token: self._suspects.get(token, now) for token in unowned}
        for token, since in self._suspects.items():
            if now - since >= _UNOWNED:
                await self._remove(token)

    def _directories(self) -> tuple[list[Grant], dict[str, ContainerLimits]]:
        """The directories with a record of what was given, and the pages of those whose record was removed."""
        grants = list(self._journal.grants())
        recorded = {grant.token for grant in grants}
        return grants, {t: limits for t, limits in self._journal.granted().items() if t not in recorded}

    def _owned(self, grants: Collection[Grant], state: KubeletState, active: Container[PodUID]) -> set[str]:
        """The tokens of the directories that are held: one pass over kubelet's records for all of them."""
        if state.recorded is None:
            listed = _listed_ranges(state)
            return {grant.token for grant in grants if grant.ranges in listed.get(grant.resource, ())}
        paths = ((e.resource, path) for e in state.recorded if e.uid in active and (path := mounted(e)) is not None)
        held = {(resource, self._journal.token(path)) for resource, path in paths}
        return {grant.token for grant in grants if (grant.resource, grant.token) in held}

    async def _remove(self, token: str) -> None:
        try:
            await asyncio.to_thread(self._journal.remove, token)
        except OSError as e:
            log.warning("token directory not removed token=%s reason=%s", token, e)
            return
        log.info("token directory removed token=%s", token)


def _listed_ranges(state: KubeletState) -> Mapping[str, set[str]]:
    found: dict[str, set[str]] = {}
    for resource, ids in (item for pod in state.listed for held in pod.held.values() for item in held.items()):
        if ids:
            found.setdefault(resource, set()).add(to_ranges(ids))
    return found
