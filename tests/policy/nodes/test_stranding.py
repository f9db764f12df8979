"""GPUs that will be left over for want of CPU, on examples that can be checked by hand."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fractile.policy.nodes.mix import Mix
from fractile.policy.nodes.policies.table import POLICIES
from fractile.policy.nodes.score_cache import Choice, ScoreCache
from fractile.policy.nodes.scoring_context import scoring_of
from fractile.policy.nodes.stranding import UNIT, Beside, beside, stranded
from fractile.policy.nodes.view import TaskDemand
from tests.policy.nodes.nodes import Node, node, view

ONE = TaskDemand(8_000, 0, 1, 1000)
SIXTEEN = 16 * UNIT  # CPUs wanted beside a GPU

amounts = st.integers(0, 64_000)
cpus = st.integers(0, 10_000_000)
wanted = st.integers(0, 10**13)


def of(gpu: int, cpu: int, beside: int = SIXTEEN) -> int:
    return int(stranded(np.array([cpu], np.int64), np.array([gpu], np.int64), beside)[0])


def test_twice_the_mean_is_wanted_and_pods_without_gpus_do_not_count() -> None:
    parts, some = TaskDemand(4_000, 0, 1, 500), view(node(1000, 1000))

    assert beside(Mix((ONE, TaskDemand(32_000, 0)), (3, 9)), some).wanted == SIXTEEN
    assert beside(Mix((ONE, parts, TaskDemand(0, 0, 2, 1000)), (1, 2, 1)), some).wanted == 8 * UNIT
    assert beside(Mix((TaskDemand(32_000, 0),), (9,)), some) == beside(Mix((), ()), some) == Beside()


@pytest.mark.parametrize(
    ("others", "weight"),
    [
        pytest.param(0, 100, id="none"),
        pytest.param(18_000, 100, id="few"),
        pytest.param(19_000, 50, id="many"),
        pytest.param(20_000, 0, id="as many as there is CPU for"),
        pytest.param(90_000, 0, id="more"),
    ],
)
def test_it_counts_as_long_as_pods_without_gpus_have_a_place_elsewhere(others: int, weight: int) -> None:
    """Two GPUs want 16 CPUs. One node has 4 less, which is no place for others; the other has 20 more."""
    mix = Mix((ONE, TaskDemand(others, 0)), (4, 1))  # four GPUs are there

    assert beside(mix, view(node(1000, 1000, cpu=12_000), node(1000, 1000, cpu=36_000))).weight == weight


def test_without_cpu_to_spare_it_counts_only_where_nobody_else_asks_for_cpu() -> None:
    some = view(node(1000, cpu=8_000), node(1000, cpu=4_000))

    assert beside(Mix((ONE,), (1,)), some).weight == 100
    assert beside(Mix((ONE, TaskDemand(1_000, 0)), (9, 1)), some).weight == 0


def test_a_quarter_is_stranded_with_half_of_what_is_wanted_and_everything_with_nothing() -> None:
    assert of(2000, 32_000) == of(2000, 99_000) == of(0, 0) == 0
    assert of(2000, 16_000) == 500 * UNIT
    assert of(2000, 0) == 2000 * UNIT
    assert of(2000, -5_000) == 2000 * UNIT  # nodes without room are scored too, before they are left out


@given(amounts, cpus, wanted)
def test_it_is_never_more_than_is_left_and_as_exact_as_python(gpu: int, cpu: int, beside: int) -> None:
    needed = gpu * beside // UNIT
    share = UNIT * max(needed - cpu, 0) // max(needed, 1)

    assert of(gpu, cpu, beside) == gpu * share * share // UNIT <= gpu * UNIT


@given(amounts, cpus, cpus, wanted)
def test_less_cpu_never_strands_less(gpu: int, one: int, other: int, beside: int) -> None:
    assert of(gpu, min(one, other), beside) >= of(gpu, max(one, other), beside)


def chosen(ask: TaskDemand, *nodes: Node) -> Choice | None:
    v = view(*nodes)
    mix = Mix((ONE, TaskDemand(2_000, 0, 1, 1000), TaskDemand(24_000, 0)), (5, 5, 1))
    return ScoreCache(v, POLICIES["fgd-plus"], scoring_of(v, mix)).best(ask, 0)


def test_a_pod_without_gpus_leaves_its_cpu_to_gpus_that_need_it() -> None:
    scarce, plenty = node(1000, 1000, 1000, cpu_left=36_000), node(1000, 1000, 1000, cpu_left=90_000)

    assert chosen(TaskDemand(24_000, 0), scarce, plenty) == Choice(1, -1)


def test_pods_go_where_the_rest_of_the_node_still_has_what_it_needs() -> None:
    scarce, plenty = node(*[1000] * 8, cpu_left=24_000), node(*[1000] * 8, cpu_left=90_000)

    assert chosen(TaskDemand(8_000, 0, 1, 1000), scarce, plenty) == Choice(1, -1)
    assert chosen(TaskDemand(2_000, 0, 1, 1000), scarce, plenty) == Choice(0, -1)
