"""Where pods that were just scored will probably go: a hint for ranking, never for fitting.

kube-scheduler scores the next pod while the Binding of the last one is still on its way, so a burst of equal pods would
see the same empty nodes and scatter. A scored pod's best node therefore counts as fuller for a moment. A wrong hint
costs only one less tight choice, and expires after seconds.
"""

from collections.abc import Callable, Iterator

from fractile.extender.engine import Coming
from fractile.model.units import PodUID

LIFETIME = 3.0  # seconds; from score to bind takes milliseconds
_LIMIT = 1000


class Expected:
    """By pod UID: the node, the MiB that the pod will take there, and when the hint expires; the oldest first.
    Separately, what a policy expects the pod to take."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._hints: dict[PodUID, tuple[str, int, float]] = {}
        self._coming: dict[PodUID, Coming] = {}

    def put(self, uid: PodUID, node: str, memory: int, coming: Coming | None = None) -> None:
        self.discard(uid)
        if len(self._hints) == _LIMIT:
            self.discard(next(iter(self._hints)))
        self._hints[uid] = (node, memory, self._clock() + LIFETIME)
        if coming is not None:
            self._coming[uid] = coming

    def __len__(self) -> int:
        """Number of hints, expired ones included."""
        return len(self._hints)

    def discard(self, uid: PodUID) -> None:
        """Drop the pod's hint, because its Binding is decided: the ledger knows it, or the pod starts over."""
        self._hints.pop(uid, None)
        self._coming.pop(uid, None)

    def others(self, uid: PodUID) -> Iterator[tuple[str, int]]:
        """Node and MiB of every other pod's hint that has not expired."""
        self._forget()
        return ((node, memory) for key, (node, memory, _) in self._hints.items() if key != uid)

    def coming(self, uid: PodUID) -> list[Coming]:
        """What every other pod is expected to take, if a policy has said so."""
        self._forget()
        return [one for key, one in self._coming.items() if key != uid]

    def _forget(self) -> None:
        now = self._clock()
        for old in [key for key, (_, _, until) in self._hints.items() if until < now]:
            self.discard(old)
