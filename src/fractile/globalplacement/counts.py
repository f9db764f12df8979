"""Counts of placement over all nodes, for the metrics page.

They live as long as the program, so that a counter does not fall when this replica leads again.
"""

from bisect import bisect_left
from collections import Counter
from enum import StrEnum
from itertools import accumulate

import msgspec

from fractile.metrics.control_plane import PlacementFigures
from fractile.metrics.exposition import Distribution

BOUNDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)  # seconds


class Decision(StrEnum):
    """The decision on a pod whose node was to be chosen."""

    RESERVED = "reserved"  # a node was chosen, its cards are kept
    NOMINATED = "nominated"  # the nomination was written
    KEPT = "kept"  # the nomination of the former leader
    NO_ROOM = "no-room"
    LEFT = "left"  # to kube-scheduler, which alone can judge the pod's other requests


class Ended(StrEnum):
    """How a reservation ended."""

    TAKEN = "taken"  # kube-scheduler binds the pod there
    ELSEWHERE = "elsewhere"  # it binds the pod to another node, or a card is gone
    MISSED = "missed"  # it asks about other nodes
    EXPIRED = "expired"  # it did not take the pod in time
    UNWRITTEN = "unwritten"  # the nomination was refused, or the lead was lost
    GONE = "gone"  # the pod was deleted, or is no longer to be placed here


class Remover(StrEnum):
    """The remover of a gate."""

    LEADER = "leader"
    SWEEPER = "sweeper"


class QueueDepths(msgspec.Struct, frozen=True):
    """Current numbers of pods: waiting for a decision, without a fitting node, and with reserved cards."""

    undecided: int = 0
    no_room: int = 0
    reserved: int = 0


class DecisionTally:
    def __init__(self) -> None:
        self._decisions: Counter[Decision] = Counter()
        self._ended: Counter[Ended] = Counter()
        self._removed: Counter[Remover] = Counter()
        self._times = [0] * (len(BOUNDS) + 1)  # by the first bound that is not exceeded; the last entry: beyond all
        self._seconds = 0.0

    def decided(self, what: Decision) -> None:
        self._decisions[what] += 1

    def nominated(self, seconds: float) -> None:
        """Count a nomination written ``seconds`` after the pod was first seen."""
        self.decided(Decision.NOMINATED)
        self._times[bisect_left(BOUNDS, seconds)] += 1
        self._seconds += seconds

    def ended(self, how: Ended) -> None:
        self._ended[how] += 1

    def gate_removed(self, by: Remover) -> None:
        self._removed[by] += 1

    def figures(self, now: QueueDepths) -> PlacementFigures:
        """All counts, including those that are 0."""
        return PlacementFigures(
            pods={"undecided": now.undecided, "no-room": now.no_room, "reserved": now.reserved},
            decisions={what.value: self._decisions[what] for what in Decision},
            ended={how.value: self._ended[how] for how in Ended},
            gates={by.value: self._removed[by] for by in Remover},
            seconds=Distribution(BOUNDS, tuple(accumulate(self._times)), self._seconds),
        )
