"""The first node with room, in the order in which nodes stand, and its first device with room."""

from fractile.policy.score.devices import first
from fractile.policy.score.policy import Policy, Situation, by_node, level
from fractile.policy.score.view import Ask, Ints, View


def values(view: View, ask: Ask, situation: Situation) -> Ints:
    """All nodes alike; the order does the rest."""
    return level(view)


POLICY = Policy(by_node(values, first))
