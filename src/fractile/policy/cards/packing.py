"""Necessary conditions on what is free for a pod's parts to fit together: if one fails, no search is needed.

Memory, cores, slots and slices are compared in sum; the largest parts, of which no two fit on one card, and the parts
of one container are compared one by one with the roomiest cards. All conditions are necessary; none is sufficient.
"""

from collections.abc import Iterable, Sequence
from itertools import zip_longest

import msgspec

from fractile.model.sharing import MOST_SLICES
from fractile.policy.cards.parts import Peak, SharedCard
from fractile.policy.cards.state import CardState

_WIDEST = 2**18  # MiB of a card up to which sums of parts are distinguished


class Least(msgspec.Struct, frozen=True):
    """The least that parts need, whichever card each goes to. ``memory`` and ``cores``: of each part, the largest
    first; ``distinct``: of the parts that must go to different cards, the largest first."""

    memory: tuple[int, ...]
    cores: tuple[int, ...]
    slots: int
    slices: int
    distinct: tuple[int, ...]


def least_of(parts: Sequence[SharedCard], needs: Sequence[Sequence[Peak]]) -> Least:
    """The least needs of the parts. ``needs``: of each part, on cards of each size."""
    memory = [min(n.memory for n in mine) for mine in needs]
    of_place: dict[int, list[int]] = {}
    for part, size in zip(parts, memory, strict=True):
        for place in part.places:
            of_place.setdefault(place, []).append(size)
    groups = {tuple(sorted(sizes, reverse=True)) for sizes in of_place.values()}
    return Least(
        memory=tuple(sorted(memory, reverse=True)),
        cores=tuple(sorted((min(n.cores for n in mine) for mine in needs), reverse=True)),
        slots=sum(min(n.slots for n in mine) for mine in needs),
        slices=sum(min(n.slices for n in mine) for mine in needs),
        distinct=tuple(max(sizes) for sizes in zip_longest(*groups, fillvalue=0)),
    )


def impossible(least: Least, cards: Sequence[CardState]) -> bool:
    """Whether these cards cannot hold the parts, however they are distributed."""
    memory = sorted((max(0, c.free_memory) for c in cards), reverse=True)
    cores = sorted((max(0, c.free_cores) for c in cards), reverse=True)
    if len(least.distinct) > len(cards) or any(a > b for a, b in zip(least.distinct, memory, strict=False)):
        return True
    if least.slots > sum(max(0, c.free_slots) for c in cards):
        return True
    if least.slices > sum(max(0, (c.rule.max_slices or MOST_SLICES) - c.slices) for c in cards):
        return True
    return _too_much(least.memory, memory) or _too_much(least.cores, cores)


def _too_much(wanted: Sequence[int], free: Sequence[int]) -> bool:
    """Whether the wanted parts cannot fit; both lists have the largest first."""
    if sum(wanted) > sum(free):
        return True
    most = free[0] if free else 0
    for n, size in enumerate(wanted):
        if 2 * size <= most:  # from here on two may share a card
            return size > most
        if n >= len(free) or size > free[n]:
            return True
    return False


def sums_of(sizes: Iterable[int]) -> int:
    """The sums that the sizes can form, as bits, up to ``_WIDEST``."""
    within = (2 << _WIDEST) - 1
    sums = 1
    for size in sizes:
        if 0 < size <= _WIDEST:
            sums |= sums << size & within
    return sums


def leaves_too_much(sums: int, wanted: int, cards: Sequence[CardState]) -> bool:
    """Whether too much stays free because no combination of parts fills a card exactly."""
    free = [max(0, c.free_memory) for c in cards]
    if max(free, default=0) > _WIDEST:
        return False
    return sum((sums & ((2 << room) - 1)).bit_length() - 1 for room in free) < wanted
