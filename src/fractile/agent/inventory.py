"""Tells the API server which cards the node has: one ExtendedResource per card, owned by the Node object.

Level-triggered: whenever the stock changes, and now and then, the objects are compared with it; what differs is
applied, what the node no longer has is deleted. The objects are also the memory of earlier agents: what stands in them
is shown to ``health`` before anything is changed. Failure rule: while the API server fails it tries again soon.
"""

import asyncio
import logging
from collections.abc import Callable, Collection

from fractile.agent.catalog import Catalog, Stock
from fractile.agent.health import Health
from fractile.errors import ApiError, Unreachable, WireError
from fractile.kube import paths
from fractile.kube.client import KubeClient
from fractile.kube.pacing import Sleep
from fractile.model.card import GPU
from fractile.model.units import CardUUID, NodeName
from fractile.wire.extended_resource import (
    LOST,
    NODE_LABEL,
    UNHEALTHY,
    ExtendedResource,
    ExtendedResourceApply,
    dialects,
    from_card,
    object_name,
)
from fractile.wire.objects import Node, OwnerReference

FIELD_MANAGER = "fractile-agent"

_AUDIT = 600.0  # seconds between two looks at the objects while nothing changes
_FAILED = 2.0
_FIRST = 30.0  # for the driver to be read before the objects are compared with what it says

log = logging.getLogger(__name__)

Strange = Callable[[CardUUID], None]


class Inventory:
    """Keeps the objects like the stock. ``strange`` is told of a card whose object is new or has another health.
    ``served``: the families of names that this agent serves; None: it does not say."""

    def __init__(
        self,
        client: KubeClient,
        stock: Stock,
        health: Health,
        *,
        node: NodeName,
        served: Collection[str] | None = None,
        strange: Strange = lambda card: None,
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        self._client = client
        self._stock = stock
        self._health = health
        self._node = node
        self._served = served
        self._strange = strange
        self._sleep = sleep

    async def run(self) -> None:
        """Work forever."""
        await self._read_once()
        while True:
            published = await self._published()
            if published is None:
                await self._sleep(_FAILED)
            else:
                await self._changed(published)

    async def publish(self) -> Catalog:
        """Make the objects of this node be those of the cards. Returns what they now stand for."""
        owner = await self._owner()
        selector = f"{NODE_LABEL}={self._node}"
        found, _ = await self._client.list(paths.extended_resources(), ExtendedResource, label_selector=selector)
        self._health.adopt(r for r in found if r.spec.type == GPU)
        catalog = self._stock.catalog
        present = {r.metadata.name: r for r in found}
        for card in catalog.all:
            seen = present.pop(object_name(card.uuid), None)
            await self._apply(from_card(card, self._node, owner, dialects=self._served), seen)
            if seen is None or (seen.status.phase in (UNHEALTHY, LOST)) is card.healthy:
                self._strange(card.uuid)
        for stale in present.values():
            await self._delete(stale)
        return catalog

    async def _read_once(self) -> None:
        try:
            async with asyncio.timeout(_FIRST):
                await self._health.first.wait()
        except TimeoutError:
            log.warning("inventory goes on node=%s reason=%r", self._node, "the driver has not answered yet")

    async def _changed(self, than: Catalog) -> None:
        """Until there is another catalog, or it is time for an audit."""
        waits = [asyncio.ensure_future(self._stock.changed(than)), asyncio.ensure_future(self._sleep(_AUDIT))]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()

    async def _published(self) -> Catalog | None:
        try:
            return await self.publish()
        except (ApiError, Unreachable, WireError) as e:
            log.warning("inventory not published node=%s reason=%s", self._node, e)
            return None

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
    new, old = wanted.metadata, present.metadata
    return (
        wanted.spec == present.spec and new.owner_references == old.owner_references and dialects(new) == dialects(old)
    )
