"""What device ids are worth: between the ids of a container and the slices of its placement. Pure."""

from collections.abc import Mapping, Sequence

from fractile.agent.catalog import Catalog
from fractile.model.placement import Slice
from fractile.model.request import ContainerRequest
from fractile.model.units import WHOLE, CardUUID, MiB, Percent


def ids_wanted(asked: ContainerRequest, slices: Sequence[Slice]) -> dict[CardUUID, int]:
    """How many ids of each card stand for these slices."""
    if asked.request.exclusive:
        return {s.card: asked.amount // max(len(slices), 1) for s in slices}
    total = sum(s.memory for s in slices)
    wanted: dict[CardUUID, int] = {}
    for s in slices:
        wanted[s.card] = wanted.get(s.card, 0) + asked.amount * s.memory // max(total, 1)
    return wanted


def slices_held(asked: ContainerRequest, held: Mapping[CardUUID, int], catalog: Catalog) -> tuple[Slice, ...]:
    """The slices that so many ids of each card stand for."""
    return tuple(_slice(asked, card, ids, catalog) for card, ids in held.items())


def same(a: Sequence[Slice], b: Sequence[Slice]) -> bool:
    """Whether both name the same cards with the same amounts, in whatever order."""
    return sorted(map(_key, a)) == sorted(map(_key, b))


def _slice(asked: ContainerRequest, card: CardUUID, ids: int, catalog: Catalog) -> Slice:
    request = asked.request
    if request.exclusive:
        known = catalog.card(card)
        return Slice(card, known.memory if known else MiB(0), WHOLE)
    memory = request.memory * request.count * ids // max(asked.amount, 1)
    return Slice(card, MiB(memory), Percent(request.cores))


def _key(s: Slice) -> tuple[str, int, int]:
    return s.card, s.memory, s.cores
