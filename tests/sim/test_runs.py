"""Whole runs: figures that can be worked out by hand, nothing lost, and the same on any number of processes."""

import os
import statistics
from pathlib import Path
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fractile.errors import SetupError
from fractile.policy.nodes.mix import mix_of
from fractile.policy.nodes.policies.table import POLICIES
from fractile.policy.nodes.score_cache import ScoreCache
from fractile.policy.nodes.scoring_context import scoring_of
from fractile.policy.nodes.view import TaskDemand
from fractile.sim.cluster import Cluster, TaskPlace
from fractile.sim.curve import Curve
from fractile.sim.fill import FillRun, fill
from fractile.sim.processes import run_all
from fractile.sim.runs import PARTS, Experiment, Run, sharing_floor
from fractile.sim.snapshot.trace import NodeRow, PodRow, read_nodes, read_pods
from fractile.sim.steady import SteadyRun, steady
from fractile.sim.summary import summary, without_times
from tests.sim.traces import mixed, nodes, part, pods, whole

CLUSTER = nodes(8, 8, 8, 4, 4, 2, 2)


def filled(
    policy: str, some: tuple[NodeRow, ...], wanted: tuple[PodRow, ...], *, tune: float = 0, seed: int = 1
) -> FillRun:
    mix = mix_of(p.ask for p in wanted)
    return fill(some, wanted, POLICIES[policy], mix, seed=seed, tune=tune)


def settled(policy: str, *, load: float = 1.0, seed: int = 1) -> SteadyRun:
    mix = mix_of(p.ask for p in mixed())
    return steady(CLUSTER, mixed(), POLICIES[policy], mix, seed=seed, load=load)


def test_pods_that_fit_nowhere_are_counted_and_nothing_else_is_lost() -> None:
    run = filled("bestfit", nodes(2), pods(whole(1), whole(1), whole(1), part(500)))

    assert (run.pods, run.failed) in {(4, 1), (4, 2)}  # the part may come before one of the whole ones
    placed = 3500 - run.failed_milli
    assert run.curve.allocation(175) == 100 * placed / 2000


def test_the_allocation_at_a_load_is_the_mean_over_pods_whose_arrival_rounds_to_it() -> None:
    curve = Curve(1000)
    for arrived, allocated in ((996, 500), (1000, 600), (1004, 610), (1006, 900)):
        curve.add(arrived, allocated, 10 * allocated)

    assert curve.percents() == [100, 101]
    assert curve.allocation(100) == pytest.approx(57.0)
    assert curve.fragmented(100, weight=20) == pytest.approx(28.5)
    assert curve.allocation(130) is None


def test_where_no_pod_arrived_at_a_load_what_was_allocated_before_still_is() -> None:
    curve = Curve(1000, planned=130)
    curve.add(950, 900, 0)
    curve.add(1250, 980, 0)

    assert [curve.allocation(p) for p in (94, 95, 100, 125, 130, 131)] == [None, 90.0, 90.0, 98.0, 98.0, None]


def test_two_thirds_of_sharing_pods_that_fit_only_one_to_a_gpu_are_a_floor() -> None:
    # Ten GPUs hold ten pods of 600: 6 used, 4 lost, of 10.
    assert sharing_floor(mix_of([part(600)] * 10)) == pytest.approx(40.0)
    assert sharing_floor(mix_of([whole(1)] * 10)) == 0.0


def test_the_causes_are_taken_when_the_clusters_worth_has_been_asked_for() -> None:
    # Two pods of 600 fill two GPUs; what is left, 2 x 400, is too small for the expected 600.
    run = filled("first-fit", nodes(2), pods(*[part(600)] * 2), tune=3)

    assert run.causes.lack_gpu / run.weight == 800
    assert (run.causes.lack_cpu, run.causes.sharing_remainder) == (0, 0)


def test_the_causes_are_those_before_the_first_pod_too_many_whatever_happens_later() -> None:
    """Two nodes of one GPU; one pod wants two on one node, two want one. Idle GPUs are of no use to the first alone."""
    runs = [filled("first-fit", nodes(1, 1), pods(whole(2), whole(1), whole(1)), seed=s) for s in range(30)]

    # It comes first: two are idle when more than two have been asked for. Second: one is. Last: none.
    assert {r.causes.lack_gpu for r in runs} == {2000, 1000, 0}
    assert {(r.failed, r.failed_milli, r.weight) for r in runs} == {(1, 2000, 3)}


@pytest.mark.parametrize("policy", POLICIES)
def test_a_run_never_gives_more_than_there_is(policy: str) -> None:
    run = filled(policy, CLUSTER, mixed(), tune=1.3)

    shares = [run.curve.allocation(p) for p in run.curve.percents()]
    assert all(s is not None and 0 <= s <= 100 for s in shares)
    assert (run.curve.allocation(130) or 0) > 80
    assert run.failed > 0


