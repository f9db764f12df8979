"""What the placement engine costs, on a made-up cluster with the shapes and the pods of Alibaba's trace of 2023.

1. A run: pods until 1.3 times the 6,212 GPUs of 1,213 nodes have been asked for, about 10,900, with numpy and compiled.
2. A seed of the six published policies, scaled from which all traces and seeds are judged.
3. A decision and a what-if on 10,000 nodes of 8 GPUs; a decision on fewer nodes, to see how it grows.
"""

import time
from random import Random

import numpy as np

from fractile.policy.nodes.mix import mix_of
from fractile.policy.nodes.score_cache import ScoreCache
from fractile.policy.nodes.scoring_context import scoring_of
from fractile.policy.nodes.view import TaskDemand
from fractile.sim import kernel
from fractile.sim.cluster import Cluster
from fractile.sim.fill import FillRun, fill
from fractile.sim.kernel import Kernel, kernel_of
from fractile.sim.snapshot.trace import NodeRow, PodRow
from tests.perf.measuring.report import Row

RUN_SECONDS = {False: 20.0, True: 1.0}  # of one core: with numpy, compiled
SIX = ("fgd-paper", "bestfit", "gpu-packing", "gpu-clustering", "dot-product", "random")
SIX_SECONDS = 9.0  # of a core: 8 traces x 10 seeds of them in 6 minutes on 2 cores
DECISION_MS = 2.0  # p99, 10,000 nodes, warm
WHAT_IF_SECONDS = 5.0
SIZES = (1_250, 2_500, 5_000, 10_000)
WARM = 3_000  # decisions before those that count: every class has been served
COUNTED = 1_000

# nodes, GPUs, CPUs, GiB, model: the commonest shapes of the trace, in its numbers
SHAPES = (
    (549, 8, 96, 384, "G2"),
    (404, 2, 104, 512, "T4"),
    (39, 8, 128, 768, "G3"),
    (131, 2, 16, 120, "P100"),
    (21, 8, 96, 768, "V100M32"),
    (69, 4, 48, 256, "V100M16"),
)
# how often of 1,000, CPUs, GPUs, thousandths: the mix of the trace, coarsely
PODS = (
    *((27, cpu, 0, 0) for cpu in (8, 12, 16, 24, 32)),
    *((66, cpu, 1, 810) for cpu in (3, 8)),
    *((46, cpu, 1, 470) for cpu in (4, 6)),
    (40, 4, 1, 320),
    (31, 4, 1, 650),
    (17, 3, 1, 230),
    (16, 6, 1, 460),
    (18, 8, 1, 160),
    *((80, cpu, 1, 1000) for cpu in (3, 6, 8, 10, 12, 16)),
    *((2, cpu, gpus, 1000) for cpu, gpus in ((16, 2), (32, 4), (64, 8), (88, 8), (96, 8))),
)


def measure() -> list[Row]:
    """With numpy, and compiled where numba is installed."""
    rows: list[Row] = []
    for compiled in (False, True) if kernel.available() else (False,):
        how = "compiled" if compiled else "numpy"
        arithmetic = kernel_of(compiled=compiled)
        rows += [_run(name, arithmetic, how, RUN_SECONDS[compiled]) for name in ("fgd-paper", "fgd-plus")]
        if compiled:
            rows.append(_six(arithmetic))
        for size in SIZES:
            rows += _decisions(size, arithmetic, how)
    return rows


def _run(name: str, arithmetic: Kernel, how: str, bar: float) -> Row:
    run, seconds = _timed(name, arithmetic)
    return Row(
        f"a run of {name}, {how}",
        seconds,
        "s of a core",
        bar,
        f"{run.pods} pods on {sum(shape[0] for shape in SHAPES)} nodes",
    )


def _six(arithmetic: Kernel) -> Row:
    each = {name: _timed(name, arithmetic)[1] for name in SIX}
    note = ", ".join(f"{name} {seconds:.2f}" for name, seconds in each.items())
    return Row("a seed of six policies, compiled", sum(each.values()), "s of a core", SIX_SECONDS, note)


def _timed(name: str, arithmetic: Kernel) -> tuple[FillRun, float]:
    """Seconds of the processor, after a small run that compiles."""
    some, wanted = nodes(), pods(8_152)
    mix, policy = mix_of(p.ask for p in wanted), arithmetic.policy(name)
    fill(some[:40], wanted[:300], policy, mix, seed=1, tune=1.3, measure=arithmetic.fragments)
    began = time.process_time()
    run = fill(some, wanted, policy, mix, seed=42, tune=1.3, measure=arithmetic.fragments)
    return run, time.process_time() - began


def _decisions(size: int, arithmetic: Kernel, how: str) -> list[Row]:
    """On eights of which no two are alike, about half full: nothing can be worked out once for many."""
    cluster = _used(size)
    queue = [p.ask for p in pods(WARM + COUNTED)]
    scoring = scoring_of(cluster.view, mix_of(queue))
    score_cache = ScoreCache(cluster.view, arithmetic.policy("fgd-plus"), scoring)
    taken: list[float] = []
    for number, ask in enumerate(queue):
        began = time.perf_counter()
        choice = score_cache.best(ask, number)
        taken.append(time.perf_counter() - began)
        if choice is not None:
            cluster.place(ask, choice)
            score_cache.changed(choice.row)
    counted = sorted(taken[WARM:])
    what = f"a decision on {size:,} nodes, {how}"
    rows = [
        Row(f"{what}, p99", 1000 * counted[len(counted) * 99 // 100], "ms", DECISION_MS if size == SIZES[-1] else None)
    ]
    if size == SIZES[-1]:
        rows.append(
            Row(
                f"1,000 pods on {size:,} nodes, {how}", what_if(cluster, queue[:1000], arithmetic), "s", WHAT_IF_SECONDS
            )
        )
    return rows


def _used(size: int) -> Cluster:
    cluster = Cluster([NodeRow(f"n{i:05}", 96_000, 393_216, 8, "G2") for i in range(size)])
    lots = np.random.default_rng(7)
    cluster.view.gpu_left[:] = lots.choice([0, 0, 190, 350, 530, 680, 1000, 1000], cluster.view.gpu_left.shape)
    cluster.view.cpu_left[:] = 1000 * lots.integers(8, 90, size)
    return cluster


def what_if(cluster: Cluster, queue: list[TaskDemand], arithmetic: Kernel) -> float:
    """Seconds to place so many more, everything worked out again."""
    began = time.perf_counter()
    score_cache = ScoreCache(cluster.view, arithmetic.policy("fgd-plus"), scoring_of(cluster.view, mix_of(queue)))
    for number, ask in enumerate(queue):
        choice = score_cache.best(ask, number)
        if choice is not None:
            cluster.place(ask, choice)
            score_cache.changed(choice.row)
    return time.perf_counter() - began


def nodes() -> list[NodeRow]:
    return [
        NodeRow(f"{model}-{i:04}", cpu * 1000, memory * 1024, gpus, model)
        for count, gpus, cpu, memory, model in SHAPES
        for i in range(count)
    ]


def pods(count: int) -> list[PodRow]:
    random = Random("pods")
    drawn = random.choices(PODS, weights=[share for share, *_ in PODS], k=count)
    return [PodRow(f"p{i:05}", TaskDemand(cpu * 1000, 16_384, g, milli)) for i, (_, cpu, g, milli) in enumerate(drawn)]
