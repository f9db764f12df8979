"""The closest group on a machine with many cards: ``topology.closest`` for more than 16 cards, in bounded time.

A client that may write cards' objects can claim anything about 128 cards. So nothing here takes more than a few steps
over a matrix: groups are grown from all cards together, and the rate of the best ring is found by bisection, since a
ring at one rate is a ring at each lower rate. The order of groups is that of ``topology``.
"""

from collections.abc import Sequence
from itertools import compress

import numpy as np
from numpy.typing import NDArray

from fractile.policy.cards.bandwidth import Matrix, Rings, Steps
from fractile.policy.cards.groups import product

Positions = tuple[int, ...]

_STEPS = 4000  # of the search for rings in total; then only the necessary condition is checked

_Flags = NDArray[np.bool_]
_Floats = NDArray[np.float64]


def grown(pairs: Matrix, free: Positions, count: int) -> list[Positions]:
    """Grow a group around each card, always adding the card with the most bandwidth to the group."""
    rates = _rates(pairs, free)
    has: _Flags = np.eye(len(free), dtype=np.bool_)
    joined = rates.copy()  # from each group to each card
    every = np.arange(len(free))
    for _ in range(count - 1):
        nearest = np.where(has, -1.0, joined).argmax(axis=1)
        has[every, nearest] = True
        joined += rates[nearest]
    members: list[list[bool]] = has.tolist()
    return list(dict.fromkeys(tuple(compress(free, row)) for row in members))


def best(
    pairs: Matrix, kinds: Sequence[tuple[str, int]], free: Positions, candidates: Sequence[Positions]
) -> Positions:
    """The first of the groups in the order of ``topology``."""
    models = [len({kinds[a][0] for a in group}) for group in candidates]
    fewest = min(models)
    groups = [group for group, several in zip(candidates, models, strict=True) if several == fewest]
    has = _members(free, groups)
    rates = _rates(pairs, free)
    inside = (product(has, rates) * has).sum(axis=1) / 2
    memory = has @ np.array([float(kinds[a][1]) for a in free])
    left = inside - has @ rates.sum(axis=1)  # less what all free cards have: the same for all
    order = sorted(range(len(groups)), key=lambda n: (-inside[n], memory[n], -left[n], groups[n]))
    return _first_ring(pairs, rates, free, [groups[n] for n in order], has[order])


def _first_ring(pairs: Matrix, rates: _Floats, free: Positions, groups: Sequence[Positions], has: _Floats) -> Positions:
    """The first group with a ring at the highest rate at which any group has one."""
    steps = Steps(_STEPS)
    every = sorted({pairs[a][b] for a in free for b in free if a != b}, reverse=True)
    found = groups[0]
    low, high = 0, len(every)
    while low < high:
        middle = (low + high) // 2
        first = _first(pairs, rates, every[middle], groups, has, steps)
        if first is None:
            low = middle + 1
        else:
            found, high = first, middle
    return found


def _first(
    pairs: Matrix, rates: _Floats, rate: int, groups: Sequence[Positions], has: _Floats, steps: Steps
) -> Positions | None:
    near = (rates >= rate).astype(np.float64)
    np.fill_diagonal(near, 0)
    others = 2 if len(groups[0]) > 2 else len(groups[0]) - 1
    likely = ((product(has, near) >= others) | (has == 0)).all(axis=1).nonzero()[0]
    places: list[int] = likely.tolist()
    rings = Rings(pairs, rate, steps) if places else None
    return next((groups[n] for n in places if rings is not None and rings.through(groups[n])), None)


def _rates(pairs: Matrix, free: Positions) -> _Floats:
    return np.array([[pairs[a][b] for b in free] for a in free], np.float64)


def _members(free: Positions, groups: Sequence[Positions]) -> _Floats:
    place = {a: n for n, a in enumerate(free)}
    has = np.zeros((len(groups), len(free)))
    for row, group in zip(has, groups, strict=True):
        row[[place[a] for a in group]] = 1
    return has
