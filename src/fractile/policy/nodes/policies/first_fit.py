"""The first node with room, in the order in which nodes stand, and its first device with room."""

from fractile.policy.nodes.devices import first
from fractile.policy.nodes.policy import Policy, ScoringContext, by_node, level
from fractile.policy.nodes.view import Ints, TaskDemand, View


def values(view: View, ask: TaskDemand, situation: ScoringContext) -> Ints:
    """All nodes alike; the order does the rest."""
    return level(view)


POLICY = Policy(by_node(values, first))
