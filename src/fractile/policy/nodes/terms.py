"""A node's score in kube-scheduler's arithmetic, broken down: what each resource adds, and how that becomes the score.

Every number comes from ``policy.nodes.kubernetes``; nothing is computed a second time here.
"""

from collections.abc import Sequence

import msgspec
import numpy as np

from fractile.policy.nodes import kubernetes
from fractile.policy.nodes.kubernetes import Resource, Rounding, UtilizationPoint
from fractile.policy.nodes.view import Ints
from fractile.wire.kubernetes.scoring import Strategy, StrategyKind

_NATIVE = ("cpu", "memory", "ephemeral-storage")  # these also count for a pod that does not request them
_TEN = 10


class Amount(msgspec.Struct, frozen=True):
    """One resource of one node and pod, whole numbers: thousandths of CPUs, bytes, devices."""

    name: str
    held: int  # by the pods on the node
    pod: int
    capacity: int

    @property
    def requested(self) -> int:
        return self.held + self.pod


class ScoreTerm(msgspec.Struct, frozen=True):
    """What one resource adds. ``score`` is 0..100; it is part of sum and weights only if ``counted``."""

    amount: Amount
    utilization: int  # percent, rounded as in that version
    score: int
    weight: int
    counted: bool

    @property
    def product(self) -> int:
        return self.score * self.weight if self.counted else 0


class Tenths(msgspec.Struct, frozen=True):
    """The same on the scale of 0 to 10, each resource cut to a whole number, as in Kubernetes' documentation."""

    sum: int
    weights: int
    score: int


class NodeScore(msgspec.Struct, frozen=True):
    """``sum`` over ``weights`` is the score before it is rounded (the ratio) or cut (the others)."""

    terms: tuple[ScoreTerm, ...]
    sum: int
    weights: int
    score: int
    tenths: Tenths | None


def score(strategy: Strategy, amounts: Sequence[Amount], rounding: Rounding) -> NodeScore:
    """``amounts``: one for each resource of the strategy, in its order."""
    resources = [
        Resource(_one(a.requested), _one(_capacity(a, rounding)), r.weight)
        for a, r in zip(amounts, strategy.resources, strict=True)
    ]
    shape = tuple(UtilizationPoint(p.utilization, p.score) for p in strategy.shape)
    terms = tuple(
        _term(strategy.kind, amount, resource, shape=shape, rounding=rounding)
        for amount, resource in zip(amounts, resources, strict=True)
    )
    weights = sum(t.weight for t in terms if t.counted)
    total = _node(strategy.kind, resources, shape, rounding)
    tenths = _tenths(terms, weights) if strategy.kind is StrategyKind.RATIO else None
    return NodeScore(terms, sum(t.product for t in terms), weights, int(total[0]), tenths)


def _term(
    kind: StrategyKind, amount: Amount, resource: Resource, *, shape: tuple[UtilizationPoint, ...], rounding: Rounding
) -> ScoreTerm:
    if kind is StrategyKind.RATIO:
        each = kubernetes.ratio_of(resource, shape, rounding)
    elif kind is StrategyKind.MOST:
        each = kubernetes.most_of(resource, rounding)
    else:
        each = kubernetes.least_of(resource)
    there = bool(resource.capacity[0]) or rounding is Rounding.OLD
    counted = there and (kind is not StrategyKind.RATIO or int(each[0]) > 0)
    return ScoreTerm(amount, int(kubernetes.utilization(resource, rounding)[0]), int(each[0]), resource.weight, counted)


def _node(
    kind: StrategyKind, resources: Sequence[Resource], shape: tuple[UtilizationPoint, ...], rounding: Rounding
) -> Ints:
    if kind is StrategyKind.RATIO:
        return kubernetes.requested_to_capacity_ratio(resources, shape, rounding)
    return (kubernetes.most_allocated if kind is StrategyKind.MOST else kubernetes.least_allocated)(resources, rounding)


def _capacity(amount: Amount, rounding: Rounding) -> int:
    """The capacity that counts: new versions ignore extended resources that the pod does not request."""
    skipped = rounding is Rounding.NEW and not amount.pod and amount.name not in _NATIVE
    return 0 if skipped else amount.capacity


def _tenths(terms: tuple[ScoreTerm, ...], weights: int) -> Tenths:
    total = sum(t.score // _TEN * t.weight for t in terms if t.counted)
    return Tenths(total, weights, (2 * total + weights) // (2 * weights) if weights else 0)


def _one(value: int) -> Ints:
    return np.array([value], np.int64)
