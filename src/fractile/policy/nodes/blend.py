"""A blend of several policies: the sum of their scores, each in thousandths of a GPU, times a weight.

Scores of 0 to 100 count 10 thousandths per point, so that 100 points are one GPU; ``fgd-plus`` already uses that unit.
The first policy chooses the device.
"""

from collections.abc import Sequence

import numpy as np

from fractile.policy.nodes.policy import Policy, ScoringContext
from fractile.policy.nodes.view import NEVER, Scores, TaskDemand, View

MOST = 1000  # of a weight; sums stay far below 2^62


def blend(terms: Sequence[tuple[int, Policy]]) -> Policy:
    """Weights are whole numbers from 1; all policies must have a unit."""
    assert all(policy.unit for _, policy in terms)

    def score(view: View, ask: TaskDemand, scoring: ScoringContext) -> Scores:
        parts = [policy.score(view, ask, scoring) for _, policy in terms]
        never = np.any([part.value == NEVER for part in parts], axis=0)
        units = [weight * policy.unit for weight, policy in terms]
        value = sum(unit * np.where(never, 0, part.value) for unit, part in zip(units, parts, strict=True))
        return Scores(np.where(never, NEVER, value), parts[0].device)

    return Policy(score, memory=any(policy.memory for _, policy in terms))
