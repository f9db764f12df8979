"""Publishes the node's cards at the API server: one ExtendedResource per card, owned by the Node object.

Level-triggered: whenever the catalog changes, and now and then, the objects are compared with it; differences are
applied, objects of cards that the node no longer has are deleted. The objects are also the memory of earlier agents:
``health`` gets them before anything is changed.

Once a minute each object is looked up by its name, in the cache of the API server, so that a deleted one is recreated
soon. By name, the server looks up one object; a list by label or a watch would make it compare selectors with the
objects of all nodes. Failure rule: while the API server fails it retries soon. A card whose object is refused, since
another node has one with that name, does not hold back the others; an event of the node reports it.
"""

import asyncio
import logging
from collections.abc import Callable, Collection

from fractile.agent.devices.health import HealthMonitor
from fractile.agent.node.catalog import Catalog, CurrentCatalog
from fractile.errors import ApiError, Unreachable, WireError
from fractile.kube import paths
from fractile.kube.client import KubeClient
from fractile.kube.events import EventRecorder
from fractile.kube.pacing import Sleep
from fractile.model.card import GPU, Card
from fractile.model.units import CardUUID, NodeName
from fractile.wire.fractile.extended_resource import (
    LOST,
    NODE_LABEL,
    UNHEALTHY,
    ExtendedResource,
    ExtendedResourceApply,
    dialects,
    from_card,
    object_name,
)
from fractile.wire.kubernetes.objects import Node, OwnerReference

FIELD_MANAGER = "fractile-agent"
REASON = "CardNotPublished"

_AUDIT = 600.0  # seconds between two comparisons of the objects while nothing changes
_LOOK = 60.0  # between two checks that they all exist
_FAILED = 2.0
_REFUSED = frozenset({403, 409, 422})  # about this object; other answers concern all objects
_FIRST = 30.0  # for the driver to be read before the objects are compared with the cards

log = logging.getLogger(__name__)

Strange = Callable[[CardUUID], None]


class Inventory:
    """Keeps the objects in line with the catalog. ``strange`` is called with a card whose object is new or has another
    health. ``served``: the families of names that this agent serves; None: they are not written."""

    def __init__(
        self,
        client: KubeClient,
        current_catalog: CurrentCatalog,
        health: HealthMonitor,
        events: EventRecorder,
        *,
        node: NodeName,
        served: Collection[str] | None = None,
        strange: Strange = lambda card: None,
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        self._client = client
        self._current_catalog = current_catalog
        self._health = health
        self._events = events
        self._node = node
        self._served = served
        self._strange = strange
        self._sleep = sleep
        self._told: dict[CardUUID, str] = {}  # why its object was refused

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
        """Make the objects of this node match the cards. Returns the catalog that they now match; ApiError when one of
        them was refused."""
        node = await self._client.get(paths.node(self._node), Node)
        found = await self._present()
        self._health.adopt(r for r in found if r.spec.type == GPU)
        catalog = self._current_catalog.catalog
        present = {r.metadata.name: r for r in found}
        refused = [
            e for card in catalog.all if (e := await self._put(node, card, present.pop(object_name(card.uuid), None)))
        ]
        for stale in present.values():
            await self._delete(stale)
        if refused:
            raise refused[0]
        return catalog

    async def _put(self, node: Node, card: Card, seen: ExtendedResource | None) -> ApiError | None:
        """Apply the object of one card; returns why it was refused."""
        owner = OwnerReference(api_version="v1", kind="Node", name=self._node, uid=node.metadata.uid)
        try:
            await self._apply(from_card(card, self._node, owner, dialects=self._served), seen)
        except ApiError as e:
            if e.code not in _REFUSED:
                raise
            self._refused(node, card.uuid, e)
            return e
        self._told.pop(card.uuid, None)
        if seen is None or (seen.status.phase in (UNHEALTHY, LOST)) is card.healthy:
            self._strange(card.uuid)
        return None

    async def _present(self) -> list[ExtendedResource]:
        """The label finds them, the specification decides: users can put the label on any object."""
        selector = f"{NODE_LABEL}={self._node}"
        found, _ = await self._client.list(paths.extended_resources(), ExtendedResource, label_selector=selector)
        return [r for r in found if r.spec.node_name == self._node]

    def _refused(self, node: Node, card: CardUUID, why: ApiError) -> None:
        if self._told.get(card) == str(why):
            return
        self._told[card] = str(why)
        name = object_name(card)
        self._events.emit(
            node,
            REASON,
            f"no pod can get card {card}, because its object cannot be written: {why}. If the object names another "
            f"node, which does not have the card (kubectl get extendedresource {name}), delete it: kubectl delete "
            f"extendedresource {name}",
        )

    async def _read_once(self) -> None:
        try:
            async with asyncio.timeout(_FIRST):
                await self._health.first.wait()
        except TimeoutError:
            log.warning("inventory goes on node=%s reason=%r", self._node, "the driver has not answered yet")

    async def _changed(self, than: Catalog) -> None:
        """Wait until the catalog changes, an object is missing, or it is time for an audit."""
        for _ in range(int(_AUDIT / _LOOK)):
            if await self._another(than) or await self._missing(than):
                return

    async def _another(self, than: Catalog) -> bool:
        """Whether the catalog has changed; waits for it until the next check."""
        waits = [asyncio.ensure_future(self._current_catalog.changed(than)), asyncio.ensure_future(self._sleep(_LOOK))]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            return waits[0].done()
        finally:
            for wait in waits:
                wait.cancel()

    async def _missing(self, catalog: Catalog) -> bool:
        """Whether a card's object is gone; cards whose object is refused are skipped."""
        try:
            cards = [c.uuid for c in catalog.all if c.uuid not in self._told and not await self._there(c.uuid)]
        except (ApiError, Unreachable, WireError):
            return False  # the audit will report it
        if cards:
            log.warning("objects of cards missing, created again node=%s cards=%s", self._node, ",".join(cards))
        return bool(cards)

    async def _there(self, card: CardUUID) -> bool:
        name = f"metadata.name={object_name(card)}"
        found, _ = await self._client.list(
            paths.extended_resources(), ExtendedResource, field_selector=name, cached=True
        )
        return bool(found)

    async def _published(self) -> Catalog | None:
        try:
            return await self.publish()
        except (ApiError, Unreachable, WireError) as e:
            log.warning("inventory not published node=%s reason=%s", self._node, e)
            return None

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
