"""Fragmentation gradient descent as its authors' code computes it (Weng et al., USENIX ATC'23).

Score = trunc(100 x sigmoid((F before - F after) / 1000 thousandths)). The truncation and the order of nodes decide many
ties and are worth 2.7 points of allocation on the default trace, so both are kept. The sigmoid is inverted once
(``Forecast.steps``).
"""

import numpy as np

from fractile.policy.nodes.candidates import best, candidates
from fractile.policy.nodes.fragmentation import fragments
from fractile.policy.nodes.policy import Policy, ScoringContext
from fractile.policy.nodes.view import Scores, TaskDemand, View


def score(view: View, ask: TaskDemand, scoring: ScoringContext) -> Scores:
    """0..100, the best device of each node."""
    expected = scoring.expected
    found = candidates(view, ask)
    before = fragments(view.cpu_left, view.gpu_left, view.model, expected)
    after = fragments(found.cpu_left, found.gpu_left, found.model, expected)
    reached = np.searchsorted(expected.steps, before[found.row] - after, side="right")
    return best(view, found, reached.astype(np.int64))


POLICY = Policy(score)