def test_packing_policies_do_better_than_random_ones() -> None:
    def mean(policy: str) -> float:
        some = nodes(8, 8, 8, 4, 4, 2, 2)
        return statistics.fmean(
            filled(policy, some, mixed(), tune=1.3, seed=s).curve.allocation(100) or 0 for s in range(8)
        )

    means = {p: mean(p) for p in ("fgd-plus", "fgd-paper", "bestfit", "random")}

    assert min(means["fgd-plus"], means["fgd-paper"]) > means["random"] + 2
    assert means["bestfit"] > means["random"]


@settings(max_examples=30, deadline=None)
@given(
    st.lists(
        st.sampled_from([part(810), part(230), whole(1), whole(2), TaskDemand(8_000, 512)]), min_size=1, max_size=40
    ),
    st.randoms(),
)
def test_what_is_given_back_is_free_again(asks: list[TaskDemand], random: Random) -> None:
    cluster = Cluster(CLUSTER)
    before = Cluster(CLUSTER).view
    score_cache = ScoreCache(cluster.view, POLICIES["fgd-plus"], scoring_of(cluster.view, mix_of(asks)))
    held: list[tuple[TaskDemand, TaskPlace]] = []
    for ask in asks:
        chosen = score_cache.best(ask, 0)
        if chosen is not None:
            held.append((ask, cluster.place(ask, chosen)))
            score_cache.changed(chosen.row)
    assert cluster.allocated == sum(a.total for a, _ in held) == int((before.gpu_left - cluster.view.gpu_left).sum())
    for kind in (0, 1, 2):
        assert int(cluster.view.kinds[:, kind].sum()) == sum(a.kind == kind for a, _ in held)
    random.shuffle(held)
    for ask, place in held:
        cluster.release(ask, place)

    assert cluster.allocated == 0
    for name in ("cpu_left", "memory_left", "gpu_left", "kinds", "slots_left"):
        assert np.array_equal(getattr(cluster.view, name), getattr(before, name))


def test_with_departures_a_light_load_is_accepted_whole() -> None:
    run = settled("bestfit", load=0.2)

    assert run.acceptance == 1.0
    assert 0.05 < run.allocation < 0.4
    assert run.allocation == pytest.approx(run.offered) == pytest.approx(run.pooled)


def test_with_departures_a_heavy_load_fills_the_cluster_and_refuses_the_rest() -> None:
    run = settled("bestfit", load=2.0)

    assert 0.85 < run.allocation <= 1.0
    assert run.acceptance < 0.7
    assert run.failed > 0
    assert run.allocation < run.pooled <= 1.0 < 1.5 < run.offered


def test_with_departures_as_much_is_held_as_is_asked_for_when_there_is_room() -> None:
    """From the first moment that counts, not only after the cluster has filled up: 0.3 of 36 GPUs, over five runs."""
    runs = [settled("bestfit", load=0.3, seed=s) for s in range(5)]

    assert statistics.fmean(r.allocation for r in runs) == pytest.approx(0.3, abs=0.06)


def test_with_departures_a_seed_says_it_all() -> None:
    def bare(seed: int) -> tuple[float, float, int]:
        run = settled("fgd-paper", seed=seed)
        return run.allocation, run.acceptance, run.failed

    assert bare(1) == bare(1) != bare(2)


def test_a_steady_state_needs_gpus() -> None:
    wanted = pods(TaskDemand(1, 1))
    with pytest.raises(SetupError):
        steady(CLUSTER, wanted, POLICIES["random"], mix_of(p.ask for p in wanted), seed=1, load=1)


EXPERIMENT = Experiment(CLUSTER, mixed())
NAMES = ("fgd-plus", "random")


def test_the_figures_do_not_depend_on_the_number_of_processes() -> None:
    runs = [Run(p, s) for p in NAMES for s in (1, 2)]
    told: list[tuple[int, int]] = []
    one = summary(
        EXPERIMENT, NAMES, (1, 2), run_all(EXPERIMENT, runs, jobs=1, progress=lambda d, t: told.append((d, t)))
    )
    two = summary(EXPERIMENT, NAMES, (1, 2), run_all(EXPERIMENT, runs[::-1], jobs=2))

    assert without_times(one) == without_times(two)
    assert told == sorted(told)
    assert told[-1] == (4 * PARTS, 4 * PARTS)


@pytest.mark.parametrize("policy", ["fgd-plus", "fgd-paper", "gpu-clustering"])
def test_what_runs_share_does_not_change_them(policy: str) -> None:
    """Nodes of several models, with pods that want one of them: what is known of the mix depends on both."""
    some = nodes(8, 8, 4, 4, 2, 2, models=("T4", "V100", "V100", "T4"))
    wanted = pods(*[p.ask for p in mixed()], *[TaskDemand(4_000, 1_024, 1, 1000, ("V100",))] * 9)
    found = run_all(Experiment(some, wanted), [Run(policy, s) for s in (1, 2)], jobs=1)

    for seed in (1, 2):
        alone = filled(policy, some, wanted, tune=1.3, seed=seed)
        assert found[Run(policy, seed)].allocation_at_100 == alone.curve.allocation(100)
        assert found[Run(policy, seed)].failed_gpus == alone.failed_milli / 1000


