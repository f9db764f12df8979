"""Steady state, in which pods come and go: how much of a cluster stays allocated when as much is requested as it has.

Arrivals are a Poisson stream of pods drawn from the trace, lifetimes are exponential with a mean of 1, and the rate is
such that ``load`` times the cluster's GPUs would be held if no pod were refused. Refused pods do not return. At the
start, as many pods arrive together as would be present if none were refused: exponential lifetimes are memoryless, so
the stream is in its steady state from then on. The cluster then needs a few lifetimes until the order in which it was
filled no longer matters.
"""

import heapq
import time
from collections.abc import Callable, Sequence
from random import Random

import msgspec

from fractile.errors import SetupError
from fractile.policy.nodes.mix import Mix
from fractile.policy.nodes.policy import Policy
from fractile.policy.nodes.score_cache import ScoreCache
from fractile.policy.nodes.scoring_context import scoring_of
from fractile.policy.nodes.view import WHOLE_GPU, TaskDemand
from fractile.sim.arrivals import in_order
from fractile.sim.cluster import Cluster, TaskPlace
from fractile.sim.pool import Pool
from fractile.sim.sample import Sampled
from fractile.sim.snapshot.trace import NodeRow, PodRow

WARM_UP = 3.0  # mean lifetimes
MEASURED = 5.0

Tell = Callable[[int, int], None]


class SteadyRun(msgspec.Struct, frozen=True):
    """Figures are fractions of 1. ``allocation``: mean over time; ``acceptance``: of the GPUs requested; ``offered``
    and ``pooled``: see ``Pool``."""

    seed: int
    allocation: float
    acceptance: float
    offered: float
    pooled: float
    pods: int
    failed: int
    failed_milli: int
    seconds: float


def steady(
    nodes: Sequence[NodeRow],
    pods: Sequence[PodRow],
    policy: Policy,
    mix: Mix,
    *,
    seed: int,
    load: float,
    tell: Tell = lambda done, total: None,
    clock: Callable[[], float] = time.monotonic,
    sample: int | None = None,
) -> SteadyRun:
    """One run. ``sample`` as in ``fill``. Figures begin after the warm-up. SetupError if no pod asks for a GPU."""
    cluster = Cluster(in_order(nodes, Random(f"{seed}:nodes")))
    scoring = scoring_of(cluster.view, mix, leaving=True)
    score_cache = ScoreCache(cluster.view, policy, scoring)
    random = Random(f"{seed}:steady")
    asks = [p.ask for p in sorted(pods, key=lambda p: p.name)]
    requested = sum(a.total for a in asks)
    if not requested or not cluster.capacity:
        raise SetupError("a steady state needs pods that ask for GPUs and nodes that have some")
    rate = load * cluster.capacity * len(asks) / requested  # pods in a mean lifetime
    start = clock()
    now, end = 0.0, WARM_UP + MEASURED
    pool = Pool(cluster.capacity // WHOLE_GPU, scoring.prices, begin=WARM_UP, end=end)
    run = _Coming(cluster, score_cache if sample is None else Sampled(score_cache, cluster.view, sample), pool, seed)
    for _ in range(round(rate)):
        run.arrive(now, random.choice(asks), random.expovariate(1.0))
    while (now := now + random.expovariate(rate)) < end:
        run.arrive(now, random.choice(asks), random.expovariate(1.0))
        tell(int(now * rate), int(end * rate))
    run.until(end)
    return SteadyRun(
        seed,
        run.area / MEASURED / cluster.capacity,
        1 - run.failed_milli / run.asked if run.asked else 1.0,
        pool.offered / MEASURED / cluster.capacity,
        pool.held / MEASURED / cluster.capacity,
        run.pods,
        run.failed,
        run.failed_milli,
        clock() - start,
    )


class _Coming:
    def __init__(self, cluster: Cluster, score_cache: ScoreCache | Sampled, pool: Pool, seed: int) -> None:
        self.area = 0.0  # thousandths of GPUs x lifetimes, after the warm-up
        self.asked = self.pods = self.failed = self.failed_milli = 0
        self._cluster, self._score_cache, self._pool = cluster, score_cache, pool
        self._lots = seed << 32
        self._number = 0
        self._now = 0.0
        self._leaving: list[tuple[float, int, TaskDemand, TaskPlace]] = []  # the number makes the order total

    def arrive(self, now: float, ask: TaskDemand, lifetime: float) -> None:
        self.until(now)
        self._pool.arrive(now, ask, lifetime)
        counts = now >= WARM_UP
        self._number += 1
        self.pods += counts
        self.asked += counts * ask.total
        choice = self._score_cache.best(ask, self._lots + self._number)
        if choice is None:
            self.failed += counts
            self.failed_milli += counts * ask.total
            return
        heapq.heappush(self._leaving, (now + lifetime, self._number, ask, self._cluster.place(ask, choice)))
        self._score_cache.changed(choice.row)

    def until(self, now: float) -> None:
        """Release the pods that leave before ``now``, and add up what was allocated."""
        while self._leaving and self._leaving[0][0] <= now:
            at, _, ask, held = heapq.heappop(self._leaving)
            self._pass(at)
            self._cluster.release(ask, held)
            self._score_cache.changed(held.row)
        self._pass(now)

    def _pass(self, now: float) -> None:
        self.area += self._cluster.allocated * max(0.0, now - max(self._now, WARM_UP))
        self._now = now
