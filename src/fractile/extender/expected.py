"""Where pods that were just scored will probably go: a hint for ranking, never for fitting.

kube-scheduler scores the next pod while the Binding of the last one is still on its way to us, so a burst of equal
pods would see the same empty nodes and scatter. A scored pod's best node therefore counts as fuller for a moment.
A wrong hint costs nothing but one less tight choice, and it is forgotten after seconds.
"""

from collections.abc import Callable, Iterator

from fractile.model.units import PodUID

LIFETIME = 3.0  # seconds; from score to bind takes milliseconds
_LIMIT = 1000


class Expected:
    """By pod UID: the node, the MiB it will take there, and until when that is believed; the oldest first."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._hints: dict[PodUID, tuple[str, int, float]] = {}

    def put(self, uid: PodUID, node: str, memory: int) -> None:
        self.discard(uid)
        if len(self._hints) == _LIMIT:
            self.discard(next(iter(self._hints)))
        self._hints[uid] = (node, memory, self._clock() + LIFETIME)

    def discard(self, uid: PodUID) -> None:
        """The pod's Binding is decided: the ledger knows, or the pod starts over."""
        self._hints.pop(uid, None)

    def others(self, uid: PodUID) -> Iterator[tuple[str, int]]:
        """Node and MiB of every other pod's hint that is still believed."""
        now = self._clock()
        for old in [key for key, (_, _, until) in self._hints.items() if until < now]:
            del self._hints[old]
        return ((node, memory) for key, (node, memory, _) in self._hints.items() if key != uid)
