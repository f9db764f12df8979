"""Keeps the engine's expected pods up to date with the pods that came.

Level-triggered: every few seconds it checks whether enough pods differ from those the mix was made of, or GPUs came or
went. The new mix and its prices, and the scores of the most recent kinds of pods, are computed in a thread while the
old ones serve.
"""

import asyncio
import logging

from fractile.extender.engine import Engine
from fractile.kube.pacing import Sleep
from fractile.policy.nodes.mix import Mix
from fractile.policy.nodes.prices import prices_of
from fractile.watch.pod_mix import SeenPods, mix_of_wishes

_LOOK = 5.0  # seconds between two checks

log = logging.getLogger(__name__)


class Learning:
    """``pinned``: a mix that is used whatever pods come."""

    def __init__(
        self, seen: SeenPods, engine: Engine, *, pinned: Mix | None = None, sleep: Sleep = asyncio.sleep
    ) -> None:
        self._seen = seen
        self._engine = engine
        self._pinned = pinned
        self._sleep = sleep

    async def run(self) -> None:
        """Check forever."""
        while True:
            await self.look()
            await self._sleep(_LOOK)

    async def look(self) -> bool:
        """Renew the mix and its scores if they are out of date; returns whether they were."""
        card = self._engine.usual_size
        if not card:
            return False
        mix = self._pinned if self._pinned is not None else await self._mix(card)
        if mix == self._engine.mix and not self._engine.outdated():
            return False
        prices = await asyncio.to_thread(prices_of, mix)
        prepared = self._engine.prepare(mix, prices)
        await asyncio.to_thread(prepared.warm)
        self._engine.expect(prepared)
        log.info("mix learned classes=%d pods=%d", len(mix.asks), mix.total)
        return True

    async def _mix(self, card: int) -> Mix:
        if not self._seen.outdated:
            return self._engine.mix
        return await asyncio.to_thread(mix_of_wishes, self._seen.counts(), card)
