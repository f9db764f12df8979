"""kube-scheduler's node scores by resources, in its own integer arithmetic, old and new.

``OLD`` is Kubernetes 1.20, ``NEW`` 1.36 (pkg/scheduler/framework/plugins/noderesources, helper/shape_score.go). They
differ in rounding, in the score of an overfull resource, and in resources that a node does not have: the old version
counts them as 0, the new one leaves them out. ``requested`` includes the pod. Amounts must stay below 2^63 / 100: for
bytes, below 80 PiB.
"""

from collections.abc import Callable, Sequence
from enum import Enum
from itertools import pairwise

import msgspec
import numpy as np

from fractile.policy.nodes.view import Flags, Ints

MAX = 100  # highest score of a node
_SHAPE_UNIT = 10  # highest score in a shape
_ROUNDING = 2


class Rounding(Enum):
    OLD = "1.20"
    NEW = "newest"


class Resource(msgspec.Struct, frozen=True):
    """One resource of all nodes."""

    requested: Ints
    capacity: Ints
    weight: int = 1


class UtilizationPoint(msgspec.Struct, frozen=True):
    """Utilisation in percent, 0..100, and its score, 0..10."""

    utilization: int
    score: int


BIN_PACKING = (UtilizationPoint(0, 0), UtilizationPoint(100, 10))

Each = Callable[[Resource], Ints]


def least_allocated(resources: Sequence[Resource], rounding: Rounding = Rounding.NEW) -> Ints:
    """The LeastAllocated score: the emptier the better."""
    return _mean(resources, least_of, rounding)


def most_allocated(resources: Sequence[Resource], rounding: Rounding = Rounding.NEW) -> Ints:
    """The MostAllocated score: the fuller the better."""
    return _mean(resources, lambda r: most_of(r, rounding), rounding)


def requested_to_capacity_ratio(
    resources: Sequence[Resource], shape: Sequence[UtilizationPoint] = BIN_PACKING, rounding: Rounding = Rounding.NEW
) -> Ints:
    """The RequestedToCapacityRatio score by the shape. In both versions a resource with a score of 0 does not count at
    all, and the mean is rounded, half upwards."""
    total = scores = _nothing(resources)
    for r in resources:
        score = ratio_of(r, shape, rounding)
        counted = (score > 0) & _there(r, rounding)
        total = total + np.where(counted, r.weight, 0)
        scores = scores + np.where(counted, r.weight * score, 0)
    return (_ROUNDING * scores + total) // np.maximum(_ROUNDING * total, 1)


def least_of(resource: Resource) -> Ints:
    """LeastAllocated of one resource, 0..100, the same in both versions."""
    left = resource.capacity - resource.requested
    return np.where(left >= 0, left * MAX // np.maximum(resource.capacity, 1), 0)


def most_of(resource: Resource, rounding: Rounding) -> Ints:
    """MostAllocated of one resource, 0..100; overfull: 0 in the old version, 100 in the new one."""
    over = resource.requested > resource.capacity
    score = np.minimum(resource.requested, resource.capacity) * MAX // np.maximum(resource.capacity, 1)
    return np.where(over, 0, score) if rounding is Rounding.OLD else score


def ratio_of(resource: Resource, shape: Sequence[UtilizationPoint], rounding: Rounding) -> Ints:
    """RequestedToCapacityRatio of one resource, 0..100: the shape at its utilization."""
    return at(shape, utilization(resource, rounding))


def utilization(resource: Resource, rounding: Rounding) -> Ints:
    """Percent of the capacity: the old version rounds up, the new one down. In the old one overfull and absent are
    100."""
    requested, capacity = resource.requested, np.maximum(resource.capacity, 1)
    if rounding is Rounding.NEW:
        return np.maximum(requested, 0) * MAX // capacity
    return MAX - np.maximum(resource.capacity - requested, 0) * MAX // capacity


def at(shape: Sequence[UtilizationPoint], percent: Ints) -> Ints:
    """The value of a piecewise straight line through the points, times 10; flat before the first and after the last."""
    value = np.full(percent.shape, shape[-1].score * _SHAPE_UNIT, np.int64)
    for before, after in reversed(list(pairwise(shape))):
        rise = (after.score - before.score) * _SHAPE_UNIT * (percent - before.utilization)
        run = after.utilization - before.utilization
        value = np.where(percent < after.utilization, before.score * _SHAPE_UNIT + _quotient(rise, run), value)
    return np.where(percent < shape[0].utilization, shape[0].score * _SHAPE_UNIT, value)


def _mean(resources: Sequence[Resource], each: Each, rounding: Rounding) -> Ints:
    total = scores = _nothing(resources)
    for r in resources:
        counted = _there(r, rounding)
        total = total + np.where(counted, r.weight, 0)
        scores = scores + np.where(counted, r.weight * each(r), 0)
    return scores // np.maximum(total, 1)


def _there(resource: Resource, rounding: Rounding) -> Flags:
    """Whether the resource counts on a node."""
    return (resource.capacity != 0) | (rounding is Rounding.OLD)


def _nothing(resources: Sequence[Resource]) -> Ints:
    return np.zeros(resources[0].requested.shape if resources else (0,), np.int64)


def _quotient(rise: Ints, run: int) -> Ints:
    """The quotient, truncated as in Go, not rounded down as in Python: shapes may fall."""
    return np.sign(rise) * (np.abs(rise) // run)
