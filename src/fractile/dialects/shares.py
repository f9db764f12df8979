"""What device ids stand for in each family: parts of a card, or cards. Pure arithmetic."""

from collections.abc import Mapping, Sequence

from fractile.model.card import Card
from fractile.model.placement import Slice
from fractile.model.request import ContainerRequest, Request
from fractile.model.units import WHOLE, CardUUID, MiB


def spread_evenly(amount: int, slices: Sequence[Slice]) -> dict[CardUUID, int]:
    """Spread ``amount`` ids evenly over the cards of the slices; the first cards get the remainder."""
    each, left = divmod(amount, max(len(slices), 1))
    return {s.card: each + (n < left) for n, s in enumerate(slices) if each + (n < left)}


def by_amount(request: Request, amount: int, held: Mapping[CardUUID, int]) -> tuple[Slice, ...]:
    """The slices of a container that asked for a part of one card: each id is 1/``amount`` of the requested memory."""
    each = ((card, MiB(request.memory * ids // max(amount, 1))) for card, ids in held.items())
    return tuple(Slice(card, memory, request.cores, request.slots) for card, memory in each)


def by_card(request: Request, held: Mapping[CardUUID, int], cards: Sequence[Card]) -> tuple[Slice, ...]:
    """The slices of a container whose ids stand for cards: the requested part of each card, or all of it."""
    known = {c.uuid: c.memory for c in cards}
    cores = WHOLE if request.exclusive else request.cores
    return tuple(Slice(card, request.memory_on(known.get(card, MiB(0))), cores, request.slots) for card in held)


def parts_or_cards(asked: ContainerRequest, held: Mapping[CardUUID, int], cards: Sequence[Card]) -> tuple[Slice, ...]:
    """The slices of a container whose ids are parts of one card, or stand for whole cards if it asked for those."""
    if asked.request.exclusive:
        return by_card(asked.request, held, cards)
    return by_amount(asked.request, asked.amount, held)
