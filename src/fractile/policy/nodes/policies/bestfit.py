"""The node with least left, CPU and GPUs weighted equally (the FGD paper's BestFit).

trunc(100 x (1 - CPU left / 2 / 128 CPUs - GPUs left / 2 / 8 GPUs)) after the pod. The divisors do not depend on the
node, so small nodes are filled first. The published code then scales the scores of one decision to 0..100, which does
not change their order.
"""

from fractile.policy.nodes.policy import Policy, ScoringContext, by_node
from fractile.policy.nodes.view import PAPER_LARGEST, Ints, TaskDemand, View, total_left


def values(view: View, ask: TaskDemand, scoring: ScoringContext) -> Ints:
    """0..100 for nodes of up to twice the paper's largest; the device is the tightest."""
    cpu, gpu = PAPER_LARGEST.cpu, PAPER_LARGEST.gpu
    left = (view.cpu_left - ask.cpu) * gpu + (total_left(view) - ask.total) * cpu  # of 2 x cpu x gpu
    return 100 - -(-100 * left // (2 * cpu * gpu))


POLICY = Policy(by_node(values))
