"""Allocation and fragmentation as functions of how much had been requested."""

from fractions import Fraction

import msgspec


class CurvePoint(msgspec.Struct, frozen=True):
    """A point of a curve: all three in percent of the cluster's GPUs."""

    arrived: int
    allocated: float
    fragmented: float


class Curve:
    """One point for each percent of the cluster's GPUs that had arrived: the mean over all pods whose arrival rounds to
    it, as in the published tables. Sums are integers; only results are fractions. Small clusters do not have a point at
    every percent; there the previous point holds, up to ``planned``, the percent at which arrivals end."""

    def __init__(self, capacity: int, *, planned: int = 0) -> None:
        self._capacity = max(1, capacity)
        self._planned = planned
        self._points: dict[int, list[int]] = {}

    def add(self, arrived: int, allocated: int, fragments: int) -> None:
        """Record the state after a pod, placed or not: thousandths of GPUs; fragments in the unit of the run."""
        percent = round(Fraction(100 * arrived, self._capacity))
        point = self._points.setdefault(percent, [0, 0, 0])
        point[0] += 1
        point[1] += allocated
        point[2] += fragments

    def allocation(self, percent: int) -> float | None:
        """Allocation in percent of all GPUs; None when that much never arrived."""
        point = self._at(percent)
        return None if point is None else 100 * point[1] / point[0] / self._capacity

    def fragmented(self, percent: int, weight: int) -> float | None:
        """Fragments in percent of all GPUs."""
        point = self._at(percent)
        return None if point is None else 100 * point[2] / point[0] / weight / self._capacity

    def percents(self) -> list[int]:
        """The percents that have points."""
        return sorted(self._points)

    def points(self, weight: int) -> tuple[CurvePoint, ...]:
        """All points; ``weight`` as in ``fragmented``."""
        return tuple(
            CurvePoint(
                percent, 100 * allocated / count / self._capacity, 100 * fragments / count / weight / self._capacity
            )
            for percent, (count, allocated, fragments) in sorted(self._points.items())
        )

    def _at(self, percent: int) -> list[int] | None:
        before = [p for p in self._points if p <= percent]
        reached = percent <= max(self._planned, *self._points, 0)
        return self._points[max(before)] if before and reached else None
