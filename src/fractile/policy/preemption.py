"""Which pods of a node must leave so that another fits: the fewest, of the lowest priority, on the right card.

Kube-scheduler knows the sums of a node, not its cards, so what it would evict frees the wrong ones as often as not.
Sets of victims are compared in its own order (pickOneNodeForPreemption, k/k pkg/scheduler/framework): fewer that break
a PodDisruptionBudget, then a lower highest priority, then a lower sum of priorities, each of them moved up so that it
counts, then fewer pods; what is still equal goes to the pods that started last.

    all that may leave do not suffice ──> None
    the least important levels that suffice ──> pool
    for each group of so many cards as the pod needs: the pods of the pool that are on them
        keep the most important as long as it fits ──> a set that needs each of its members
        look for a cheaper one: take or leave, the least important first, unless what is taken costs too much already
            or what is left does not suffice

The last step is exact; it ends early, with the best set so far, when it has looked too often (``looks``).
"""

from collections.abc import Callable, Iterable, Sequence
from itertools import combinations

import msgspec

from fractile.model.placement import Charge
from fractile.model.units import CardUUID, PodUID

LOOKS = 3000  # at a node; one takes up to 0.3 ms
_GROUPS = 200  # of cards; where there are more, all cards are one group
_BASE = 2**31  # kube-scheduler adds it to every priority, so that none is negative

Fits = Callable[[frozenset[PodUID]], bool]
Cost = tuple[int, int, int, int]
Level = tuple[bool, int]


class Candidate(msgspec.Struct, frozen=True):
    """A pod that may be evicted. ``started`` is RFC 3339; ``violates``: a PodDisruptionBudget forbids it; ``leaving``:
    it is being deleted anyway. ``cpu`` and ``memory`` are what it requests of the node, in thousandths and MiB."""

    uid: PodUID
    priority: int
    started: str = ""
    violates: bool = False
    leaving: bool = False
    cpu: int = 0
    memory: int = 0
    charges: tuple[Charge, ...] = ()

    @property
    def level(self) -> Level:
        """How dear it is."""
        return (False, -_BASE) if self.leaving else (self.violates, self.priority)


def importance(candidate: Candidate) -> tuple[bool, int, str]:
    """Of two pods of one level the one that started earlier is more important; turned round for sorting."""
    return (*candidate.level, _reversed(candidate.started))


def cost_of(victims: Iterable[Candidate]) -> Cost:
    """What evicting all of them costs; pods that are leaving anyway cost nothing but their number."""
    violating = total = count = 0
    highest = -_BASE
    for violates, priority in (v.level for v in victims):
        violating += violates
        highest = max(highest, priority)
        total += priority + _BASE
        count += 1
    return violating, highest, total, count


def dearest(candidates: Sequence[Candidate], fits: Fits) -> Level | None:
    """The level of the dearest pod that must leave at least; None when all of them are not enough. Cheap to learn."""
    if fits(frozenset()):
        return (False, -_BASE)
    pool = _pool(candidates, fits)
    return None if pool is None else max(c.level for c in pool)


def fewest(
    candidates: Iterable[Candidate],
    fits: Fits,
    *,
    cards: int = 1,
    looks: int = LOOKS,
    over: Callable[[], bool] = lambda: False,
) -> tuple[Candidate, ...] | None:
    """The cheapest set without which the pod fits, the most important first; None when all of them are not enough, or
    when that could not be found out.

    ``fits`` says whether it does without these pods; the more leave, the sooner. ``cards``: how many the pod needs.
    ``over``: from when on ``fits`` cannot be asked any more.
    """
    if fits(frozenset()):
        return ()
    order = sorted(candidates, key=lambda c: (importance(c), c.uid))
    pool = _pool(order, fits)
    if pool is None:
        return None
    search = _Search(fits, looks, over)
    for group in _groups(pool, cards):
        mine = [c for c in pool if any(charge.card in group for charge in c.charges)]
        search.look_among(mine)
    if search.best is None:
        search.look_among(pool)
    return None if search.best is None else tuple(reversed(search.best))


def _pool(order: Sequence[Candidate], fits: Fits) -> list[Candidate] | None:
    """Those up to the lowest level that suffices. Where a budget must be broken all may be needed: which of the others
    leave may decide how many of those do."""
    if not fits(_uids(order)):
        return None
    for level in sorted({c.level for c in order if not c.level[0]}):
        cheaper = [c for c in order if c.level <= level]
        if fits(_uids(cheaper)):
            return cheaper
    return list(order)


def _groups(pool: Sequence[Candidate], cards: int) -> list[frozenset[CardUUID]]:
    held = sorted({charge.card for c in pool for charge in c.charges})
    most = min(cards, len(held))
    groups: list[frozenset[CardUUID]] = []
    for group in combinations(held, most):
        if len(groups) == _GROUPS:
            return [frozenset(held)]
        groups.append(frozenset(group))
    return groups


class _Search:
    """The cheapest set of several searches; ``looks`` are left to all of them together."""

    def __init__(self, fits: Fits, looks: int, over: Callable[[], bool]) -> None:
        self._fits = fits
        self._over = over
        self._looks = looks
        self.best: list[Candidate] | None = None  # the least important first
        self._cost: Cost = (0, 0, 0, 0)

    def look_among(self, pool: Sequence[Candidate]) -> None:
        """Look for a cheaper set among these, the least important first."""
        if self.best is not None and self._looks <= 0:
            return
        self._looks -= 1
        if not self._fits(_uids(pool)):
            return
        self._offer(self._needed(pool))
        self._take_or_leave(pool, 0, [])

    def _needed(self, pool: Sequence[Candidate]) -> list[Candidate]:
        kept = list(pool)
        self._looks -= len(pool)
        for candidate in reversed(pool):
            without = [c for c in kept if c is not candidate]
            if self._fits(_uids(without)):
                kept = without
        return kept

    def _offer(self, found: list[Candidate]) -> None:
        cost = cost_of(found)
        if self.best is None or (cost, _dearest(found)) < (self._cost, _dearest(self.best)):
            self.best, self._cost = found, cost

    def _take_or_leave(self, pool: Sequence[Candidate], at: int, taken: list[Candidate]) -> None:
        """``taken`` do not suffice, with all from ``at`` on they do."""
        while at < len(pool) and self._looks > 0 and not self._over():
            # Whoever comes later costs no less than this one.
            if self.best is not None and cost_of([*taken, pool[at]]) >= self._cost:
                return
            self._looks -= 2
            more = [*taken, pool[at]]
            if self._fits(_uids(more)):
                self._offer(more)
            else:
                self._take_or_leave(pool, at + 1, more)
            # Left out, and with it those that are no different.
            left = at
            while at < len(pool) and _alike(pool[at], pool[left]):
                at += 1
            if not self._fits(_uids([*taken, *pool[at:]])):
                return


def _dearest(found: Iterable[Candidate]) -> list[tuple[bool, int, str]]:
    return sorted(map(importance, found), reverse=True)


def _alike(a: Candidate, b: Candidate) -> bool:
    return (a.level, a.cpu, a.memory, a.charges) == (b.level, b.cpu, b.memory, b.charges)


def _uids(candidates: Iterable[Candidate]) -> frozenset[PodUID]:
    return frozenset(c.uid for c in candidates)


def _reversed(text: str) -> str:
    """Sorts the other way round than the text does."""
    return "".join(chr(0x10FFFF - ord(c)) for c in text) + "\U0010ffff"
