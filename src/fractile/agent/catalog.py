"""What the node has now: its cards, and the device ids that each resource makes of them."""

import asyncio
from collections.abc import Iterator, Sequence

import msgspec

from fractile.dialects import table
from fractile.dialects.dialect import Advertised
from fractile.dialects.nvidia import SLOTS
from fractile.model.card import Card
from fractile.model.units import CardUUID, DeviceID, MemoryUnit
from fractile.wire.devices import device_id


class Catalog(msgspec.Struct, frozen=True):
    """The cards by index, and what kubelet is told of them. Raises SetupError where kubelet could not take the ids."""

    cards: tuple[Card, ...]
    unit: MemoryUnit
    advertised: tuple[Advertised, ...]
    slots: int = SLOTS  # of each card
    dialects: frozenset[str] = table.NAMES

    @classmethod
    def of(
        cls,
        cards: Sequence[Card],
        unit: MemoryUnit,
        *,
        slots: int = SLOTS,
        dialects: frozenset[str] = table.NAMES,
    ) -> "Catalog":
        offered = table.advertised(cards, unit, slots=slots, dialects=dialects)
        return cls(tuple(cards), unit, offered, slots, dialects)

    def with_cards(self, cards: Sequence[Card]) -> "Catalog":
        """The same node with other cards."""
        return Catalog.of(cards, self.unit, slots=self.slots, dialects=self.dialects)

    @property
    def resources(self) -> tuple[str, ...]:
        return tuple(a.resource for a in self.advertised)

    def counts(self, resource: str) -> dict[CardUUID, int]:
        """How many ids of the resource each card has."""
        none: dict[CardUUID, int] = {}
        return next((a.ids for a in self.advertised if a.resource == resource), none)

    def distinct(self, resource: str) -> bool:
        """Whether the ids of one container should be of different cards."""
        return any(a.distinct for a in self.advertised if a.resource == resource)

    def card(self, uuid: CardUUID) -> Card | None:
        return next((c for c in self.cards if c.uuid == uuid), None)

    def devices(self, resource: str) -> Iterator[tuple[DeviceID, bool]]:
        """All ids of the resource, each with whether its card is healthy."""
        counts = self.counts(resource)
        for card in self.cards:
            for k in range(counts.get(card.uuid, 0)):
                yield device_id(card.uuid, k), card.healthy


class Stock:
    """The one place that holds the present catalog. Readers wait for the next one with ``changed``."""

    def __init__(self, catalog: Catalog) -> None:
        self.catalog = catalog
        self._next = asyncio.Event()

    def update(self, catalog: Catalog) -> None:
        """Publish a catalog and wake all who wait for one."""
        self.catalog = catalog
        self._next.set()
        self._next = asyncio.Event()

    async def changed(self, than: Catalog) -> Catalog:
        """The present catalog as soon as it is another one."""
        while self.catalog is than:
            await self._next.wait()
        return self.catalog
