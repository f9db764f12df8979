"""Tells the control plane whether the node can serve new pods now: ``status.phase`` of its ExtendedResources.

Kubelet fails a pod for good when it admits it while no plugin is registered (node.md 3.4). So an agent that is told to
stop first withdraws its cards, waits until Bindings that are already on their way have been served, and only then lets
go of kubelet; one that starts offers them again when kubelet has taken its plugins. Running pods notice nothing.
Failure rule: it goes on. An API server that does not answer delays neither the stop nor, for long, the start; an agent
that is killed withdraws nothing, and pods bound until it is back may fail.
"""

import asyncio
import logging
from typing import Literal

from fractile.agent.catalog import Stock
from fractile.errors import ApiError, Unreachable
from fractile.kube import paths
from fractile.kube.client import KubeClient
from fractile.kube.pacing import Sleep
from fractile.wire.extended_resource import AVAILABLE, ENFORCED, NOT_ENFORCED, PENDING, object_name

_DRAIN = 1.0  # seconds from Binding to admission; measured: well below half of it
_PATIENCE = 3.0  # for the API server while stopping
_FAILED = 1.0

log = logging.getLogger(__name__)


class Availability:
    """``run`` offers the cards once kubelet listens; ``withdraw`` takes them back before the agent stops."""

    def __init__(
        self,
        client: KubeClient,
        stock: Stock,
        *,
        registered: asyncio.Event,
        enforced: bool = False,
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        self._client = client
        self._stock = stock
        self._registered = registered
        self._isolation = ENFORCED if enforced else NOT_ENFORCED
        self._sleep = sleep

    async def run(self) -> None:
        await self._registered.wait()
        while not await self._set(AVAILABLE):
            await self._sleep(_FAILED)

    async def withdraw(self) -> None:
        """Returns when no pod is on its way to this node any more, or when the API server has had its time."""
        try:
            async with asyncio.timeout(_PATIENCE):
                await self._set(PENDING)
        except TimeoutError:
            log.warning("cards not withdrawn reason=%r", "the API server does not answer")
            return
        await self._sleep(_DRAIN)

    async def _set(self, phase: Literal["Available", "Pending"]) -> bool:
        """Whether all objects that exist say so now; those that do not exist yet need not."""
        done = True
        for card in self._stock.catalog.cards:
            path = f"{paths.extended_resource(object_name(card.uuid))}/status"
            try:
                await self._client.merge_patch(path, {"status": {"phase": phase, "isolation": self._isolation}})
            except (ApiError, Unreachable) as e:
                if not (isinstance(e, ApiError) and e.code == 404):
                    log.warning("phase not written card=%s phase=%s reason=%s", card.uuid, phase, e)
                    done = False
        log.info("cards phase=%s count=%d", phase, len(self._stock.catalog.cards))
        return done
