"""The bandwidth between two cards, and within a group: whole MB/s in one direction (docs/concepts/topology.md).

Pairs follow published figures. NVLink, per link: NVIDIA's architecture papers. PCIe, raw: the PCI-SIG's signalling
rates. The usable part of a PCIe rate between cards: NCCL's constants (src/graph/topo.h: 12.0 of 15.75 GB/s behind one
switch, 6/5 overhead through a processor, 6.0 between sockets), less 1 % for each further step, so that of equal rates
the shorter path is preferred.

A group is rated by its best ring: a ring all-reduce runs at the pace of the slowest pair of neighbours (Patarasuk and
Yuan, 2009), and the library is free to choose the order. The sum over all pairs breaks ties.
"""

from collections.abc import Sequence
from functools import lru_cache
from itertools import combinations

from fractile.model.interconnect import Interconnect, links

Matrix = tuple[tuple[int, ...], ...]  # MB/s between cards by position; 0 on the diagonal and where unknown

_NVLINK = {1: 20_000, 2: 25_000, 3: 25_000, 4: 25_000, 5: 50_000}  # MB/s of one link by generation
_LANE = {1: 250, 2: 500, 3: 985, 4: 1_969, 5: 3_938, 6: 7_563}  # MB/s of one lane by generation
_LEFT = {"PIX": 76, "PXB": 75, "PHB": 63, "NODE": 62, "SYS": 38}  # percent of the slower card's PCIe rate
_USUAL_NVLINK, _USUAL_PCIE, _USUAL_LANES = 3, 3, 16  # where the driver does not report it

Side = tuple[int, Interconnect | None]  # NVML's index of a card, and its interconnect


@lru_cache(maxsize=4096)
def matrix(cards: tuple[Side, ...]) -> Matrix:
    """The bandwidth of each pair, by position in ``cards``."""
    seen = [_row(a, cards) for a in cards]
    places = range(len(cards))
    return tuple(tuple(0 if a == b else _pair(seen[a][b], seen[b][a]) for b in places) for a in places)


def total(pairs: Matrix, group: Sequence[int]) -> int:
    """The sum over all pairs of the group."""
    return sum(pairs[a][b] for a, b in combinations(group, 2))


def ring(pairs: Matrix, group: Sequence[int]) -> int:
    """The rate of the slowest neighbours in the best ring through the whole group; 0 for a single card."""
    rates = sorted({pairs[a][b] for a, b in combinations(group, 2)}, reverse=True)
    return next((rate for rate in rates if Rings(pairs, rate).through(group)), 0)


class Steps:
    """How many steps may still be taken in the search for rings."""

    def __init__(self, left: int) -> None:
        self.left = left


class Rings:
    """Which groups have a ring whose pairs all reach a rate.

    A path is laid from the card with the fewest neighbours, always to the neighbour with the fewest (Warnsdorff's
    rule), and abandoned as soon as a remaining card can no longer be passed through. For more than 16 cards, or once
    ``steps`` are used up, only the necessary condition is checked: all cards are connected, each to two others.
    """

    _MOST = 16

    def __init__(self, pairs: Matrix, rate: int, steps: Steps | None = None) -> None:
        self._near = at_least(pairs, rate)
        self._steps = steps

    def through(self, group: Sequence[int]) -> bool:
        """Whether a closed path visits every card of the group once. One card or two count as a ring."""
        mine = sum(1 << a for a in group)
        if len(group) < 3:
            return all(self._near[a] & mine or len(group) == 1 for a in group)
        fewest = min((self._near[a] & mine).bit_count() for a in group)
        if fewest < 2 or not self._connected(mine):
            return False
        if 2 * fewest >= len(group) or len(group) > self._MOST:  # the former: Dirac, 1952
            return True
        start = min(group, key=lambda a: (self._near[a] & mine).bit_count())
        return _Way(self._near, start, self._steps).closes(mine ^ 1 << start, start)

    def _connected(self, mine: int) -> bool:
        seen, edge = 0, mine & -mine
        while edge:
            seen |= edge
            reached = 0
            for a in bits(edge):
                reached |= self._near[a]
            edge = reached & mine & ~seen
        return seen == mine


class _Way:
    """The search for one closed path. Failures are remembered: at most 2^15 sets of cards times 15 ends."""

    def __init__(self, near: Sequence[int], start: int, steps: Steps | None) -> None:
        self._steps = steps
        self._near = near
        self._start = start
        self._failed: set[tuple[int, int]] = set()

    def closes(self, left: int, end: int) -> bool:
        """Whether the path that ends at ``end`` can continue through all cards in ``left`` and back to its start."""
        if self._steps is not None:
            self._steps.left -= 1
            if self._steps.left < 0:
                return True
        if not left:
            return bool(self._near[end] >> self._start & 1)
        near = self._near[end]
        if not self._near[self._start] & left or (left, end) in self._failed:
            return False
        nexts = self._nexts(near & left, left, end)
        if any(self.closes(left ^ 1 << a, a) for a in nexts):
            return True
        self._failed.add((left, end))
        return False

    def _nexts(self, near: int, left: int, end: int) -> list[int]:
        """The next cards to try, those with the fewest neighbours first; none if a card is cut off.

        Each remaining card must be passed through: it needs two neighbours among the remaining cards, the end and the
        start.
        """
        ends = 1 << end | 1 << self._start
        rated: list[tuple[int, int]] = []
        for a in bits(near):
            others = (self._near[a] & (left | ends)).bit_count()
            if others < 2:
                return []
            rated.append((others, a))
        return [a for _, a in sorted(rated)]


def at_least(pairs: Matrix, rate: int) -> list[int]:
    """For each position, which others it reaches at that rate, as bits."""
    return [sum(1 << b for b, has in enumerate(row) if has >= rate and a != b) for a, row in enumerate(pairs)]


def bits(mask: int) -> list[int]:
    """The positions of the bits that are set, lowest first."""
    found: list[int] = []
    while mask:
        low = mask & -mask
        found.append(low.bit_length() - 1)
        mask ^= low
    return found


def parts(near: Sequence[int], cards: int) -> list[int]:
    """The sets of cards, as bits, that reach each other directly or indirectly; the set of the lowest card first."""
    found: list[int] = []
    while cards:
        part, edge = 0, cards & -cards
        while edge:
            part |= edge
            reached = 0
            for a in bits(edge):
                reached |= near[a]
            edge = reached & cards & ~part
        cards &= ~part
        found.append(part)
    return found


def _pair(one: int | None, other: int | None) -> int:
    """The bandwidth of two cards; where their rows disagree, the smaller value."""
    if one is None or other is None:
        return one or other or 0
    return min(one, other)


def _row(card: Side, cards: Sequence[Side]) -> list[int | None]:
    """The bandwidth to each card by a card's own row; None where the row has no entry."""
    if card[1] is None:
        return [None] * len(cards)
    words = card[1].peers.split()
    own = _pcie(card[1])
    return [_seen(words[b[0]] if b[0] < len(words) else "?", card[1], own, b[1]) for b in cards]


def _seen(word: str, card: Interconnect, own: int, other: Interconnect | None) -> int | None:
    if links(word):
        return links(word) * _NVLINK.get(card.nvlink or _USUAL_NVLINK, _NVLINK[max(_NVLINK)])
    left = _LEFT.get(word)
    return None if left is None else min(own, _pcie(other)) * left // 100


def _pcie(card: Interconnect | None) -> int:
    generation, lanes = (card.pcie, card.lanes) if card else (0, 0)
    return _LANE.get(generation or _USUAL_PCIE, _LANE[max(_LANE)]) * (lanes or _USUAL_LANES)
