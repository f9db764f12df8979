"""How far kube-scheduler is in its queue, so that no nomination is written for a pod that it takes before seeing it.

A nomination becomes visible 10 to 400 ms after it was chosen, and kube-scheduler does not re-read a pod that it has
already taken. If the pods of a burst are nominated in the order in which kube-scheduler takes them, every one of these
races can be lost (measured on two busy cores: 740 of 1,000 pods nominated, 232 of them in time). So the pods right in
front of kube-scheduler are left to it, and those behind them are nominated.

    taken already │ taken before a nomination could be seen │ to be nominated
                  └ the last that was taken                 └ + ``reach``

It takes pods in the order of their arrival; where it uses another order, some nominations are in vain.
"""

from collections.abc import Callable
from itertools import count

from fractile.model.units import PodUID

_WEIGHT = 0.2  # of the latest nomination, in the mean number of pods taken during one
_HALF = 5.0  # seconds without a nomination after which half of that mean is forgotten
_NONE = 0.5  # a mean below this counts as 0, so that one fast pod does not cause others to be left out


class QueuePositions:
    """``clock`` is monotonic. ``came`` numbers the pods as they come, ``took`` is called with those that are taken."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._arrivals = count()
        self._number: dict[PodUID, int] = {}
        self._hands: set[PodUID] = set()  # taken, and not yet bound
        self._last = -1  # the number of the last pod that was taken
        self._taken = 0
        self._mean = 0.0  # pods that are taken while a nomination is being written
        self._meant = 0.0  # when that was last updated

    def came(self, uid: PodUID) -> None:
        """The pod was seen for the first time."""
        if uid not in self._number and uid not in self._hands:
            self._number[uid] = next(self._arrivals)

    def took(self, uid: PodUID) -> None:
        """kube-scheduler asks about the pod, or binds it."""
        number = self._number.pop(uid, None)
        if number is not None:
            self._hands.add(uid)
            self._taken += 1
            self._last = max(self._last, number)

    def forget(self, uid: PodUID) -> None:
        """Forget a pod that is bound, gone, or not among those that kube-scheduler is about to take."""
        self._number.pop(uid, None)
        self._hands.discard(uid)

    @property
    def taken(self) -> int:
        """Number of pods taken so far; pass it to ``written`` when the nomination is seen."""
        return self._taken

    def written(self, before: int) -> None:
        """The watch shows a nomination, so kube-scheduler sees it at about the same time; ``before``: ``taken`` when
        its writing began."""
        self._mean = (1 - _WEIGHT) * self._now() + _WEIGHT * (self._taken - before)
        self._meant = self._clock()

    @property
    def reach(self) -> int:
        """Number of pods behind the last taken one that count as taken: twice the mean, since write times vary."""
        mean = self._now()
        return 0 if mean < _NONE else round(2 * mean) + 1

    def too_late(self, uid: PodUID) -> bool:
        """Whether kube-scheduler will have taken the pod before it could see a nomination."""
        number, reach = self._number.get(uid), self.reach
        return uid in self._hands or (number is not None and reach > 0 and number - self._last <= reach)

    def _now(self) -> float:
        return self._mean * 0.5 ** ((self._clock() - self._meant) / _HALF)
