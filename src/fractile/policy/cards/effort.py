"""Bound how much one call may search for which parts of a pod go to which cards, and remember what earlier calls found.

The problem is bin packing: there are pods of forty containers for which no program finds the answer in time. So a call
counts its *looks* (one card tried for one part) over all nodes together. A search that runs out of looks is given up
without an answer: the pod is refused for now, and the message says so.

A search that found nothing is a dead end. It is remembered by what was requested and what was free, so that an equal
node, or the same node while nothing is freed there, is not searched again. If a call could not check all nodes, the
next call for the same pod begins where it stopped, until all have been checked.
"""

from collections.abc import Sequence

import msgspec

from fractile.model.request import ANY, ContainerRequest
from fractile.model.units import MiB, PodUID
from fractile.policy.cards.parts import Numbers, Peak, SharedCard, card_numbers, parts_of, peak

CALL = 50_000  # looks of one call; each takes one to two microseconds
SEARCH = 10_000  # looks of one search; real pods need fewer than a hundred
EASY = 256  # looks of a call before it checks dead ends, which costs as much as some looks
DECIDED = 2**62  # looks recorded for a search that was completed

_MOST = 2**16  # dead ends; about 120 bytes each
_MOST_STOPPED = 2**12  # pods for which a call has stopped


class DeadEnds:
    """Searches that found nothing, by a digest of what was requested and what was free; the oldest is dropped first."""

    def __init__(self, most: int = _MOST) -> None:
        self._most = most
        self._looks: dict[bytes, int] = {}
        self._stopped: dict[PodUID, tuple[str, int]] = {}

    def looks(self, digest: bytes) -> int:
        """How many looks found nothing; DECIDED if more looks would not help."""
        return self._looks.get(digest, 0)

    def put(self, digest: bytes, looks: int) -> None:
        if digest not in self._looks and len(self._looks) >= self._most:
            del self._looks[next(iter(self._looks))]
        self._looks[digest] = max(looks, self.looks(digest))

    def stopped(self, uid: PodUID) -> str:
        """The first node that the previous call for this pod did not check; "" if it checked all."""
        return self._stopped.get(uid, ("", 0))[0]

    def stop(self, uid: PodUID, node: str, *, looked_at: int, of: int) -> bool:
        """Record that a call for the pod stopped at ``node``. Returns whether unchecked nodes remain for later
        calls."""
        total = self._stopped.pop(uid, ("", 0))[1] + looked_at
        if len(self._stopped) >= _MOST_STOPPED:
            del self._stopped[next(iter(self._stopped))]
        self._stopped[uid] = node, total if total < of else 0
        return total < of

    def forget(self, uid: PodUID) -> None:
        """Record that a call checked all nodes, or found one."""
        self._stopped.pop(uid, None)

    def __len__(self) -> int:
        return len(self._looks)


class Sought(msgspec.Struct, frozen=True):
    """The parts of a pod's containers, computed once for all nodes. ``together``: the containers in order, if one card
    may hold all of ``shared``; ``picky``: parts that only some cards may hold."""

    numbers: Numbers
    parts: list[SharedCard]
    shared: list[SharedCard]
    whole: list[SharedCard]
    together: tuple[ContainerRequest, ...] | None
    picky: list[SharedCard]
    peaks: dict[MiB, Peak]  # of ``together``, by the card's memory

    def peak(self, memory: MiB) -> Peak:
        """What one card must have free for all of ``shared``."""
        assert self.together is not None
        if memory not in self.peaks:
            self.peaks[memory] = peak(self.together, memory)
        return self.peaks[memory]


def sought(containers: Sequence[ContainerRequest]) -> Sought:
    numbers = card_numbers(containers)
    parts = parts_of(containers, numbers)
    shared = [p for p in parts if not p.whole]
    placed = sorted(place for p in shared for place in p.places)
    return Sought(
        numbers,
        parts,
        shared,
        [p for p in parts if p.whole],
        tuple(containers[place] for place in placed) if len(set(placed)) == len(placed) else None,
        [p for p in shared if any(c.request.selector != ANY for c in p.containers)],
        {},
    )


class Effort:
    """The remaining budget of one call. ``search``: the most for one search; ``easy``: see EASY. ``given_up`` counts
    the searches that ended without an answer or were not started."""

    def __init__(
        self, looks: int = CALL, *, search: int = SEARCH, easy: int = EASY, dead_ends: DeadEnds | None = None
    ) -> None:
        self.left = looks
        self.spent = 0
        self.given_up = 0
        self.unfinished = False  # there are nodes that no call for the pod has checked yet
        self.search = search
        self.dead_ends = DeadEnds() if dead_ends is None else dead_ends
        self.prepared: dict[object, object] = {}  # used by ``search``: what is the same for every node
        self._easy = easy
        self._sought: dict[int, tuple[Sequence[ContainerRequest], Sought]] = {}

    @property
    def over(self) -> bool:
        return self.left <= 0

    @property
    def hard(self) -> bool:
        """Whether the call has already cost more than usual."""
        return self.spent >= self._easy

    def spend(self, looks: int) -> bool:
        """Spend looks; False when none were left, and the search must be given up."""
        if self.left <= 0:
            self.given_up += 1
            return False
        self.left -= looks
        self.spent += looks
        return True

    def sought(self, containers: Sequence[ContainerRequest]) -> Sought:
        known = self._sought.get(id(containers))
        if known is None:
            known = self._sought[id(containers)] = containers, sought(containers)
        return known[1]
