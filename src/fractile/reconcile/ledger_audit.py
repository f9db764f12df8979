"""Compares the ledger with the API server from time to time, and reports every difference: it is a bug, here or in a
watch.

    list, page by page ──> what differs ──a while later, read one by one──> still differs: an error, and corrected

The ledger changes while it is compared, and may be ahead of the list or behind it; so only a difference that persists
in a second check counts. ``PodHandlers`` corrects it, as if the watch had shown it. Failure rule: without an answer
nothing is compared, and the next round tries again.
"""

import asyncio
import logging
from collections.abc import Iterable

import msgspec

from fractile.errors import ApiError, FractileError
from fractile.kube import paths
from fractile.kube.client import KubeClient, decode_leniently
from fractile.ledger.ledger import EntryState, Ledger
from fractile.model.placement import Placement
from fractile.model.units import PodUID
from fractile.reconcile.faults import Faults
from fractile.watch.event_handlers import PodHandlers, Warn
from fractile.wire.fractile.placement import ANNOTATION, recorded
from fractile.wire.kubernetes.objects import Pod

log = logging.getLogger(__name__)

PERIOD = 600.0  # seconds
AGAIN = 15.0  # seconds until the second check; a watch that lags longer has its own warnings
_MOST = 200  # differences of a round that are checked again; further ones are left to the next round

_Name = tuple[str, str]


class LedgerAudit:
    """``warn`` sends an event for the pod that differs."""

    def __init__(
        self, *, ledger: Ledger, handlers: PodHandlers, client: KubeClient, warn: Warn, faults: Faults | None = None
    ) -> None:
        self._faults = faults or Faults()
        self._ledger = ledger
        self._handlers = handlers
        self._client = client
        self._warn = warn

    async def run(self) -> None:
        while True:
            await asyncio.sleep(PERIOD)
            try:
                await self.round()
            except FractileError as e:
                log.warning("audit not done reason=%s", e)

    async def round(self, *, again: float = AGAIN) -> int:
        """Run one comparison; returns how many holds were wrong and have been corrected."""
        # 1. What differs from one consistent list?
        found = await self._compare()
        if not found:
            return 0
        # 2. What still differs?
        await asyncio.sleep(again)
        wrong = [uid for uid, name in list(found.items())[:_MOST] if await self._differs(uid, name)]
        if wrong:
            self._ledger.drifted(len(wrong))
            log.error("audit: %d holds differed from the API server, first=%s", len(wrong), wrong[0])
        return len(wrong)

    async def _compare(self) -> dict[PodUID, _Name]:
        asked, there = self._ledger.now(), set[PodUID]()
        found: dict[PodUID, _Name] = {}
        decoder = msgspec.json.Decoder(Pod)
        async for page in self._client.pages(paths.pods()):
            if page.first:
                there.clear()
                found.clear()
            for raw in page.items:
                meta, pod = decode_leniently(decoder, raw, "list of the audit")
                there.add(PodUID(meta.uid))
                with self._faults.apart("audit", meta.namespace, meta.name):
                    if pod is not None and self._wrong(PodUID(meta.uid), _held(pod)):
                        found[PodUID(meta.uid)] = meta.namespace, meta.name
        found |= self._nowhere(there, asked)
        return found

    def _nowhere(self, there: set[PodUID], asked: float) -> Iterable[tuple[PodUID, _Name]]:
        """Holds, older than the list, of pods that are not in it; their names are no longer known."""
        return [
            (uid, (entry.owner.namespace, ""))
            for uid, entry in self._ledger.entries()
            if uid not in there and entry.since < asked
        ]

    def _wrong(self, uid: PodUID, placed: Placement | None) -> bool:
        """Whether the ledger differs from what the API server shows."""
        entry = self._ledger.entry(uid)
        if placed is None:
            return entry is not None and entry.state is EntryState.BOUND
        if entry is None:
            return uid not in self._ledger.conflicts()
        return entry.placement != placed and not entry.moving

    async def _differs(self, uid: PodUID, name: _Name) -> bool:
        """Read the pod itself; a difference that remains is reported and corrected."""
        entry = self._ledger.entry(uid)
        if not name[1]:  # the list did not contain it
            if entry is not None:
                self._handlers.gone(uid)
            return entry is not None
        try:
            pod = await self._client.get(paths.pod(*name), Pod)
        except ApiError as e:
            if e.code != 404:
                raise
            pod = Pod()
        if pod.metadata.uid != uid:
            self._handlers.gone(uid)
            return entry is not None and self._ledger.entry(uid) is None
        if not self._wrong(uid, _held(pod)):
            return False
        self._warn(pod, "LedgerDrift", "the ledger differed from this pod's placement, and was corrected")
        self._handlers.changed(pod)
        return True


def _held(pod: Pod) -> Placement | None:
    """What the pod holds according to the API server; None if it holds nothing, or nothing that can be decoded."""
    text = (pod.metadata.annotations or {}).get(ANNOTATION)
    if text is None or not pod.spec.node_name or pod.finished:
        return None
    return recorded(text)
