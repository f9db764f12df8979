"""What the arrivals of a steady state offer, and how much of it one pool of all GPUs would hold.

Arrivals are random, so every seed asks for something else: a run that holds less than another may have been offered
less. Each run is therefore shown next to two figures that do not depend on the policy. ``offered``: what would be held
if no pod were refused. ``held``: what would be held if the GPUs were not divided among nodes. There, pods that share
GPUs count with their least possible cost, however they are combined (``policy.nodes.prices``), all others with their
GPUs; CPU, memory and models do not count. Every pod that fits is accepted, as by a policy.
"""

import heapq

from fractile.policy.nodes.prices import UNIT, Prices
from fractile.policy.nodes.view import WHOLE_GPU, TaskDemand


class Pool:
    """Figures are thousandths of GPUs x lifetimes, from ``begin`` to ``end``."""

    def __init__(self, gpus: int, prices: Prices, *, begin: float, end: float) -> None:
        self.offered = self.held = 0.0
        self._left = gpus * UNIT
        self._prices = prices
        self._begin, self._end = begin, end
        self._leaving: list[tuple[float, int]] = []  # when, and its cost

    def arrive(self, now: float, ask: TaskDemand, lifetime: float) -> None:
        """Count a pod; calls must be in order of time."""
        while self._leaving and self._leaving[0][0] <= now:
            self._left += heapq.heappop(self._leaving)[1]
        leaves = now + lifetime
        counts = ask.total * max(0.0, min(leaves, self._end) - max(now, self._begin))
        self.offered += counts
        cost = self._cost(ask)
        if cost <= self._left:
            self.held += counts
            self._left -= cost
            heapq.heappush(self._leaving, (leaves, cost))

    def _cost(self, ask: TaskDemand) -> int:
        return int(self._prices.value[ask.milli]) if ask.shares else ask.total * UNIT // WHOLE_GPU
