"""The pods that came, as the mix of those to be expected: all that are there, and the last ones that are gone.

A pod counts once, by its UID, however often it is retried. Who asks for no GPU does not count: it would be a constant
in every score, and on a real cluster most pods are of that kind. Memory is bounded: a name for each pod that is there,
and of those that are gone how many asked for the same in the same minute.
"""

from collections import Counter, deque
from collections.abc import Callable, Mapping

import msgspec

from fractile.model.pod_demand import PodDemand
from fractile.model.units import PodUID
from fractile.policy.nodes.asked import asked
from fractile.policy.nodes.mix import Mix, mix_of_counts
from fractile.policy.nodes.view import TaskDemand

_CLASSES = 48  # of the mix, the commonest; the cost of a score grows with them
_TOGETHER = 60.0  # seconds; pods that go within that are forgotten at the same time
_SHARE = 16  # a mix is out of date when a sixteenth of the pods are others


class MixWindow(msgspec.Struct, frozen=True):
    """How long pods that are gone count, and how many of them."""

    seconds: float = 7 * 24 * 3600.0
    most: int = 20_000


class _Gone(msgspec.Struct):
    """Pods that went at about the same time."""

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
        self._read = -1  # changes that the last mix knew

    def put(self, uid: PodUID, wish: PodDemand) -> None:
        """A pod is there, waiting or bound; what it asks for may be nothing that is known yet (``better``)."""
        before = self._there.get(uid)
        if before == wish or (before is not None and not wish.asks):
            return
        if before is not None:
            self._count(before, -1)
        self._there[uid] = wish
        self._count(wish, 1)
        self._changes += 1

    def better(self, uid: PodUID, wish: PodDemand) -> None:
        """More is known of what the pod asks for. One that is not there stays so: nobody would say that it is gone."""
        if uid in self._there:
            self.put(uid, wish)

    def gone(self, uid: PodUID) -> None:
        """The pod has finished or was deleted: it counts on for a while."""
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
        """How many count."""
        return len(self._there) + self._gone_count

    @property
    def outdated(self) -> bool:
        """Whether so many pods came since the last mix that there should be another."""
        self._forget()
        if self._read < 0:
            return self._changes > 0
        return self._changes > self._read and (self._changes - self._read) * _SHARE >= len(self)

    def mix(self, card: int) -> Mix:
        """The mix now (``mix_of_wishes``)."""
        return mix_of_wishes(self.counts(), card)

    def counts(self) -> dict[PodDemand, int]:
        """How many pods ask for what, now; from here on the mix that is made of it is the last one."""
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
    """The pods as requests on cards of so many MiB, the commonest classes; without those that none could hold. A tenth
    of a second where each of 20,000 pods asks for something else: work for a thread."""
    asks: Counter[TaskDemand] = Counter()
    for wish, count in counts.items():
        ask = asked(wish, card)
        if ask is not None:
            asks[ask] += count
    found = mix_of_counts(asks)
    return Mix(found.asks[:_CLASSES], found.counts[:_CLASSES])
