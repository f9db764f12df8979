"""One run of an experiment, and the figures that are reported for it."""

from collections.abc import Callable

import msgspec

from fractile.policy.nodes.mix import Mix, mix_of
from fractile.policy.nodes.prices import UNIT, prices_of
from fractile.policy.nodes.scoring_context import scoring_of
from fractile.policy.nodes.view import WHOLE_GPU
from fractile.sim.cluster import Cluster
from fractile.sim.curve import CurvePoint
from fractile.sim.fill import FillRun, fill
from fractile.sim.kernel import kernel_of
from fractile.sim.snapshot.trace import NodeRow, PodRow
from fractile.sim.steady import SteadyRun, steady
from fractile.wire.output.simulation import RunFigures

PARTS = 1000  # of one run, for a progress bar


class Experiment(msgspec.Struct, frozen=True):
    """``load`` is for the steady state, ``tune`` for filling."""

    nodes: tuple[NodeRow, ...]
    pods: tuple[PodRow, ...]
    mode: str = "fill"
    tune: float = 1.3
    load: float = 1.0
    compiled: bool = False  # needs numba
    sample: int | None = None  # see ``fill``
    order: str = "own"  # or "published", see ``arrivals.orders``

    @property
    def gpus(self) -> int:
        return sum(n.gpus for n in self.nodes)


class Run(msgspec.Struct, frozen=True, order=True):
    policy: str
    seed: int


class RunOutcome(msgspec.Struct, frozen=True):
    """The result of a run; a steady state has no curve."""

    figures: RunFigures
    curve: tuple[CurvePoint, ...] = ()


class Worker:
    """What the runs of one process share: the mix, the values derived from it, and the arithmetic."""

    def __init__(self, experiment: Experiment) -> None:
        self._experiment = experiment
        self._mix = mix_of(p.ask for p in experiment.pods)
        self._floor = sharing_floor(self._mix)
        self._scoring = scoring_of(Cluster(experiment.nodes).view, self._mix)
        self._kernel = kernel_of(compiled=experiment.compiled)

    def outcome(self, run: Run, tell: Callable[[int], None]) -> RunOutcome:
        """Run once; ``tell`` is called with how many of ``PARTS`` are done."""
        e = self._experiment
        policy = self._kernel.policy(run.policy)
        last = 0

        def part(done: int, total: int) -> None:
            nonlocal last
            now = PARTS * done // max(1, total)
            if now - last >= PARTS // 100 or now == PARTS != last:
                tell(now)
                last = now

        if e.mode == "steady":
            settled = steady(e.nodes, e.pods, policy, self._mix, seed=run.seed, load=e.load, tell=part, sample=e.sample)
            return RunOutcome(_steady_figures(settled))
        filled = fill(
            e.nodes,
            e.pods,
            policy,
            self._mix,
            seed=run.seed,
            tune=e.tune,
            tell=part,
            measure=self._kernel.fragments,
            sample=e.sample,
            scoring=self._scoring,
            order=e.order,
        )
        return RunOutcome(_fill_figures(filled, self._floor, e.gpus), filled.curve.points(filled.weight))


def sharing_floor(mix: Mix) -> float:
    """Percent of the GPUs in use that stay empty however sharing pods are combined: they need more GPUs than they
    fill."""
    prices = prices_of(mix)
    demand = sum(a.total * c for a, c in zip(mix.asks, mix.counts, strict=True)) / WHOLE_GPU
    lost = prices.gpus / UNIT - prices.demand / WHOLE_GPU
    return 100 * lost / (demand + lost) if demand else 0.0


def _fill_figures(run: FillRun, floor: float, gpus: int) -> RunFigures:
    unit = run.weight * gpus * WHOLE_GPU / 100 or 1.0
    c = run.causes
    return RunFigures(
        allocation_at_100=run.curve.allocation(100),
        allocation_at_130=run.curve.allocation(130),
        fragmented=(c.no_gpu_asked + c.wrong_model + c.lack_gpu + c.lack_cpu + c.sharing_remainder) / unit,
        lack_gpu=c.lack_gpu / unit,
        lack_cpu=c.lack_cpu / unit,
        wrong_model=c.wrong_model / unit,
        sharing_remainder=c.sharing_remainder / unit,
        no_gpu_asked=c.no_gpu_asked / unit,
        sharing_floor=floor,
        pods=run.pods,
        failed_pods=run.failed,
        failed_gpus=run.failed_milli / WHOLE_GPU,
        decisions_per_second=run.pods / run.seconds if run.seconds else None,
    )


def _steady_figures(run: SteadyRun) -> RunFigures:
    return RunFigures(
        allocation=100 * run.allocation,
        acceptance=100 * run.acceptance,
        offered=100 * run.offered,
        pooled=100 * run.pooled,
        pods=run.pods,
        failed_pods=run.failed,
        failed_gpus=run.failed_milli / WHOLE_GPU,
    )
