"""Step 3: how good each fitting node is, 0 .. 10. Reads the ledger, changes nothing.

Fill one node before the next (most allocated): the share of the node's GPU memory that would be in use with the pod
on it. kube-scheduler multiplies by the extender's weight and adds its own scores.
"""

from collections.abc import Iterable

import numpy as np

from fractile.ledger import scan
from fractile.ledger.arrays import Ints
from fractile.ledger.ledger import Ledger
from fractile.model.request import PodRequest
from fractile.wire.extender import HostPriority

MAX_SCORE = 10


def score_nodes(
    request: PodRequest, names: list[str], ledger: Ledger, expected: Iterable[tuple[str, int]] = ()
) -> list[HostPriority]:
    """A score for every name asked, in that order; nodes without cards score 0.

    ``expected`` are nodes and MiB of pods that were scored a moment ago and are not bound yet.
    """
    arrays = ledger.arrays
    columns = arrays.find_all(names, len(names))
    total = arrays.node_memory[columns]
    used = total - arrays.node_free[columns] + scan.need_of(request).total
    used += _coming(columns, [(arrays.find(node), memory) for node, memory in expected])
    # Rounded to the nearest step: few steps, so that equal nodes stay equal and kube-scheduler's own scores decide.
    steps = (2 * MAX_SCORE * used + total) // (2 * total).clip(min=1)
    scores = steps.clip(0, MAX_SCORE) * (columns >= 0)
    return [HostPriority(name, score) for name, score in zip(names, scores.tolist(), strict=True)]


def best_of(scores: list[HostPriority]) -> HostPriority | None:
    """The highest score, the first of equals."""
    return max(scores, key=lambda s: s.score, default=None)


def _coming(columns: Ints, expected: list[tuple[int, int]]) -> Ints:
    coming = np.zeros(len(columns), np.int64)
    for column, memory in expected:
        if column >= 0:
            coming[columns == column] += memory
    return coming
