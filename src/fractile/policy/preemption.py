"""Which pods of a node must leave so that another pod fits: the fewest, of the lowest priority, on the right card.

Kube-scheduler knows a node's sums, not its cards, so the pods that it would evict often free the wrong cards. Sets of
victims are compared in kube-scheduler's order (pickOneNodeForPreemption, k/k pkg/scheduler/framework): fewer that break
a PodDisruptionBudget, then a lower highest priority, then a lower sum of priorities (each shifted to be non-negative),
then fewer pods; a remaining tie goes to the pods that started last.

    all candidates together do not suffice ──> None
    the least important levels that suffice ──> pool
    for each group of as many cards as the pod needs: the pods of the pool that are on these cards
        keep the most important ones while the pod fits ──> a set in which every member is necessary
        search for a cheaper set: take or leave each pod, the least important first, unless those taken already cost
            too much or those left do not suffice

The last step is exact; when its budget of checks (``looks``) is used up, it ends with the best set so far.
"""

from collections.abc import Callable, Iterable, Sequence
from itertools import combinations

import msgspec

from fractile.model.placement import Charge
from fractile.model.units import CardUUID, PodUID

LOOKS = 3000  # checks per node; one takes up to 0.3 ms
_GROUPS = 200  # of cards; if there were more, all cards form one group
_BASE = 2**31  # kube-scheduler adds it to every priority to make it non-negative

Fits = Callable[[frozenset[PodUID]], bool]
Cost = tuple[int, int, int, int]
Level = tuple[bool, int]


class Candidate(msgspec.Struct, frozen=True):
    """A pod that may be evicted. ``started`` is RFC 3339; ``violates``: a PodDisruptionBudget forbids it; ``leaving``:
    it is already being deleted. ``cpu`` and ``memory``: what it requests of the node, in thousandths of a CPU and
    MiB."""

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
        """How costly it is to evict."""
        return (False, -_BASE) if self.leaving else (self.violates, self.priority)


def importance(candidate: Candidate) -> tuple[bool, int, str]:
    """Sort key, ascending by importance. Within a level, the pod that started earlier is more important."""
    return (*candidate.level, _reversed(candidate.started))


def cost_of(victims: Iterable[Candidate]) -> Cost:
    """The cost of evicting all of them; pods that are already being deleted add only to the count."""
    violating = total = count = 0
    highest = -_BASE
    for violates, priority in (v.level for v in victims):
        violating += violates
        highest = max(highest, priority)
        total += priority + _BASE
        count += 1
    return violating, highest, total, count


def dearest(candidates: Sequence[Candidate], fits: Fits) -> Level | None:
    """The lowest possible level of the costliest victim; None when evicting all is not enough. Cheap to compute."""
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
    """The cheapest set of victims, the most important first; None when evicting all is not enough or the search ended
    without finding a set.

    ``fits`` says whether the pod fits without the given pods; it is monotonic: true for a set is true for every larger
    set. ``cards``: how many cards the pod needs. ``over``: true once ``fits`` may no longer be called.
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
    """The candidates up to the lowest level that suffices. If a budget must be broken, all candidates are returned:
    which of the others leave may decide how many protected pods must."""
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
    """The cheapest set of several searches, which share the budget ``looks``."""

    def __init__(self, fits: Fits, looks: int, over: Callable[[], bool]) -> None:
        self._fits = fits
        self._over = over
        self._looks = looks
        self.best: list[Candidate] | None = None  # the least important first
        self._cost: Cost = (0, 0, 0, 0)

    def look_among(self, pool: Sequence[Candidate]) -> None:
        """Search for a cheaper set in ``pool``, which has the least important pod first."""
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
        """Extend ``taken``, which does not suffice; with all of the pool from ``at`` on it does."""
        while at < len(pool) and self._looks > 0 and not self._over():
            # Later pods cost no less than this one.
            if self.best is not None and cost_of([*taken, pool[at]]) >= self._cost:
                return
            self._looks -= 2
            more = [*taken, pool[at]]
            if self._fits(_uids(more)):
                self._offer(more)
            else:
                self._take_or_leave(pool, at + 1, more)
            # Leave it out, and all pods that are equivalent to it.
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
    """A text that sorts in the reverse order."""
    return "".join(chr(0x10FFFF - ord(c)) for c in text) + "\U0010ffff"
