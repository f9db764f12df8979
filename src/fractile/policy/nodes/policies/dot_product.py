"""The node least like the request (Tetris' alignment reversed, as in the FGD paper's comparison).

100 x (1 - mean of (CPU left x CPU asked, GPUs left x GPUs asked)), each over the paper's largest node; all GPUs of a
node are one dimension.
"""

from fractile.policy.nodes.policy import Policy, ScoringContext, by_node
from fractile.policy.nodes.view import PAPER_LARGEST, Ints, TaskDemand, View, total_left


def values(view: View, ask: TaskDemand, scoring: ScoringContext) -> Ints:
    """0..100; the device is the tightest."""
    ratio = PAPER_LARGEST.cpu**2 // PAPER_LARGEST.gpu**2  # 256, exactly
    product = view.cpu_left * ask.cpu + total_left(view) * ask.total * ratio  # of twice the largest CPU squared
    return 100 - -(-100 * product // (2 * PAPER_LARGEST.cpu**2))


POLICY = Policy(by_node(values))
