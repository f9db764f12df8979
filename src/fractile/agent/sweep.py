"""Removes token directories that nobody holds any more.

Failure rule: when in doubt, keep. A directory goes only when two rounds in a row found it unowned, by kubelet's books
and by the API server's pods, and it was not made in the last minutes: kubelet records an Allocate after its answer.
"""

import asyncio
import logging
import time

from fractile.agent.books import Books, BooksClosed, Kubelet, mounted
from fractile.agent.journal import Grant, Journal
from fractile.agent.pods import NodePods
from fractile.kube.pacing import Clock, Sleep
from fractile.wire.devices import to_ranges

_ROUND = 60.0  # seconds
_YOUNG = 300.0

log = logging.getLogger(__name__)


class Sweeper:
    """``now`` is wall time, since it is compared with the age of files."""

    def __init__(
        self,
        kubelet: Kubelet,
        pods: NodePods,
        journal: Journal,
        *,
        now: Clock = time.time,
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        self._kubelet = kubelet
        self._pods = pods
        self._journal = journal
        self._now = now
        self._sleep = sleep
        self._suspects: frozenset[str] = frozenset()

    async def run(self) -> None:
        """Work forever."""
        while True:
            await self._sleep(_ROUND)
            await self.round()

    async def round(self) -> None:
        """One look at all directories."""
        try:
            if not await self._pods.synced(0.0):
                return
            books = await self._kubelet.books()
        except BooksClosed as e:
            log.info("sweep skipped reason=%s", e)
            return
        grants = await asyncio.to_thread(lambda: list(self._journal.grants()))
        unowned = {g.token for g in grants if g.since < self._now() - _YOUNG and not self._owned(g, books)}
        for token in unowned & self._suspects:
            await self._remove(token)
        self._suspects = frozenset(unowned)

    def _owned(self, grant: Grant, books: Books) -> bool:
        if books.recorded is None:
            return grant.ranges in _listed_ranges(books, grant.resource)
        active = self._pods.active()
        return any(
            e.uid in active and (path := mounted(e)) is not None and self._journal.token(path) == grant.token
            for e in books.recorded
            if e.resource == grant.resource
        )

    async def _remove(self, token: str) -> None:
        try:
            await asyncio.to_thread(self._journal.remove, token)
        except OSError as e:
            log.warning("token directory stays token=%s reason=%s", token, e)
            return
        log.info("token directory removed token=%s", token)


def _listed_ranges(books: Books, resource: str) -> set[str]:
    return {to_ranges(held[resource]) for pod in books.listed for held in pod.held.values() if held.get(resource)}
