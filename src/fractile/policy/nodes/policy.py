"""What a policy is, and what it may know besides the nodes and the request."""

from collections.abc import Callable

import msgspec
import numpy as np

from fractile.policy.nodes import devices
from fractile.policy.nodes.blocks import Blocks
from fractile.policy.nodes.fragmentation import Forecast
from fractile.policy.nodes.prices import Prices
from fractile.policy.nodes.stranding import Beside
from fractile.policy.nodes.view import NEVER, NO_DEVICE, Ints, Largest, Scores, TaskDemand, View


class ScoringContext(msgspec.Struct, frozen=True):
    """Known before a run, or learned from pods seen; the same for all nodes and requests until it is replaced."""

    expected: Forecast
    prices: Prices
    scarcity: Ints  # [models], millionths; 0 where nobody must use the model
    largest: Largest
    draw: int = 0  # the decision's number, for those who draw lots
    blocks: Blocks | None = None  # None: pods stay where they are for ever
    beside: Beside = Beside()


Score = Callable[[View, TaskDemand, ScoringContext], Scores]
Rescore = Callable[
    [View, Ints, TaskDemand, ScoringContext, Scores], None
]  # some rows, written in place, NEVER where infeasible
Values = Callable[[View, TaskDemand, ScoringContext], Ints]


POINT = 10 * 1_000_000  # of a score of 0..100: a hundredth of a GPU


class Policy(msgspec.Struct, frozen=True):
    """A row of ``table.POLICIES``. ``memory``: the score depends on memory too. ``fresh``: it changes with every
    decision, so that none is kept. ``rescore``: a compiled form of ``score``, equal to it in every number. ``unit``:
    what a point is worth, in millionths of a thousandth of a GPU; 0 for those that cannot be added to others."""

    score: Score
    memory: bool = False
    fresh: bool = False
    rescore: Rescore | None = None
    unit: int = POINT


def by_node(values: Values, choose: devices.Choice = devices.tightest) -> Score:
    """A score that looks at whole nodes; the device is chosen for itself."""

    def score(view: View, ask: TaskDemand, situation: ScoringContext) -> Scores:
        return Scores(values(view, ask, situation), choose(view, ask, situation.draw))

    return score


def with_device(policy: Policy, choose: devices.Choice) -> Policy:
    """The node by the policy's score, the device by another rule; a node where that finds none is left out."""

    def score(view: View, ask: TaskDemand, situation: ScoringContext) -> Scores:
        device = choose(view, ask, situation.draw)
        value = policy.score(view, ask, situation).value
        return Scores(np.where(ask.shares & (device == NO_DEVICE), NEVER, value), device)

    fresh = policy.fresh or choose is devices.lots
    return msgspec.structs.replace(policy, score=score, fresh=fresh, rescore=None)


def level(view: View) -> Ints:
    """All nodes alike."""
    return np.zeros(len(view.number), np.int64)
