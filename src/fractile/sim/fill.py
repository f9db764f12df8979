"""The published experiment: pods arrive one by one and stay; one that fits nowhere is lost."""

import time
from collections.abc import Callable, Sequence

import msgspec

from fractile.policy.nodes.fragmentation import Causes, Forecast, causes, fragments
from fractile.policy.nodes.mix import Mix
from fractile.policy.nodes.policy import Policy, ScoringContext
from fractile.policy.nodes.score_cache import ScoreCache
from fractile.policy.nodes.scoring_context import scoring_of
from fractile.policy.nodes.view import Ints, TaskDemand
from fractile.sim.arrivals import orders
from fractile.sim.cluster import Cluster
from fractile.sim.curve import Curve
from fractile.sim.sample import Sampled
from fractile.sim.snapshot.trace import NodeRow, PodRow

Fragments = Callable[[Ints, Ints, Ints, Forecast], Ints]
Tell = Callable[[int, int], None]  # pods done, pods in all


class FillRun(msgspec.Struct, frozen=True):
    """The result of one run of one policy. ``causes``: when all of the cluster's GPUs had been requested."""

    seed: int
    curve: Curve
    causes: Causes
    pods: int
    failed: int
    failed_milli: int
    weight: int  # divides the figures of fragments into thousandths
    seconds: float  # of the decisions, on the monotonic clock


def fill(
    nodes: Sequence[NodeRow],
    pods: Sequence[PodRow],
    policy: Policy,
    mix: Mix,
    *,
    seed: int,
    tune: float,
    tell: Tell = lambda done, total: None,
    clock: Callable[[], float] = time.monotonic,
    measure: Fragments = fragments,
    sample: int | None = None,
    scoring: ScoringContext | None = None,
    order: str = "own",
) -> FillRun:
    """One run. ``tell`` is called after each pod; ``measure`` may be the compiled form. ``sample``: the percentage of
    nodes that kube-scheduler shows, as in ``Sampled``; None: all. ``scoring``: of these nodes and this mix, if
    already computed. ``order``: see ``arrivals.orders``."""
    # 1. Order of pods and of nodes.
    found = orders(pods, nodes, tune=tune, seed=seed, which=order)
    queue, cluster = found.queue, Cluster(found.nodes)
    scoring = scoring or scoring_of(cluster.view, mix)
    # 2. One decision after the other.
    curve = Curve(cluster.capacity, planned=round(100 * tune))
    score_cache = ScoreCache(cluster.view, policy, scoring)
    seen = score_cache if sample is None else Sampled(score_cache, cluster.view, sample)
    run = _Filling(cluster, seen, scoring, curve, measure)
    start = clock()
    for number, ask in enumerate(queue):
        run.arrive(ask, (seed << 32) + number)
        tell(number + 1, len(queue))
    # 3. Figures.
    return FillRun(
        seed=seed,
        curve=run.curve,
        causes=run.causes or causes(cluster.view, scoring.expected),
        pods=len(queue),
        failed=run.failed,
        failed_milli=run.failed_milli,
        weight=scoring.expected.total,
        seconds=clock() - start,
    )


class _Filling:
    def __init__(
        self,
        cluster: Cluster,
        score_cache: ScoreCache | Sampled,
        scoring: ScoringContext,
        curve: Curve,
        measure: Fragments,
    ) -> None:
        self.curve = curve
        self.causes: Causes | None = None
        self.failed = self.failed_milli = 0
        self._cluster, self._score_cache = cluster, score_cache
        self._expected = scoring.expected
        self._measure = measure
        self._arrived = 0
        self._fragment = self._fragments_of(slice(None))  # [N]
        self._fragments = int(self._fragment.sum())

    def arrive(self, ask: TaskDemand, draw: int) -> None:
        if self.causes is None and self._arrived + ask.total > self._cluster.capacity:
            self.causes = causes(self._cluster.view, self._expected)
        self._arrived += ask.total
        choice = self._score_cache.best(ask, draw)
        if choice is None:
            self.failed += 1
            self.failed_milli += ask.total
        else:
            self._cluster.place(ask, choice)
            self._score_cache.changed(choice.row)
            self._update(choice.row)
        self.curve.add(self._arrived, self._cluster.allocated, self._fragments)

    def _update(self, row: int) -> None:
        now = self._fragments_of(slice(row, row + 1))[0]
        self._fragments += int(now - self._fragment[row])
        self._fragment[row] = now

    def _fragments_of(self, rows: slice) -> Ints:
        view = self._cluster.view
        return self._measure(view.cpu_left[rows], view.gpu_left[rows], view.model[rows], self._expected)
