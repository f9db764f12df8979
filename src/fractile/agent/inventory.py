"""Tells the API server which cards the node has: one ExtendedResource per card, owned by the Node object.

Level-triggered: every round reads the driver and compares the objects with it; what differs is applied, what the node
no longer has is deleted, so a lost card takes no more pods and comes back by itself. Failure rule: it goes on with the
last known cards while the driver or the API server fails, and tries again soon.
"""

import asyncio
import logging
from collections.abc import Sequence

from fractile.agent.catalog import Catalog, Stock
from fractile.errors import ApiError, SetupError, Unreachable, WireError
from fractile.kube import paths
from fractile.kube.client import KubeClient
from fractile.kube.pacing import Sleep
from fractile.model.card import Card
from fractile.model.units import NodeName
from fractile.nvml.driver import Driver
from fractile.wire.extended_resource import (
    NODE_LABEL,
    ExtendedResource,
    ExtendedResourceApply,
    from_card,
    object_name,
)
from fractile.wire.objects import Node, OwnerReference

FIELD_MANAGER = "fractile-agent"

_ROUND = 30.0  # seconds between two looks at the driver
_AUDIT = 20  # rounds between two looks at the objects while nothing changes
_FAILED = 2.0

log = logging.getLogger(__name__)


class Inventory:
    """Keeps the objects like the cards, and ``stock`` too."""

    def __init__(
        self, client: KubeClient, driver: Driver, stock: Stock, *, node: NodeName, sleep: Sleep = asyncio.sleep
    ) -> None:
        self._client = client
        self._driver = driver
        self._stock = stock
        self._node = node
        self._sleep = sleep

    async def run(self) -> None:
        """Work forever."""
        rounds = 0
        published: Catalog | None = None
        while True:
            await self._read()
            present = self._stock.catalog
            if present is not published or rounds >= _AUDIT:
                published = present if await self._published(present.cards) else None
                rounds = 0
            rounds += 1
            await self._sleep(_FAILED if published is None else _ROUND)

    async def publish(self, cards: Sequence[Card]) -> None:
        """Make the objects of this node be those of the cards."""
        owner = await self._owner()
        selector = f"{NODE_LABEL}={self._node}"
        found, _ = await self._client.list(paths.extended_resources(), ExtendedResource, label_selector=selector)
        present = {r.metadata.name: r for r in found}
        for card in cards:
            await self._apply(from_card(card, self._node, owner), present.pop(object_name(card.uuid), None))
        for stale in present.values():
            await self._delete(stale)

    async def _published(self, cards: Sequence[Card]) -> bool:
        try:
            await self.publish(cards)
        except (ApiError, Unreachable, WireError) as e:
            log.warning("inventory not published node=%s reason=%s", self._node, e)
            return False
        return True

    async def _read(self) -> None:
        before = self._stock.catalog
        try:
            cards = await asyncio.to_thread(self._driver.cards)
            if tuple(cards) != before.cards:
                self._stock.update(Catalog.of(cards, before.unit))
                log.info("cards changed node=%s count=%d before=%d", self._node, len(cards), len(before.cards))
        except SetupError as e:
            log.warning("cards not read node=%s reason=%s", self._node, e)

    async def _owner(self) -> OwnerReference:
        node = await self._client.get(paths.node(self._node), Node)
        return OwnerReference(api_version="v1", kind="Node", name=self._node, uid=node.metadata.uid)

    async def _apply(self, wanted: ExtendedResourceApply, present: ExtendedResource | None) -> None:
        if present is not None and _same(wanted, present):
            return
        path = paths.extended_resource(wanted.metadata.name)
        await self._client.apply(path, wanted, field_manager=FIELD_MANAGER)
        log.info("card applied node=%s card=%s model=%r", self._node, wanted.spec.device_id, wanted.spec.model)

    async def _delete(self, stale: ExtendedResource) -> None:
        try:
            await self._client.delete(paths.extended_resource(stale.metadata.name), uid=stale.metadata.uid)
        except ApiError as e:
            if e.code not in (404, 409):  # gone, or another node's by now
                raise
        log.info("card deleted node=%s card=%s", self._node, stale.spec.device_id)


def _same(wanted: ExtendedResourceApply, present: ExtendedResource) -> bool:
    return wanted.spec == present.spec and wanted.metadata.owner_references == present.metadata.owner_references