def test_differences_are_taken_seed_by_seed() -> None:
    found = run_all(EXPERIMENT, [Run(p, s) for p in NAMES for s in (1, 2, 3)], jobs=1)
    report = summary(EXPERIMENT, NAMES, (1, 2, 3), found)
    each = [
        (found[Run("random", s)].allocation_at_100 or 0) - (found[Run("fgd-plus", s)].allocation_at_100 or 0)
        for s in (1, 2, 3)
    ]

    (pair,) = report.paired
    assert (pair.policy, pair.than, pair.seeds, pair.better) == ("random", "fgd-plus", 3, sum(d > 0 for d in each))
    assert pair.mean == pytest.approx(statistics.fmean(each))
    assert pair.stdev == pytest.approx(statistics.stdev(each))
    assert report.policies[0].mean.pods == statistics.fmean(found[Run("fgd-plus", s)].pods or 0 for s in (1, 2, 3))


TRACES = os.environ.get("FRACTILE_TRACES", "")
# Means of ten seeds at 100 and 130 %, USENIX ATC'23 artefact, and how far two seeds may be away from them.
PUBLISHED = {
    "fgd-paper": (95.23, 95.39, 0.4),
    "bestfit": (92.86, 93.08, 0.5),
    "dot-product": (90.62, 90.85, 0.7),
    "random": (86.30, 87.47, 0.9),
    "gpu-packing": (91.78, 92.00, 1.2),
    "gpu-clustering": (91.65, 91.88, 1.4),
}


def alibaba(name: str) -> tuple[tuple[NodeRow, ...], tuple[PodRow, ...]]:
    if not TRACES:
        pytest.skip("FRACTILE_TRACES names no folder with Alibaba's traces of 2023")
    some = read_nodes(Path(TRACES) / "openb_node_list_gpu_node.csv")
    return some, read_pods(Path(TRACES) / f"openb_pod_list_{name}.csv", some)


@pytest.mark.parametrize("policy", PUBLISHED)
def test_the_published_figures_of_the_default_trace_are_met(policy: str) -> None:
    some, wanted = alibaba("default")
    curves = [filled(policy, some, wanted, tune=1.3, seed=s).curve for s in (42, 43)]
    at_100, at_130, away = PUBLISHED[policy]

    for percent, published in ((100, at_100), (130, at_130)):
        mean = statistics.fmean(c.allocation(percent) or 0 for c in curves)
        assert mean == pytest.approx(published, abs=away)


# The artefact's run of seed 42 at 80, 100 and 130 %, to two digits.
RUNS_OF_SEED_42 = {
    ("gpushare40", "fgd-paper"): (80.02, 94.06, 94.24),
    ("gpushare40", "bestfit"): (80.02, 91.42, 91.66),
    ("gpushare40", "dot-product"): (80.02, 89.35, 89.59),
    ("gpushare40", "gpu-packing"): (80.02, 89.93, 90.16),
    ("gpushare40", "gpu-clustering"): (80.02, 89.73, 89.98),
    ("gpuspec33", "fgd-paper"): (73.21, 87.87, 94.39),
    ("gpuspec33", "gpu-packing"): (66.88, 81.53, 92.78),
    ("gpuspec33", "gpu-clustering"): (66.32, 80.97, 92.31),
}


@pytest.mark.parametrize(("trace", "policy"), RUNS_OF_SEED_42)
def test_a_published_run_comes_out_again_in_its_order(trace: str, policy: str) -> None:
    some, wanted = alibaba(trace)
    mix = mix_of(p.ask for p in wanted)
    curve = fill(some, wanted, POLICIES[policy], mix, seed=42, tune=1.3, order="published").curve

    found = [curve.allocation(percent) for percent in (80, 100, 130)]
    assert found == pytest.approx(RUNS_OF_SEED_42[trace, policy], abs=0.011)


@pytest.mark.parametrize(
    ("trace", "least"), [("default", 95.2), ("cpu250", 94.4), ("gpuspec33", 93.7), ("gpushare40", 93.6)]
)
def test_fgd_plus_fills_the_cluster_as_far_as_its_page_says(trace: str, least: float) -> None:
    """Two seeds of a deviation of 0.1 to 0.2."""
    some, wanted = alibaba(trace)
    found = [filled("fgd-plus", some, wanted, tune=1.3, seed=s).curve.allocation(100) or 0 for s in (42, 43)]

    assert statistics.fmean(found) > least


@pytest.mark.parametrize(("trace", "least"), [("default", 94.5), ("gpuspec33", 91.5)])
def test_fgd_plus_holds_as_much_as_its_page_says_when_pods_leave(trace: str, least: float) -> None:
    pytest.importorskip("numba")  # minutes without
    some, wanted = alibaba(trace)
    run = Run("fgd-plus", 42)
    found = run_all(Experiment(some, wanted, mode="steady", compiled=True), [run], jobs=1)

    assert (found[run].allocation or 0) > least
