"""The mix of expected pods, from those that came: all present ones, and the latest of those that are gone.

A pod counts once, by its UID, however often it is retried. Pods that ask for no GPU do not count: they would be a
constant in every score, and on a real cluster most pods are of that kind. Memory is bounded: one entry for each present
pod, and for those that are gone only how many had the same demand in the same minute.
"""

from collections import Counter, deque
from collections.abc import Callable, Mapping

import msgspec

from fractile.model.pod_demand import PodDemand
from fractile.model.units import PodUID
from fractile.policy.nodes.asked import asked
from fractile.policy.nodes.mix import Mix, mix_of_counts
from fractile.policy.nodes.view import TaskDemand

_CLASSES = 48  # most frequent classes that the mix has; the cost of a score grows with them
_TOGETHER = 60.0  # seconds; pods that leave within that are forgotten at the same time
_SHARE = 16  # a mix is out of date when a sixteenth of the pods have changed


class MixWindow(msgspec.Struct, frozen=True):
    """How long pods that are gone count, and at most how many."""

    seconds: float = 7 * 24 * 3600.0
    most: int = 20_000


class _Gone(msgspec.Struct):
    """Pods that left at about the same time."""

    first: float
    last: float
    wishes: Counter[PodDemand]


class SeenPods:
    """``clock`` is monotonic. One writer, on the loop of the ledger."""

    def __init__(self, clock: Callable[[], float], window: MixWindow | None = None) -> None:
        self._clock = clock
        self._window = window or MixWindow()
        self._there: dict[PodUID, PodDemand] = {}
        self._gone: deque[_Gone] = deque()  # the oldest first
        self._gone_count = 0
        self._counts: Counter[PodDemand] = Counter()
        self._changes = 0
        self._read = -1  # changes that the last mix included

    def put(self, uid: PodUID, wish: PodDemand) -> None:
        """Add a pod, waiting or bound; its demand may still be unknown (``better``)."""
        before = self._there.get(uid)
        if before == wish or (before is not None and not wish.asks):
            return
        if before is not None:
            self._count(before, -1)
        self._there[uid] = wish
        self._count(wish, 1)
        self._changes += 1

    def better(self, uid: PodUID, wish: PodDemand) -> None:
        """Update the demand of a pod. An unknown pod is not added: its removal would never be reported."""
        if uid in self._there:
            self.put(uid, wish)

    def gone(self, uid: PodUID) -> None:
        """Handle a pod that finished or was deleted: it still counts for a while."""
        wish = self._there.pop(uid, None)
        if wish is not None and wish.asks:
            now = self._clock()
            if not self._gone or now - self._gone[-1].first >= _TOGETHER:
                self._gone.append(_Gone(now, now, Counter()))
            self._gone[-1].last = now
            self._gone[-1].wishes[wish] += 1
            self._gone_count += 1
            self._forget()

    def __len__(self) -> int:
        """Number of pods that count."""
        return len(self._there) + self._gone_count

    @property
    def outdated(self) -> bool:
        """Whether enough pods came or went since the last mix that a new one is due."""
        self._forget()
        if self._read < 0:
            return self._changes > 0
        return self._changes > self._read and (self._changes - self._read) * _SHARE >= len(self)

    def mix(self, card: int) -> Mix:
        """The mix now (``mix_of_wishes``)."""
        return mix_of_wishes(self.counts(), card)

    def counts(self) -> dict[PodDemand, int]:
        """Number of pods by demand; marks the mix that is made from it as the last one."""
        self._forget()
        self._read = self._changes
        return dict(self._counts)

    def _forget(self) -> None:
        past = self._clock() - self._window.seconds
        while self._gone and ((over := self._gone_count - self._window.most) > 0 or self._gone[0].last < past):
            oldest = self._gone[0]
            wish, count = next(iter(oldest.wishes.items()))
            leaving = count if oldest.last < past else min(count, over)
            oldest.wishes[wish] -= leaving
            if leaving == count:
                del oldest.wishes[wish]
            if not oldest.wishes:
                self._gone.popleft()
            self._gone_count -= leaving
            self._count(wish, -leaving)
            self._changes += leaving

    def _count(self, wish: PodDemand, sign: int) -> None:
        if not wish.asks:
            return
        self._counts[wish] += sign
        if not self._counts[wish]:
            del self._counts[wish]


def mix_of_wishes(counts: Mapping[PodDemand, int], card: int) -> Mix:
    """The pods as requests on cards of so many MiB: the most frequent classes, without those that no card could hold.
    Takes a tenth of a second when each of 20,000 pods has a different demand: run it in a thread."""
    asks: Counter[TaskDemand] = Counter()
    for wish, count in counts.items():
        ask = asked(wish, card)
        if ask is not None:
            asks[ask] += count
    found = mix_of_counts(asks)
    return Mix(found.asks[:_CLASSES], found.counts[:_CLASSES])
