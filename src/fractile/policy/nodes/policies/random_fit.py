"""A random node with room and a random device with room, all equally likely."""

from fractile.policy.nodes.devices import lots
from fractile.policy.nodes.noise import noise
from fractile.policy.nodes.policy import Policy, ScoringContext, by_node
from fractile.policy.nodes.view import Ints, TaskDemand, View


def values(view: View, ask: TaskDemand, scoring: ScoringContext) -> Ints:
    """A random number for each node, drawn again for every decision."""
    return noise(scoring.draw, view.number)


POLICY = Policy(by_node(values, lots), fresh=True, unit=0)
