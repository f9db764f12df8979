"""Annotates pods for the dialects' own tools once their containers hold their cards. A courtesy: it may be late.

Level-triggered: every round compares the annotations in the view with the wanted ones, which repairs a lost patch and
one that the control plane overwrites when it moves a placement. After a restart the journal says which pods had them.
"""

import asyncio
import logging
from collections.abc import Iterable

from fractile.agent.node.pods import NodePods, PodWithRequest
from fractile.dialects import table
from fractile.errors import ApiError, Unreachable, WireError
from fractile.kube.pacing import Sleep
from fractile.model.request import PodRequest
from fractile.model.units import PodUID
from fractile.wire.kubernetes.objects import Pod

_ROUND = 15.0  # seconds
_FAILED = 2.0

log = logging.getLogger(__name__)


class Assigned:
    """``granted`` never blocks; ``run`` does the work."""

    def __init__(self, pods: NodePods, *, sleep: Sleep = asyncio.sleep) -> None:
        self._pods = pods
        self._sleep = sleep
        self._granted: dict[PodUID, tuple[Pod, dict[str, str]]] = {}
        self._new: set[PodUID] = set()  # those of them that no round has checked yet
        self._wake = asyncio.Event()

    def granted(self, pod: Pod, request: PodRequest) -> None:
        """The pod's limits are written."""
        self._granted[request.uid] = pod, table.assigned_annotations(request)
        self._new.add(request.uid)
        self._wake.set()

    def restore(self, uids: Iterable[PodUID]) -> None:
        """Take over the pods granted by the journal, after a restart."""
        for uid in uids:
            seen = self._pods.by_uid(uid)
            if seen is not None and seen.request is not None and uid not in self._granted:
                self.granted(seen.pod, seen.request)

    async def run(self) -> None:
        """Work forever: on newly granted pods immediately, on all of them now and then."""
        clock = asyncio.get_running_loop().time
        while True:
            due = clock() + (_FAILED if await self.round() else _ROUND)
            while (left := due - clock()) > 0 and await self._woken(left):
                if await self.look(self._new):
                    due = min(due, clock() + _FAILED)

    async def round(self) -> bool:
        """Patch every pod whose annotations differ; returns whether a patch failed."""
        return await self.look(self._granted)

    async def look(self, uids: Iterable[PodUID]) -> bool:
        """Like ``round``, for these pods."""
        failed = False
        for uid in list(uids):
            self._new.discard(uid)
            if uid not in self._granted:
                continue
            pod, wanted = self._granted[uid]
            seen = self._pods.by_uid(uid)
            if seen is None or seen.pod.finished:
                del self._granted[uid]
            elif _differ(seen, wanted):
                failed |= not await self._patch(pod, wanted)
        return failed

    async def _patch(self, pod: Pod, wanted: dict[str, str]) -> bool:
        try:
            await self._pods.annotate(pod, {**wanted})
        except (ApiError, Unreachable, WireError) as e:
            log.warning("assigned not patched pod=%s/%s reason=%s", pod.metadata.namespace, pod.metadata.name, e)
            return isinstance(e, ApiError) and e.code in (404, 409)  # gone: the view will show it too
        return True

    async def _woken(self, timeout: float) -> bool:
        """Whether something was granted; False when it is time to check all."""
        try:
            async with asyncio.timeout(timeout):
                await self._wake.wait()
        except TimeoutError:
            return False
        self._wake.clear()
        return True


def _differ(seen: PodWithRequest, wanted: dict[str, str]) -> bool:
    present = seen.pod.metadata.annotations or {}
    return any(present.get(key) != value for key, value in wanted.items())
