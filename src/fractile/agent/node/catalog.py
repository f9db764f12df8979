"""The node's present cards, and the device ids that each resource makes of them."""

import asyncio
from collections.abc import Container, Iterator, Sequence

import msgspec

from fractile.dialects import table
from fractile.dialects.dialect import Advertised
from fractile.dialects.nvidia import SLOTS
from fractile.model.card import Card
from fractile.model.offer import Offer
from fractile.model.units import CardUUID, DeviceID, MemoryUnit
from fractile.wire.fractile.device_ids import device_id


class Catalog(msgspec.Struct, frozen=True):
    """The cards by index, the non-GPU devices, and what is advertised of both to kubelet. Raises SetupError if
    kubelet could not take the ids."""

    cards: tuple[Card, ...]
    unit: MemoryUnit
    advertised: tuple[Advertised, ...]
    slots: int = SLOTS  # of each card
    dialects: frozenset[str] = table.NAMES
    others: tuple[Offer, ...] = ()

    @classmethod
    def of(
        cls,
        cards: Sequence[Card],
        unit: MemoryUnit,
        *,
        slots: int = SLOTS,
        dialects: frozenset[str] = table.NAMES,
        others: Sequence[Offer] = (),
    ) -> "Catalog":
        devices = [*cards, *(o.device for o in others)]
        offered = table.advertised(devices, unit, slots=slots, dialects=dialects)
        return cls(tuple(cards), unit, offered, slots, dialects, tuple(others))

    def with_cards(self, cards: Sequence[Card]) -> "Catalog":
        """The same node with other cards."""
        return Catalog.of(cards, self.unit, slots=self.slots, dialects=self.dialects, others=self.others)

    def with_others(self, others: Sequence[Offer]) -> "Catalog":
        """The same node with other non-GPU devices."""
        return Catalog.of(self.cards, self.unit, slots=self.slots, dialects=self.dialects, others=others)

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
        """The card, or the device, with that id."""
        return next((c for c in self.all if c.uuid == uuid), None)

    @property
    def all(self) -> Iterator[Card]:
        """The cards, and then the other devices."""
        yield from self.cards
        yield from (o.device for o in self.others)

    def offers(self, devices: Container[CardUUID]) -> list[Offer]:
        """The offers of these devices."""
        return [o for o in self.others if o.uuid in devices]

    def devices(self, resource: str) -> Iterator[tuple[DeviceID, bool]]:
        """All ids of the resource, each with whether its card is healthy."""
        counts = self.counts(resource)
        for card in self.all:
            for k in range(counts.get(card.uuid, 0)):
                yield device_id(card.uuid, k), card.healthy


class CurrentCatalog:
    """Holds the present catalog. Readers wait for the next one with ``changed``."""

    def __init__(self, catalog: Catalog) -> None:
        self.catalog = catalog
        self._next = asyncio.Event()

    def update(self, catalog: Catalog) -> None:
        """Publish a catalog and wake all waiting readers."""
        self.catalog = catalog
        self._next.set()
        self._next = asyncio.Event()

    async def changed(self, than: Catalog) -> Catalog:
        """The present catalog as soon as it is not ``than``."""
        while self.catalog is than:
            await self._next.wait()
        return self.catalog
