"""The type of a policy, and what it may use besides the nodes and the request."""

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
    """What is known before a run or learned from earlier pods; the same for all nodes and requests until replaced."""

    expected: Forecast
    prices: Prices
    scarcity: Ints  # [models], millionths; 0 where no request needs this very model
    largest: Largest
    draw: int = 0  # the decision's number, for random choices
    blocks: Blocks | None = None  # None: pods stay permanently
    beside: Beside = Beside()


Score = Callable[[View, TaskDemand, ScoringContext], Scores]
Rescore = Callable[
    [View, Ints, TaskDemand, ScoringContext, Scores], None
]  # some rows, written in place, NEVER where infeasible
Values = Callable[[View, TaskDemand, ScoringContext], Ints]


POINT = 10 * 1_000_000  # the unit of a score of 0..100: a hundredth of a GPU


class Policy(msgspec.Struct, frozen=True):
    """A row of ``table.POLICIES``. ``memory``: the score also depends on memory. ``fresh``: the score changes with
    every decision and is not cached. ``rescore``: a compiled form of ``score`` with identical results. ``unit``: what a
    point is worth, in millionths of a thousandth of a GPU; 0 for scores that cannot be added to others."""

    score: Score
    memory: bool = False
    fresh: bool = False
    rescore: Rescore | None = None
    unit: int = POINT


def by_node(values: Values, choose: devices.Choice = devices.tightest) -> Score:
    """A score of whole nodes; ``choose`` picks the device independently."""

    def score(view: View, ask: TaskDemand, scoring: ScoringContext) -> Scores:
        return Scores(values(view, ask, scoring), choose(view, ask, scoring.draw))

    return score


def with_device(policy: Policy, choose: devices.Choice) -> Policy:
    """The policy with another rule for the device; nodes where that finds no device are left out."""

    def score(view: View, ask: TaskDemand, scoring: ScoringContext) -> Scores:
        device = choose(view, ask, scoring.draw)
        value = policy.score(view, ask, scoring).value
        return Scores(np.where(ask.shares & (device == NO_DEVICE), NEVER, value), device)

    fresh = policy.fresh or choose is devices.lots
    return msgspec.structs.replace(policy, score=score, fresh=fresh, rescore=None)


def level(view: View) -> Ints:
    """The same value for all nodes."""
    return np.zeros(len(view.number), np.int64)
