"""What the arrivals of a steady state offer, and what one pool of all GPUs would hold of them.

Arrivals are drawn by lots, so no two seeds ask for the same: a run that holds less than another may have been offered
less. Each is therefore shown beside two figures that no policy has a part in. ``offered``: what would be held if nobody
were refused. ``held``: what would be held if no GPU belonged to a node. There, pods that share GPUs count with what
they cost at least, however they are combined (``policy.score.prices``), all others with their GPUs, and CPU, memory and
models do not count. Whoever fits is taken, as by a policy.
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
        self._leaving: list[tuple[float, int]] = []  # when, and what it cost

    def arrive(self, now: float, ask: TaskDemand, lifetime: float) -> None:
        """In the order of time."""
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
