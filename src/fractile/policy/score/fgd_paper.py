"""Fragmentation gradient descent as its authors' code computes it (Weng et al., USENIX ATC'23).

Score = trunc(100 x sigmoid((F before - F after) / 1000 thousandths)). The truncation and the order of nodes decide
many ties and are worth 2.7 points of allocation on the default trace, so both are kept. The sigmoid is turned round
once (``Forecast.steps``).
"""

import numpy as np

from fractile.policy.score.candidates import best, candidates
from fractile.policy.score.fragmentation import fragments
from fractile.policy.score.policy import Policy, Situation
from fractile.policy.score.view import Ask, Scores, View


def score(view: View, ask: Ask, situation: Situation) -> Scores:
    """0..100, the best device of each node."""
    expected = situation.expected
    found = candidates(view, ask)
    before = fragments(view.cpu_left, view.gpu_left, view.model, expected)
    after = fragments(found.cpu_left, found.gpu_left, found.model, expected)
    reached = np.searchsorted(expected.steps, before[found.row] - after, side="right")
    return best(view, found, reached.astype(np.int64))


POLICY = Policy(score)
