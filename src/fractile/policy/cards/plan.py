"""Placement or refusal for one pod on one node: choose the cards, or say in numbers why not."""

from fractile.model.placement import Placement
from fractile.model.refusal import Refusal
from fractile.model.request import PodRequest
from fractile.policy.cards.choice import DEFAULT, choose
from fractile.policy.cards.effort import Effort
from fractile.policy.cards.reasons import explain, too_hard
from fractile.policy.cards.state import NodeState


def plan(
    request: PodRequest, state: NodeState, policy: str = DEFAULT, effort: Effort | None = None
) -> Placement | Refusal:
    """Where every container of the pod would run on this node now, or the reason why it cannot."""
    effort = effort or Effort()
    before = effort.given_up
    chosen = choose(request, state, policy, effort)
    if chosen is not None:
        return Placement(state.node, chosen)
    return too_hard(request) if effort.given_up > before else explain(request, state, effort)
