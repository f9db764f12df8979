"""Placement or refusal for one pod on one node: choose the cards, or say in numbers why not."""

from fractile.model.placement import Placement
from fractile.model.refusal import Refusal
from fractile.model.request import PodRequest
from fractile.policy.cards import DEFAULT, choose
from fractile.policy.reasons import explain
from fractile.policy.state import NodeState


def plan(request: PodRequest, state: NodeState, policy: str = DEFAULT) -> Placement | Refusal:
    """Where every container of the pod would run on this node now, or the reason why it cannot."""
    chosen = choose(request, state, policy)
    return explain(request, state) if chosen is None else Placement(state.node, chosen)
