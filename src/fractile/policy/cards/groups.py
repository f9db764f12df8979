"""Compare many groups of cards together: how ``topology.closest`` works where no two cards are interchangeable.

A group is a number whose bits are its cards, the first card the highest bit, so descending numbers are ascending
groups. With arrays over all groups of 16 cards (12,870 of eight) a choice takes 5 ms instead of 68. Sums of rates stay
below 2^53 and are exact in floating point. The order is that of ``topology``; tests compare the two.
"""

from collections.abc import Iterator, Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from fractile.policy.cards.bandwidth import Matrix, Rings, at_least, bits, parts

Numbers = NDArray[np.int64]
Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]
Positions = tuple[int, ...]

_PRODUCTS = 2**18 - 1  # up to this size OpenBLAS wakes no threads
_TRIED = 16  # best groups tried one by one before the rest is sorted


def best(pairs: Matrix, kinds: Sequence[tuple[str, int]], free: Positions, count: int) -> Positions:
    """The first of all groups of ``count`` free cards; at least three, and fewer than all free cards."""
    groups = _Groups(pairs, kinds, free, count)
    for rate in sorted({pairs[a][b] for a in free for b in free if a != b}, reverse=True):
        rings = Rings(pairs, rate)
        for group in groups.in_order(rate):
            if rings.through(group):
                return group
    return next(groups.in_order(0))


class _Groups:
    """All groups with the fewest possible models."""

    def __init__(self, pairs: Matrix, kinds: Sequence[tuple[str, int]], free: Positions, count: int) -> None:
        self._pairs = pairs
        self._free = free
        self._count = count
        self._numbers, self._has = _every(len(free), count)
        models = [kinds[a][0] for a in free]
        if len(set(models)) > 1:
            several = _models(self._has, models)
            fewest = several == several.min()
            self._numbers, self._has = self._numbers[fewest], self._has[fewest]
        rates = np.array([[pairs[a][b] for b in free] for a in free], np.float64)
        self._inside = (product(self._has, rates) * self._has).sum(axis=1) / 2
        self._memory = self._has @ np.array([kinds[a][1] for a in free], np.float64)
        self._left = self._inside - self._has @ rates.sum(axis=1)  # less what all free cards have: the same for all

    def in_order(self, rate: int) -> Iterator[Positions]:
        """The groups that may have a ring at this rate: each card has two others of the group near it."""
        which = self._likely(rate)
        inside = self._inside[which]
        for _ in range(min(_TRIED, len(which))):
            top = np.flatnonzero(inside == inside.max())
            first = int(top[np.lexsort((-self._left[which[top]], self._memory[which[top]]))[0]])
            yield self._group(int(which[first]))
            which, inside = np.delete(which, first), np.delete(inside, first)
        for n in which[np.lexsort((-self._left[which], self._memory[which], -inside))]:
            yield self._group(int(n))

    def _likely(self, rate: int) -> Numbers:
        near = at_least(self._pairs, rate)
        large = [p for p in parts(near, _core(near, self._free)) if p.bit_count() >= self._count]
        found = [self._within(part, near) for part in large]
        return np.concatenate(found) if found else np.empty(0, np.int64)

    def _within(self, part: int, near: Sequence[int]) -> Numbers:
        """The groups within these connected cards in which each card has two others near it."""
        places = [n for n, a in enumerate(self._free) if part >> a & 1]
        outside = sum(1 << len(self._free) - 1 - n for n, a in enumerate(self._free) if not part >> a & 1)
        which = np.flatnonzero(self._numbers & outside == 0)
        cards = bits(part)
        edges = np.array([[near[a] >> b & 1 for b in cards] for a in cards], np.float64)
        has = self._has[which][:, places]
        return which[((product(has, edges) >= 2) | (has == 0)).all(axis=1)]

    def _group(self, n: int) -> Positions:
        return tuple(a for a, has in zip(self._free, self._has[n], strict=True) if has)


@lru_cache(maxsize=8)  # of 16 cards at most 1.8 MB each
def _every(cards: int, count: int) -> tuple[Numbers, Floats]:
    """All numbers of ``cards`` bits with ``count`` bits set, in descending order; and for each a row with a 1 for each
    card of the group."""
    everything = np.arange(1 << cards, dtype=np.int64)[::-1]
    ones = np.zeros(1 << cards, np.int64)
    for n in range(cards):
        ones += everything >> n & 1
    numbers = everything[ones == count]
    return numbers, (numbers[:, None] >> np.arange(cards - 1, -1, -1) & 1).astype(np.float64)


def product(rows: Floats, matrix: Floats) -> Floats:
    """``rows @ matrix``, in pieces: for larger ones OpenBLAS wakes its threads, which costs 3 ms and gains nothing."""
    piece = max(1, _PRODUCTS // matrix.size)
    if len(rows) <= piece:
        return rows @ matrix
    return np.concatenate([rows[n : n + piece] @ matrix for n in range(0, len(rows), piece)])


def _models(has: Floats, models: Sequence[str]) -> Numbers:
    """How many different models each group has."""
    found = np.zeros(len(has), np.int64)
    for model in set(models):
        found += has[:, [m == model for m in models]].any(axis=1)
    return found


def _core(near: Sequence[int], free: Positions) -> int:
    """The cards, as bits, that remain when cards with fewer than two others near them are removed repeatedly."""
    left = sum(1 << a for a in free)
    while lonely := [a for a in bits(left) if (near[a] & left).bit_count() < 2]:
        left &= ~sum(1 << a for a in lonely)
    return left
