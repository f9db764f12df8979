"""Choose free cards that belong together: the closest group, or cards of the most fragmented branch.

``closest`` (gpu-manager's link) is exact: of all groups of ``count`` free cards it takes the first by
  1. fewest models: the slowest card sets the pace of all;
  2. the best ring, then the largest sum over pairs (``bandwidth``);
  3. the smallest cards, so that large ones stay free;
  4. the largest sum over pairs of the cards that stay free;
  5. the lowest indexes.
Interchangeable cards count as one kind, so a machine behind one switch has one group to
check, not thousands. On machines with more than 16 cards and many groups, one group is grown from each card (``wide``).

``fragment`` descends the tree of branches (cards that reach each other at some rate, from the slowest rate up) into the
most fragmented branch, and keeps whole branches whole. Positions are those of the matrix; all results are in ascending
order. The searches are cached: clusters have few kinds of nodes.
"""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import combinations, pairwise
from math import comb, prod

from fractile.policy.cards import groups, wide
from fractile.policy.cards.bandwidth import Matrix, Rings, at_least, bits, parts, total

_EXACT = 20_000  # most groups that are compared; 8 of 16 cards are 12,870
_SETS = 12  # most sets of equal cards on a wider machine ...
_FEW = 4096  # ... and most different groups, for all to be compared there
_MANY = 200  # from this many on, groups are compared together, which has a fixed cost of 0.5 ms
_MANY_KINDS = 1000  # the same with interchangeable cards: then there are many more groups than different ones
_WIDEST = 16  # most cards compared that way: 2^16 sets

Kinds = tuple[tuple[str, int], ...]  # model and memory of each card
Positions = tuple[int, ...]


@lru_cache(maxsize=8192)
def closest(pairs: Matrix, kinds: Kinds, free: Positions, count: int) -> Positions:
    """The best-connected ``count`` of the free cards, of which there must be at least that many."""
    if count >= len(free):
        return free
    if len(free) > _WIDEST:
        return wide.best(pairs, kinds, free, _some_groups(pairs, kinds, free, count))
    sets = _exchangeable(pairs, kinds, free)
    least = min(comb(len(free), count), prod(len(s) + 1 for s in sets))
    many = _MANY if len(sets) == len(free) else _MANY_KINDS
    if many < least <= _EXACT and count > 2 and len(free) <= _WIDEST:
        return groups.best(pairs, kinds, free, count)
    candidates = list(_groups(sets, count))
    models = [len({kinds[a][0] for a in group}) for group in candidates]
    fewest = min(models)
    candidates = [group for group, several in zip(candidates, models, strict=True) if several == fewest]
    candidates.sort(key=_Order(pairs, kinds, free).key)
    for rate in sorted({pairs[a][b] for a in free for b in free if a != b}, reverse=True):
        rings = Rings(pairs, rate)
        for group in candidates:
            if rings.through(group):
                return group
    return candidates[0]  # a single card


@lru_cache(maxsize=8192)
def fragment(pairs: Matrix, kinds: Kinds, free: Positions, count: int) -> Positions:
    """``count`` free cards of the most fragmented branch with at least that many; among equals the smallest cards."""
    able = free
    if count == 1:
        smallest = min(kinds[a][1] for a in free)
        able = tuple(a for a in free if kinds[a][1] == smallest)
    branch, among = tuple(range(len(pairs))), able
    for rate in parting(pairs):
        large = [p for p in branches(pairs, branch, rate) if len(_of(p, able)) >= count]
        if not large:
            break
        branch = min(large, key=lambda p: (len(_of(p, free)) == len(p), len(_of(p, free)), p))
        among = _of(branch, able)
    if count > 1:
        return closest(pairs, kinds, among, count)
    return (min(among, key=lambda a: (sum(pairs[a][b] for b in free), a)),)


def rates(pairs: Matrix) -> list[int]:
    """The different rates between cards, the slowest first."""
    return sorted({rate for a, row in enumerate(pairs) for b, rate in enumerate(row) if a != b})


def branches(pairs: Matrix, cards: Sequence[int], rate: int) -> list[Positions]:
    """The cards in groups that reach each other at that rate, directly or through others."""
    return [tuple(bits(part)) for part in parts(at_least(pairs, rate), sum(1 << a for a in cards))]


class _Order:
    """The order of groups with the same ring."""

    def __init__(self, pairs: Matrix, kinds: Kinds, free: Positions) -> None:
        self._pairs = pairs
        self._kinds = kinds
        self._free = total(pairs, free)
        self._degree = {a: sum(pairs[a][b] for b in free) for a in free}

    def key(self, group: Positions) -> tuple[int, int, int, Positions]:
        inside = total(self._pairs, group)
        left = self._free - sum(self._degree[a] for a in group) + inside
        return -inside, sum(self._kinds[a][1] for a in group), -left, group


def parting(pairs: Matrix) -> list[int]:
    """The rates at which a branch splits, that is, cards that reached each other at the rate below, directly or through
    others, no longer do: those just above the rates of the maximum spanning tree (Prim, 1957). A tree of 128 cards has
    at most 127."""
    every = rates(pairs)
    joined = list(pairs[0]) if pairs else []
    outside = set(range(1, len(pairs)))
    ways: set[int] = set()
    while outside:
        nearest = max(outside, key=joined.__getitem__)
        outside.remove(nearest)
        ways.add(joined[nearest])
        joined = list(map(max, joined, pairs[nearest]))
    return [rate for before, rate in pairwise([-1, *every]) if before in ways or before == -1]


def _some_groups(pairs: Matrix, kinds: Kinds, free: Positions, count: int) -> list[Positions]:
    """All different groups if they are few; else one around each card."""
    sets = _exchangeable(pairs, kinds, free, most=_SETS)
    differ = prod(len(s) + 1 for s in sets)
    return list(_groups(sets, count)) if sets and differ <= _FEW else wide.grown(pairs, free, count)


def _of(branch: Positions, among: Positions) -> Positions:
    return tuple(a for a in branch if a in among)


def _exchangeable(pairs: Matrix, kinds: Kinds, free: Positions, *, most: int = _WIDEST) -> list[Positions]:
    """The free cards in sets of interchangeable cards; empty if there are more than ``most`` sets."""
    sets: list[list[int]] = []
    for a in free:
        for alike in sets:
            b = alike[0]
            if kinds[a] == kinds[b] and all(pairs[a][c] == pairs[b][c] for c in free if c not in (a, b)):
                alike.append(a)
                break
        else:
            sets.append([a])
            if len(sets) > most:
                return []
    return [tuple(s) for s in sets]


def _groups(sets: Sequence[Positions], count: int) -> Iterator[Positions]:
    """All groups of ``count`` cards that differ in more than interchangeable cards: of each set, its first cards."""
    if max(map(len, sets)) == 1:
        return combinations((a for (a,) in sets), count)

    behind = [sum(map(len, sets[n + 1 :])) for n in range(len(sets))]

    def taken(n: int, left: int) -> Iterator[Positions]:
        if n == len(sets):
            yield ()
            return
        for k in range(max(left - behind[n], 0), min(left, len(sets[n])) + 1):
            for rest in taken(n + 1, left - k):
                yield sets[n][:k] + rest

    return (tuple(sorted(group)) for group in taken(0, count))
