"""Removes our scheduling gate from pods that nobody decides on: whoever set it died, or cannot write.

Every replica looks, whether it leads or not, and without the lease: to remove a gate places nobody. The leader is at
work as long as gates go; when none went for a while, all that are as old are removed. A gate is never older than
``LONGEST``, whatever happens to others.

Failure rule: a removal that fails is repeated at the next look.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import NoReturn

from fractile.control.tally import Remover, Tally
from fractile.errors import ApiError, FractileError
from fractile.kube import paths
from fractile.kube.client import KubeClient
from fractile.kube.reflector import Gone, Reflector
from fractile.model.units import PodUID
from fractile.wire.objects import Pod
from fractile.wire.queued import gated, without_gate

log = logging.getLogger(__name__)

SILENCE = 3.0  # seconds in which a leader that is at work removes some gate
LONGEST = 60.0  # seconds
LOOK = 0.5
_AT_ONCE = 50  # gates removed at a time


class GateSweeper:
    """``clock`` is monotonic; ages count from when a pod was first seen here."""

    def __init__(self, client: KubeClient, clock: Callable[[], float], tally: Tally | None = None) -> None:
        self._client = client
        self._clock = clock
        self._tally = tally or Tally()
        self._gated: dict[PodUID, tuple[float, Pod]] = {}  # since when
        self._swept: set[PodUID] = set()  # whose gate we remove, which says nothing of the leader
        self._progress = clock()
        self._watch = Reflector(
            client, paths.pods(), Pod, changed=self.changed, gone=self.gone, field_selector="spec.nodeName="
        )

    def changed(self, pod: Pod) -> None:
        """An unbound pod."""
        uid = PodUID(pod.metadata.uid)
        if gated(pod):
            since, _ = self._gated.get(uid, (self._clock(), pod))
            self._gated[uid] = since, pod
            return
        if self._gated.pop(uid, None) is not None and uid not in self._swept:
            self._progress = self._clock()
        self._swept.discard(uid)

    def gone(self, gone: Gone) -> None:
        """The pod was deleted or bound; which of the two is not known, so it says nothing of the leader."""
        self._gated.pop(PodUID(gone.uid), None)
        self._swept.discard(PodUID(gone.uid))

    def due(self) -> list[Pod]:
        """Whose gate is to be removed now, the oldest first."""
        now = self._clock()
        silent = now - self._progress > SILENCE
        return [
            pod for since, pod in self._gated.values() if now - since > LONGEST or (silent and now - since > SILENCE)
        ]

    async def run(self) -> NoReturn:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._watch.run())
            while True:
                await asyncio.sleep(LOOK)
                due = self.due()
                for first in range(0, len(due), _AT_ONCE):
                    async with asyncio.TaskGroup() as some:
                        for pod in due[first : first + _AT_ONCE]:
                            some.create_task(self._remove(pod))

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
