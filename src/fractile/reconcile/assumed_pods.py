"""Resolves Bindings of unknown outcome: the pod stayed assumed for longer than any answer can take.

The pod is read from the API server. Bound: the watch is late, the hold stays. Not bound, or another pod: the hold is
dropped. No answer: the hold stays and the read is retried; capacity is never given away on a guess.
"""

import asyncio
import logging

from fractile.errors import ApiError, FractileError
from fractile.kube import paths
from fractile.kube.client import KubeClient
from fractile.ledger.ledger import Ledger
from fractile.model.units import PodUID
from fractile.reconcile.faults import Faults
from fractile.watch.event_handlers import PodHandlers, Unseen
from fractile.watch.waiting_pods import WaitingPods
from fractile.wire.kubernetes.objects import Pod

log = logging.getLogger(__name__)

EXPIRY = 34.0  # seconds; kube-apiserver ends a write this long after receiving it, whether or not the caller waits
_PERIOD = 5.0


class AssumedPods:
    def __init__(
        self,
        *,
        ledger: Ledger,
        waiting: WaitingPods,
        handlers: PodHandlers,
        client: KubeClient,
        faults: Faults | None = None,
    ) -> None:
        self._faults = faults or Faults()
        self._ledger = ledger
        self._waiting = waiting
        self._handlers = handlers
        self._client = client

    async def run(self) -> None:
        while True:
            await asyncio.sleep(_PERIOD)
            for uid in self._ledger.overdue(EXPIRY):
                with self._faults.apart("doubt", "", uid):
                    if self._ledger.is_overdue(uid, EXPIRY):  # reading the others took time: a new write may be out
                        await self.resolve(uid)
            for uid, read in self._handlers.unseen(EXPIRY):
                with self._faults.apart("doubt", read.namespace, read.name):
                    await self.look_again(uid, read)

    async def resolve(self, uid: PodUID) -> None:
        """Find out what became of one assumed pod."""
        waiting = self._waiting.find(uid)
        if waiting is None:  # the watch has shown it gone, or bound with another placement
            self._drop(uid, "no longer waiting")
            return
        asked = self._ledger.entry(uid)
        try:
            pod = await self._client.get(paths.pod(waiting.namespace, waiting.name), Pod)
        except FractileError as e:
            if isinstance(e, ApiError) and e.code == 404:
                self._handlers.deleted(uid)
            else:
                self._ledger.renew(uid)
            return
        if pod.metadata.uid != uid:
            self._handlers.deleted(uid)
        elif pod.spec.node_name:
            self._handlers.looked(pod)
        elif self._ledger.entry(uid) is asked:  # otherwise a new write went out, which this answer may predate
            self._drop(uid, "not bound")

    async def look_again(self, uid: PodUID, read: Unseen) -> None:
        """Read a pod again that was read once and that no watch has shown since."""
        try:
            pod = await self._client.get(paths.pod(read.namespace, read.name), Pod)
        except FractileError as e:
            if isinstance(e, ApiError) and e.code == 404:
                self._handlers.deleted(uid)
            return
        if pod.metadata.uid == uid:
            self._handlers.looked(pod)
        else:
            self._handlers.deleted(uid)

    def _drop(self, uid: PodUID, reason: str) -> None:
        entry = self._ledger.entry(uid)
        if entry is not None:
            log.info("assumption expired uid=%s node=%s reason=%s", uid, entry.placement.node, reason)
            self._handlers.give_back(uid)
