"""The first node with room, in the order of the nodes, and its first device with room."""

from fractile.policy.nodes.devices import first
from fractile.policy.nodes.policy import Policy, ScoringContext, by_node, level
from fractile.policy.nodes.view import Ints, TaskDemand, View


def values(view: View, ask: TaskDemand, scoring: ScoringContext) -> Ints:
    """The same for all nodes; their order decides."""
    return level(view)


POLICY = Policy(by_node(values, first))
