"""Each policy on nodes that a person can compare, and all of them on random ones."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fractile.policy.nodes import devices
from fractile.policy.nodes.candidates import candidates
from fractile.policy.nodes.mix import Mix
from fractile.policy.nodes.policies.table import DEFAULT, POLICIES, find
from fractile.policy.nodes.policy import Policy, ScoringContext
from fractile.policy.nodes.score_cache import Choice, ScoreCache
from fractile.policy.nodes.scoring_context import scoring_of
from fractile.policy.nodes.view import NEVER, TaskDemand, View, feasible
from tests.policy.nodes.nodes import Node, node, view

MIX = Mix(
    (
        TaskDemand(12_000, 0, 1, 1000),
        TaskDemand(4_000, 0, 1, 810),
        TaskDemand(4_000, 0, 1, 470),
        TaskDemand(32_000, 0),
        TaskDemand(8_000, 0, 8, 1000),
    ),
    (40, 13, 9, 13, 2),
)
HALF = TaskDemand(4_000, 1_024, 1, 500)
ONE = TaskDemand(4_000, 1_024, 1, 1000)
TWO = TaskDemand(4_000, 1_024, 2, 1000)
NO_GPU = TaskDemand(4_000, 1_024)


def values(name: str, ask: TaskDemand, *nodes: Node) -> list[int]:
    v = view(*nodes)
    return POLICIES[name].score(v, ask, scoring_of(v, MIX)).value.tolist()


def best(name: str, ask: TaskDemand, *nodes: Node) -> Choice | None:
    v = view(*nodes)
    return ScoreCache(v, POLICIES[name], scoring_of(v, MIX)).best(ask, 0)


def test_bestfit_is_100_less_the_half_of_what_is_left_of_128_cpus_and_8_gpus() -> None:
    # 60 of 128 CPUs and 500 of 8,000: 100 x (1 - 0.234375 - 0.03125) = 73.4, cut off.
    assert values("bestfit", HALF, node(1000, cpu_left=64_000)) == [73]
    assert values("bestfit", ONE, node(1000, cpu_left=4_000)) == [100]


def test_bestfit_takes_the_smaller_of_two_empty_nodes_and_the_tightest_device() -> None:
    assert best("bestfit", HALF, node(1000, 1000), node(900, 600, 700, cpu_left=8_000)) == Choice(1, 1)


def test_dot_product_prefers_what_is_least_like_the_request() -> None:
    # 64 x 4 of 128 x 128 and 1,000 x 500 of 8,000 x 8,000: 100 x (1 - (0.015625 + 0.0078125) / 2) = 98.8.
    assert values("dot-product", HALF, node(1000, cpu_left=64_000)) == [98]
    assert best(
        "dot-product", TaskDemand(32_000, 0), node(1000, cpu_left=96_000), node(1000, cpu_left=40_000)
    ) == Choice(1, -1)


def test_gpu_packing_knows_used_gpus_free_ones_and_empty_nodes() -> None:
    shared = node(600, 1000)
    opened = node(400, 1000)
    empty = node(1000, 1000)

    assert values("gpu-packing", HALF, shared, opened, empty) == [94, 49, 31]
    assert values("gpu-packing", TWO, node(400, 1000, 1000), node(*[1000] * 8)) == [48, 25]
    assert values("gpu-packing", NO_GPU, shared, opened) == [0, 0]


def test_gpu_clustering_brings_pods_of_one_kind_together() -> None:
    alone = node(500, 1000, kinds={0: 1})
    mixed = node(500, 0, kinds={0: 1, 1: 1})
    other = node(1000, 0, kinds={1: 1})
    empty = node(1000, 1000)

    # Each 25 x (8,000 - left) / 8,000 above 75, 50, 0 and 25.
    assert values("gpu-clustering", HALF, alone, mixed, other, empty) == [95, 73, 21, 43]
    assert values("gpu-clustering", NO_GPU, alone, mixed) == [0, 0]


def test_fgd_paper_is_50_where_nothing_is_fragmented_and_more_where_fragments_vanish() -> None:
    # Nobody could use 500 of a GPU but the 9 x 470 of 77; the pod fills it.
    filled, cut = values("fgd-paper", HALF, node(500, 1000), node(1000, 1000))

    assert filled > 50 > cut


def test_fgd_paper_counts_cpu_that_strands_gpus() -> None:
    enough, stranded = values("fgd-paper", NO_GPU, node(1000, cpu_left=96_000), node(1000, cpu_left=12_000))

    assert enough == 50 > stranded


def test_fgd_plus_prefers_the_fuller_of_two_nodes_that_fragment_alike() -> None:
    assert best("fgd-plus", ONE, node(1000, 1000, 1000), node(1000, 0, 0)) == Choice(1, -1)


def test_fgd_plus_keeps_the_model_that_others_need() -> None:
    needed = Mix((TaskDemand(4_000, 0, 1, 1000, ("P100",)), ONE), (5, 5))
    v = view(node(1000, 1000, model="P100"), node(1000, 1000, model="T4"))

    assert ScoreCache(v, POLICIES["fgd-plus"], scoring_of(v, needed)).best(ONE, 0) == Choice(1, -1)


def test_fgd_plus_does_not_cut_what_a_larger_pod_could_use() -> None:
    # 350 left of 820 are worth nothing; 530 left of 1,000 are still worth a 470.
    mix = Mix((TaskDemand(1_000, 0, 1, 810), TaskDemand(1_000, 0, 1, 470)), (1, 1))
    v = view(node(820, 1000, cpu=8_000))

    assert ScoreCache(v, POLICIES["fgd-plus"], scoring_of(v, mix)).best(TaskDemand(1_000, 0, 1, 470), 0) == Choice(0, 1)


def test_first_fit_takes_the_first_node_and_its_first_device() -> None:
    assert best("first-fit", HALF, node(400), node(400, 1000, 500), node(500)) == Choice(1, 1)


def test_allocation_scores_are_kube_schedulers() -> None:
    half_full = node(1000, 0, cpu=8_000, cpu_left=8_000, memory=2_048, memory_left=2_048)

    # CPU 4 of 8, memory 1,024 of 2,048, GPUs 1,500 of 2,000.
    assert values("most-allocated", HALF, half_full) == [58]
    assert values("least-allocated", HALF, half_full) == [41]
    assert values("requested-to-capacity-ratio", HALF, half_full) == [58]


def test_a_pod_that_asks_for_nothing_counts_as_kube_scheduler_counts_it() -> None:
    # 100 thousandths of 1 CPU and 200 of 1,000 MiB.
    assert values("most-allocated", TaskDemand(0, 0), node(1000, cpu=1_000, memory=1_000)) == [15]


def test_random_draws_other_nodes_and_devices_for_every_decision_and_misses_none() -> None:
    v = view(*[node(1000, 1000) for _ in range(4)])
    score_cache = ScoreCache(v, POLICIES["random"], scoring_of(v, MIX))
    drawn = [score_cache.best(HALF, n) for n in range(400)]

    counts = {c: drawn.count(c) for c in drawn}
    assert len(counts) == 8
    assert all(20 < n < 90 for n in counts.values())  # 50 each, deviation 6.6
    assert drawn == [score_cache.best(HALF, n) for n in range(400)]


def test_scores_add_up_in_hundredths_of_a_gpu_a_point_and_the_device_is_the_first_ones() -> None:
    v = view(node(1000, 600, cpu_left=64_000), node(400, 700, cpu_left=70_000, memory_left=20_000))
    scoring = scoring_of(v, MIX)
    both = find("bestfit+2*most-allocated")
    assert both is not None

    bestfit = POLICIES["bestfit"].score(v, HALF, scoring)
    most = POLICIES["most-allocated"].score(v, HALF, scoring)
    found = both.score(v, HALF, scoring)

    assert found.value.tolist() == (10_000_000 * (bestfit.value + 2 * most.value)).tolist()
    assert found.device.tolist() == bestfit.device.tolist()
    assert both.memory


def test_a_blend_takes_no_node_that_one_of_its_parts_cannot() -> None:
    assert best("first-fit", HALF, node(499), node(500)) == Choice(1, 0)
    both = find("fgd-plus+fgd-paper")
    assert both is not None
    v = view(node(499), node(500))

    assert both.score(v, HALF, scoring_of(v, MIX)).value[0] == NEVER
    assert ScoreCache(v, both, scoring_of(v, MIX)).best(HALF, 0) == Choice(1, 0)


def test_the_device_may_be_chosen_by_another_rule_than_the_node() -> None:
    some = [node(600, 1000, cpu_left=8_000), node(600, 700, cpu_left=6_000), node(1000, 1000)]

    def chosen(text: str) -> Choice | None:
        policy, v = find(text), view(*some)
        assert policy is not None
        return ScoreCache(v, policy, scoring_of(v, MIX)).best(HALF, 0)

    assert [chosen(f"bestfit@{d}") for d in ("tightest", "widest", "spread", "first")] == [
        Choice(1, 0),
        Choice(1, 1),
        Choice(1, 1),
        Choice(1, 0),
    ]
    assert chosen("bestfit@exclusive") == Choice(0, 1)  # the second has no device that is untouched
    assert chosen("3*bestfit@widest+bestfit") == Choice(1, 1)


@pytest.mark.parametrize(
    "text", ["", "best", "fgd-plus+", "fgd-plus+random", "0*bestfit", "1001*bestfit", "-1*bestfit", "bestfit@best"]
)
def test_what_is_no_policy_is_not_found(text: str) -> None:
    assert find(text) is None


def test_the_default_is_in_the_table() -> None:
    assert DEFAULT in POLICIES


@pytest.mark.parametrize(
    ("choice", "device"),
    [
        pytest.param(devices.tightest, 2, id="tightest"),
        pytest.param(devices.widest, 1, id="widest"),
        pytest.param(devices.first, 1, id="first"),
        pytest.param(devices.untouched, 1, id="exclusive"),
    ],
)
def test_devices_are_chosen_among_those_with_room(choice: devices.Choice, device: int) -> None:
    assert choice(view(node(400, 1000, 500, 1000)), HALF, 0).tolist() == [device]
    assert choice(view(node(400, 499)), HALF, 0).tolist() == [-1]
    assert choice(view(node(1000)), ONE, 0).tolist() == [-1]


@pytest.mark.parametrize(
    ("ask", "ok"),
    [
        pytest.param(HALF, [True, False, False], id="a part: a device with room, and CPU"),
        pytest.param(ONE, [False, False, False], id="a whole one: untouched"),
        pytest.param(TaskDemand(4_000, 0, 1, 400, ("V100",)), [False, True, False], id="the model"),
        pytest.param(NO_GPU, [True, True, False], id="no GPU"),
    ],
)
def test_a_node_is_feasible_by_cpu_devices_and_model(ask: TaskDemand, ok: list[bool]) -> None:
    v = view(node(500, 100), node(400, 400, model="V100"), node(1000, cpu_left=3_999))

    assert feasible(v, ask).tolist() == ok


def test_candidates_leave_out_devices_that_are_like_one_before_them() -> None:
    found = candidates(view(node(600, 1000, 600, 400), node(1000, 1000)), HALF)

    assert found.row.tolist() == [0, 0, 1]
    assert found.device.tolist() == [0, 1, 0]
    assert found.gpu_left.tolist() == [[100, 1000, 600, 400], [600, 500, 600, 400], [500, 1000, -1, -1]]


def test_whole_gpus_are_the_lowest_free_ones() -> None:
    found = candidates(view(node(600, 1000, 1000, 1000), node(1000, 900)), TWO)

    assert found.row.tolist() == [0]
    assert found.gpu_left.tolist() == [[600, 0, 0, 1000]]


def test_memory_and_pod_slots_are_looked_at_too() -> None:
    v = view(node(1000, memory_left=1_023), node(1000), node(1000))
    v.slots_left[1] = 0

    assert ScoreCache(v, POLICIES["first-fit"], scoring_of(v, MIX)).best(HALF, 0) == Choice(2, 0)


def test_a_pod_that_fits_nowhere_gets_nothing() -> None:
    assert [best(name, TWO, node(1000, 999), node(1000)) for name in POLICIES] == [None] * len(POLICIES)


# --- the score cache must never change a result ---------------------------------------------------------------------

asks = st.sampled_from(
    [HALF, ONE, TWO, NO_GPU, TaskDemand(2_000, 9_000, 1, 160), TaskDemand(8_000, 64, 1, 810, ("V100",))]
)


@st.composite
def nodes(draw: st.DrawFn) -> Node:
    left = draw(st.lists(st.sampled_from([1000, 1000, 840, 500, 190, 0]), min_size=1, max_size=4))
    return node(*left, model=draw(st.sampled_from(["T4", "V100"])), memory=32_768)


some_nodes = st.lists(nodes(), min_size=1, max_size=70)


def _take(v: View, ask: TaskDemand, chosen: Choice) -> None:
    v.cpu_left[chosen.row] -= ask.cpu
    v.memory_left[chosen.row] -= ask.memory
    if ask.shares:
        v.gpu_left[chosen.row, chosen.device] -= ask.milli
    elif ask.gpus:
        v.gpu_left[chosen.row, np.flatnonzero(v.gpu_left[chosen.row] == 1000)[: ask.gpus]] = 0
    if ask.kind is not None:
        v.kinds[chosen.row, ask.kind] += 1


@pytest.mark.parametrize("name", POLICIES)
@settings(max_examples=20, deadline=None)
@given(
    some=some_nodes,
    wanted=st.lists(asks, min_size=1, max_size=25),
    classes=st.sampled_from([1, 2, 1024]),
    log=st.sampled_from([1, 2, 5, 65_536]),
)
def test_a_board_that_remembers_chooses_as_one_that_begins_anew(
    name: str, some: list[Node], wanted: list[TaskDemand], classes: int, log: int
) -> None:
    """However little it may remember."""
    v = view(*some)
    scoring = scoring_of(v, MIX)
    score_cache = ScoreCache(v, POLICIES[name], scoring, classes=classes, log=log)
    for number, ask in enumerate(wanted):
        chosen = score_cache.best(ask, number)

        assert chosen == _plainly(v, POLICIES[name], scoring, ask, number)
        if chosen is not None:
            _take(v, ask, chosen)
            score_cache.changed(chosen.row)
            assert (v.cpu_left[chosen.row], v.memory_left[chosen.row]) >= (0, 0)
            assert v.gpu_left[chosen.row].min() >= -1


def _plainly(v: View, policy: Policy, scoring: ScoringContext, ask: TaskDemand, number: int) -> Choice | None:
    """One node after the other."""
    found = None
    top = NEVER
    for row in range(len(v.number)):
        one = v.take(np.array([row]))
        drawn = ScoringContext(scoring.expected, scoring.prices, scoring.scarcity, scoring.largest, number)
        scores = policy.score(one, ask, drawn)
        fits = feasible(one, ask)[0] and one.memory_left[0] >= ask.memory
        if fits and int(scores.value[0]) > top:
            top, found = int(scores.value[0]), Choice(row, int(scores.device[0]))
    return found


@pytest.mark.parametrize("name", POLICIES)
def test_many_nodes_of_which_many_are_equal_are_scored_each_for_itself(name: str) -> None:
    """Above 64 nodes a cache scores equal ones once; what makes a difference to any policy must make them unequal."""
    half = [
        *[
            node(500, 1000, kinds={1: 1}, cpu_left=cpu, memory_left=memory)
            for cpu in (60_000, 50_000)
            for memory in (8, 9)
        ],
        node(500, 1000, kinds={0: 1, 1: 1}, memory=8_192),
        node(500, 1000, kinds={0: 1}, cpu=48_000),
        node(500, 1000, kinds={0: 1}, model="V100"),
        node(1000, 500),
    ]
    v = view(*half * 9, node(500, kinds={0: 1}))
    scoring = scoring_of(v, MIX)

    for number, ask in enumerate([HALF, ONE, NO_GPU]):
        assert ScoreCache(v, POLICIES[name], scoring).best(ask, number) == _plainly(
            v, POLICIES[name], scoring, ask, number
        )


def test_nodes_that_differ_by_the_kinds_of_their_pods_only_are_not_equal() -> None:
    v = view(*[node(500, 1000, kinds={1: 1})] * 50, *[node(500, 1000, kinds={0: 1})] * 50)

    assert ScoreCache(v, POLICIES["gpu-clustering"], scoring_of(v, MIX)).best(HALF, 0) == Choice(50, 0)
