"""Which pods keep a card that was promised to more pods than it can hold: those that were granted it first.

This should never happen, but a write may arrive unexpectedly late, and a rebuild sees pods in the order of their names.
So each bound pod has a rank that every reader of the API, agents included, computes alone: the holds do not depend on
the order in which pods are seen.
"""

from collections.abc import Callable, Iterable
from typing import NewType, Protocol

from fractile.model.placement import Placement
from fractile.model.units import CardUUID, PodUID

Rank = NewType("Rank", int)  # the smaller one keeps the card; if equal, the pod with the smaller UID

_TIME = 10**14  # the digits of 2026-01-01T00:00:00Z
LAST = Rank(2 * _TIME * _TIME)  # of a pod that no watch has yet shown as bound


def rank(*, waits: bool, bound: str, created: str) -> Rank:
    """``waits``: no container of the pod has run; a pod with one that ran was admitted by its node when there was room.
    ``bound``: when the API server bound it (condition PodScheduled); ``created``: when it was created; RFC 3339, in
    seconds."""
    return Rank((waits * _TIME + _digits(bound)) * _TIME + _digits(created))


def _digits(time: str) -> int:
    found = time[:4] + time[5:7] + time[8:10] + time[11:13] + time[14:16] + time[17:19]
    return int(found) if len(found) == 14 and found.isascii() and found.isdigit() else _TIME - 1


class CardClaim(Protocol):
    """A pod that holds cards, or should."""

    @property
    def placement(self) -> Placement: ...

    @property
    def rank(self) -> Rank: ...


def contested(
    first: PodUID,
    claim: Callable[[PodUID], CardClaim | None],
    sharing: Callable[[CardUUID], Iterable[PodUID]],
    *,
    earlier: bool = False,
) -> list[PodUID]:
    """The pod and, by rank, all pods after it that share a card with it or, transitively, with one of these. No other
    pod's hold depends on what it gets. ``earlier``: also those before it. ``claim``: of a pod, None for one that does
    not take part; ``sharing``: the pods that claim a part of that card. Only the pods of a few cards are checked,
    however many there are."""
    begin = claim(first)
    if begin is None:
        return []
    start = begin.rank, first
    found: dict[PodUID, CardClaim] = {first: begin}
    reached = set(_cards(begin.placement))
    waiting = list(reached)
    while waiting:
        for uid in sharing(waiting.pop()):
            one = None if uid in found else claim(uid)
            if one is None or not (earlier or (one.rank, uid) > start):
                continue
            found[uid] = one
            more = _cards(one.placement) - reached
            reached |= more
            waiting += more
    return sorted(found, key=lambda uid: (found[uid].rank, uid))


def _cards(placement: Placement) -> frozenset[CardUUID]:
    return frozenset(s.card for c in placement.containers for s in c.slices)
