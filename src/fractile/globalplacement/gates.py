"""Removes our scheduling gate from pods that no leader decides on: the one that set it died, or cannot write.

Every replica checks, whether it leads or not, and without the lease: removing a gate places no pod. The leader is at
work as long as gates disappear; when none did for a while, all gates of that age are removed. No gate gets older than
``LONGEST``, whatever happens to others.

A replica that leads has a watch of all pods, which also serves this module: a second one would double the load on the
API server.

Failure rule: a removal that fails is repeated at the next check.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import NoReturn

from fractile.errors import ApiError, FractileError
from fractile.globalplacement.counts import DecisionTally, Remover
from fractile.kube import paths
from fractile.kube.client import KubeClient
from fractile.kube.reflector import Gone, Reflector
from fractile.model.units import PodUID
from fractile.wire.kubernetes.objects import Pod
from fractile.wire.kubernetes.queued import gated, without_gate

log = logging.getLogger(__name__)

SILENCE = 3.0  # seconds in which a working leader removes at least one gate
LONGEST = 60.0  # seconds
LOOK = 0.5
_AT_ONCE = 50  # gates removed at a time


class GateSweeper:
    """``clock`` is monotonic; ages count from when this replica first saw a pod."""

    def __init__(self, client: KubeClient, clock: Callable[[], float], tally: DecisionTally | None = None) -> None:
        self._client = client
        self._clock = clock
        self._tally = tally or DecisionTally()
        self._gated: dict[PodUID, tuple[float, Pod]] = {}  # with the time since when
        self._swept: set[PodUID] = set()  # pods whose gate we remove, which is no sign of a working leader
        self._progress = clock()
        self._shown = asyncio.Event()  # another watch shows the pods
        self._alone = asyncio.Event()  # the opposite
        self._alone.set()

    def changed(self, pod: Pod) -> None:
        """Handle a pod, bound or not."""
        uid = PodUID(pod.metadata.uid)
        if pod.spec.node_name:
            self._forget(uid)
        elif gated(pod):
            since, _ = self._gated.get(uid, (self._clock(), pod))
            self._gated[uid] = since, pod
        else:
            if uid in self._gated and uid not in self._swept:
                self._progress = self._clock()
            self._forget(uid)

    def gone(self, gone: Gone) -> None:
        """Handle a pod that was deleted or bound; which of the two is unknown, so it is no sign of a working leader."""
        self._forget(PodUID(gone.uid))

    async def shown(self, synced: asyncio.Event) -> NoReturn:
        """Rest our own watch while another one calls ``changed`` and ``gone`` for all pods, until this is cancelled.
        ``synced``: set when that watch has shown all pods."""
        await synced.wait()
        self._alone.clear()
        self._shown.set()
        try:
            await asyncio.Event().wait()  # as long as that watch lasts
        finally:
            self._shown.clear()
            self._gated.clear()  # what ends before our own list would never be shown
            self._alone.set()
        raise AssertionError("an event that no other task holds was set")

    def due(self) -> list[Pod]:
        """Pods whose gate is to be removed now, the oldest first."""
        now = self._clock()
        silent = now - self._progress > SILENCE
        return [
            pod for since, pod in self._gated.values() if now - since > LONGEST or (silent and now - since > SILENCE)
        ]

    async def run(self) -> NoReturn:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._watch())
            while True:
                await asyncio.sleep(LOOK)
                due = self.due()
                for first in range(0, len(due), _AT_ONCE):
                    async with asyncio.TaskGroup() as some:
                        for pod in due[first : first + _AT_ONCE]:
                            some.create_task(self._remove(pod))

    async def _watch(self) -> NoReturn:
        """Watch pods that are not bound, while no other watch shows them."""
        while True:
            await self._alone.wait()
            own = Reflector(
                self._client, paths.pods(), Pod, changed=self.changed, gone=self.gone, field_selector="spec.nodeName="
            )
            async with asyncio.TaskGroup() as one:
                watching = one.create_task(own.run())
                await self._shown.wait()
                watching.cancel()

    def _forget(self, uid: PodUID) -> None:
        self._gated.pop(uid, None)
        self._swept.discard(uid)

    async def _remove(self, pod: Pod) -> None:
        uid = PodUID(pod.metadata.uid)
        self._swept.add(uid)
        try:
            await self._client.strategic_patch(paths.pod(pod.metadata.namespace, pod.metadata.name), without_gate(pod))
        except FractileError as e:
            if not isinstance(e, ApiError) or e.code not in (404, 409, 422):  # gone, or another of that name
                log.warning("gate not removed pod=%s/%s reason=%s", pod.metadata.namespace, pod.metadata.name, e)
            return
        self._tally.gate_removed(Remover.SWEEPER)
        log.info("gate removed pod=%s/%s", pod.metadata.namespace, pod.metadata.name)
