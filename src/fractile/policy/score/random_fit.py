"""Any node with room, any device of it, all alike."""

from fractile.policy.score.devices import lots
from fractile.policy.score.noise import noise
from fractile.policy.score.policy import Policy, Situation, by_node
from fractile.policy.score.view import Ask, Ints, View


def values(view: View, ask: Ask, situation: Situation) -> Ints:
    """A lot for each node, drawn anew for every decision."""
    return noise(situation.draw, view.number)


POLICY = Policy(by_node(values, lots), fresh=True, unit=0)
