"""Pods of one kind together: parts of GPUs, one GPU, two and so on (the FGD paper's GpuClustering, after Gandiva)."""

import numpy as np

from fractile.policy.nodes.policy import Policy, ScoringContext, by_node, level
from fractile.policy.nodes.view import PAPER_LARGEST, Ints, TaskDemand, View, total_left


def values(view: View, ask: TaskDemand, scoring: ScoringContext) -> Ints:
    """75 to 100 where all pods are of this kind, from 50 where some are, from 25 where there are none, from 0 where
    all are of other kinds; in each quarter more where less is left. Pods without GPUs: 0 everywhere."""
    kind = ask.kind
    if kind is None:
        return level(view)
    kinds = (view.kinds > 0).sum(axis=1)
    alike = np.where(kinds == 1, 75, 50)
    other = np.where(kinds == 0, 25, 0)
    used = 25 * np.maximum(PAPER_LARGEST.gpu - total_left(view), 0) // PAPER_LARGEST.gpu
    return used + np.where(view.kinds[:, kind] > 0, alike, other)


POLICY = Policy(by_node(values))
