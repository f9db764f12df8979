"""What device ids are worth, for the ways in which families count: parts of a card, or cards. Pure arithmetic."""

from collections.abc import Mapping, Sequence

from fractile.model.card import Card
from fractile.model.placement import Slice
from fractile.model.request import ContainerRequest, Request
from fractile.model.units import WHOLE, CardUUID, MiB


def spread_evenly(amount: int, slices: Sequence[Slice]) -> dict[CardUUID, int]:
    """So many ids over the cards of the slices, the first ones get what cannot be divided."""
    each, left = divmod(amount, max(len(slices), 1))
    return {s.card: each + (n < left) for n, s in enumerate(slices) if each + (n < left)}


def by_amount(request: Request, amount: int, held: Mapping[CardUUID, int]) -> tuple[Slice, ...]:
    """The slices of a container that asked for part of one card: each of ``amount`` ids is a part of it."""
    each = ((card, MiB(request.memory * ids // max(amount, 1))) for card, ids in held.items())
    return tuple(Slice(card, memory, request.cores, request.slots) for card, memory in each)


def by_card(request: Request, held: Mapping[CardUUID, int], cards: Sequence[Card]) -> tuple[Slice, ...]:
    """The slices of a container whose ids stand for cards: on each of them what it asked for, or all of it."""
    known = {c.uuid: c.memory for c in cards}
    cores = WHOLE if request.exclusive else request.cores
    return tuple(Slice(card, request.memory_on(known.get(card, MiB(0))), cores, request.slots) for card in held)


def parts_or_cards(asked: ContainerRequest, held: Mapping[CardUUID, int], cards: Sequence[Card]) -> tuple[Slice, ...]:
    """The slices of a container whose ids are parts of one card, or of whole cards when it asked for these."""
    if asked.request.exclusive:
        return by_card(asked.request, held, cards)
    return by_amount(asked.request, asked.amount, held)
