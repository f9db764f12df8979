"""Cache the scores of all nodes: only nodes that changed since a class was last served are scored again.

A class is a request reduced to what its score depends on. The log holds the row of every change in order, and each
class records how far it has read. A decision costs rescoring the changed nodes for one class, and one pass over the
scores for the best.

    changed() ──> log: 4 7 4 9 9 1 ...
                         ^ class A has read to here      best(A) scores rows 9 and 1 again, then takes the maximum

Both are bounded, for programs that run for months: the least recently served classes are dropped, and so are those that
have not read the older half of a full log. Dropped classes are scored again when needed.
"""

import msgspec
import numpy as np

from fractile.policy.nodes.policy import Policy, ScoringContext
from fractile.policy.nodes.view import NEVER, Flags, Ints, Scores, TaskDemand, View, feasible, roomy

_COLD = 64  # from this many rows on, equal nodes are scored once
_CLASSES = 1024  # at most; each takes 16 bytes per node
_LOG = 65_536  # changes


class Choice(msgspec.Struct, frozen=True):
    """A row of the view, and the device for a part of a GPU (-1: none, or whole GPUs from the lowest index)."""

    row: int
    device: int


class ScoreCache:
    """The scores of one policy on one cluster. The view's arrays belong to the caller, who must report each change."""

    def __init__(
        self, view: View, policy: Policy, scoring: ScoringContext, *, classes: int = _CLASSES, log: int = _LOG
    ) -> None:
        self._view = view
        self._policy = policy
        self._scoring = scoring
        self._log: list[int] = []
        self._classes: dict[TaskDemand, _Class] = {}  # least recently served first
        self._most_classes = classes
        self._longest_log = log

    def changed(self, row: int) -> None:
        """Record that a node has changed."""
        self._log.append(row)
        if len(self._log) >= self._longest_log:
            self._shorten()

    def expect(self, scoring: ScoringContext) -> None:
        """Expect other pods from now on: drops all cached scores."""
        self._scoring = scoring
        self._classes.clear()

    def asked(self) -> list[TaskDemand]:
        """The cached classes, the most recently served last."""
        return list(self._classes)

    def move(self, view: View) -> None:
        """Use other arrays of the same nodes; the caller reports which rows have changed."""
        self._view = view

    def scores(self, ask: TaskDemand, draw: int) -> Scores:
        """The scores of all nodes; NEVER without room. ``draw`` numbers the decision. The devices are read-only."""
        scores = self._fresh(ask, draw) if self._policy.fresh else self._kept(ask)
        return Scores(np.where(roomy(self._view, ask), scores.value, NEVER), scores.device)

    def best(self, ask: TaskDemand, draw: int, *, shown: Flags | None = None) -> Choice | None:
        """The best node with room, the first among equals; None if there is none. ``shown``: only these nodes."""
        scores = self.scores(ask, draw)
        value = scores.value if shown is None else np.where(shown, scores.value, NEVER)
        row = int(value.argmax())
        return None if value[row] == NEVER else Choice(row, int(scores.device[row]))

    def _fresh(self, ask: TaskDemand, draw: int) -> Scores:
        scoring = msgspec.structs.replace(self._scoring, draw=draw)
        if self._policy.rescore is None:
            return self._score(self._view, ask, scoring)
        scores = _nothing(len(self._view.number))
        self._policy.rescore(self._view, np.arange(len(self._view.number)), ask, scoring, scores)
        return scores

    def _kept(self, ask: TaskDemand) -> Scores:
        key = ask if self._policy.memory else msgspec.structs.replace(ask, memory=0)
        kept = self._classes.pop(key, None)
        if kept is None:
            self._make_room()
            kept = _Class(len(self._view.number))
            self._again(kept, key, np.arange(len(self._view.number)))
        elif kept.read < len(self._log):
            self._again(kept, key, np.array(sorted(set(self._log[kept.read :])), np.int64))
        kept.read = len(self._log)
        self._classes[key] = kept
        return kept.scores

    def _make_room(self) -> None:
        while len(self._classes) >= self._most_classes:
            del self._classes[next(iter(self._classes))]

    def _shorten(self) -> None:
        cut = len(self._log) // 2 + 1
        del self._log[:cut]
        self._classes = {key: kept for key, kept in self._classes.items() if kept.read >= cut}
        for kept in self._classes.values():
            kept.read -= cut

    def _again(self, kept: "_Class", key: TaskDemand, rows: Ints) -> None:
        if self._policy.rescore is not None:
            self._policy.rescore(self._view, rows, key, self._scoring, kept.scores)
            return
        fresh = self._score_rows(rows, key)
        kept.scores.value[rows] = fresh.value
        kept.scores.device[rows] = fresh.device

    def _score_rows(self, rows: Ints, key: TaskDemand) -> Scores:
        view = self._view.take(rows)
        if len(rows) < _COLD:
            return self._score(view, key, self._scoring)
        one, like = _different(view)
        scores = self._score(view.take(one), key, self._scoring)
        return Scores(scores.value[like], scores.device[like])

    def _score(self, view: View, ask: TaskDemand, scoring: ScoringContext) -> Scores:
        scores = self._policy.score(view, ask, scoring)
        return Scores(np.where(feasible(view, ask), scores.value, NEVER), scores.device)


class _Class:
    def __init__(self, nodes: int) -> None:
        self.scores = _nothing(nodes)
        self.read = 0


def _nothing(nodes: int) -> Scores:
    return Scores(np.full(nodes, NEVER, np.int64), np.full(nodes, -1, np.int64))


def _different(view: View) -> tuple[Ints, Ints]:
    """One row of each group of equal nodes, and for each node the index of its group."""
    columns = [view.cpu, view.cpu_left, view.memory, view.memory_left, view.gpus, view.model]
    table = np.column_stack([*columns, view.gpu_left, view.kinds])
    packed = np.ascontiguousarray(table).view(np.dtype((np.void, table.dtype.itemsize * table.shape[1]))).ravel()
    _, one, like = np.unique(packed, return_index=True, return_inverse=True)
    return one, like
