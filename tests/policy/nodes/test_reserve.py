"""CPU kept for GPUs in use, on examples that can be checked by hand, and what fgd-plus does with it."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fractile.policy.nodes.mix import Mix
from fractile.policy.nodes.policies.table import POLICIES
from fractile.policy.nodes.reserve import UNIT, reserved
from fractile.policy.nodes.score_cache import Choice, ScoreCache
from fractile.policy.nodes.scoring_context import scoring_of
from fractile.policy.nodes.view import TaskDemand
from tests.policy.nodes.nodes import Node, node, view

ONE = TaskDemand(8_000, 0, 1, 1000)
CPU = TaskDemand(8_000, 0)
SIXTEEN = 16 * UNIT  # CPUs wanted beside a GPU, twice the mean

amounts = st.integers(0, 64_000)


def of(cpu: int, left: int, gpus: int, wanted: int = SIXTEEN) -> int:
    columns = [np.array([value], np.int64) for value in (cpu, left, gpus)]
    return int(reserved(columns[0], columns[1], columns[2], wanted)[0])


@pytest.mark.parametrize(
    ("cpu", "left", "lacks"),
    [
        pytest.param(0, 0, 32_000, id="full, and no CPU left"),
        pytest.param(16_000, 0, 8_000, id="full, half of what is wanted is left"),
        pytest.param(32_000, 0, 0, id="full, as much left as is wanted"),
        pytest.param(90_000, 0, 0, id="more than is wanted"),
        pytest.param(16_000, 1_000, 18_000, id="one is left, which takes the mean"),
        pytest.param(32_000, 2_000, 8_000, id="empty, twice the mean"),
        pytest.param(0, 2_000, 72_000, id="empty, and no CPU"),
        pytest.param(-4_000, 0, 32_000, id="less than none counts as none"),
    ],
)
def test_a_node_lacks_the_square_of_what_is_missing_over_what_is_wanted(cpu: int, left: int, lacks: int) -> None:
    assert of(cpu, left, 2_000) == lacks


def test_nothing_lacks_without_gpus_or_when_no_cpu_is_wanted() -> None:
    assert of(0, 0, 0) == of(0, 2_000, 2_000, 0) == 0


@given(cpu=st.integers(0, 10_000_000), more=st.integers(0, 10_000_000), gpus=amounts, wanted=st.integers(0, 10**13))
def test_more_cpu_never_makes_it_worse_and_no_product_is_too_large(cpu: int, more: int, gpus: int, wanted: int) -> None:
    for left in (0, gpus // 2, gpus):
        lacks, needed = of(cpu, left, gpus, wanted), gpus * wanted // UNIT
        assert 0 <= of(cpu + more, left, gpus, wanted) <= lacks <= 9 * needed // 4 + 1


def best(some: list[Node], ask: TaskDemand, *, leaving: bool = True, others: int = 1) -> Choice | None:
    v = view(*some)
    mix = Mix((ONE, CPU), (9, others))
    return ScoreCache(v, POLICIES["fgd-plus"], scoring_of(v, mix, leaving=leaving)).best(ask, 0)


# Full nodes with two GPUs: on one all CPU would be gone, on the other as much stays as is wanted.
SHORT = node(0, 0, cpu=99_000, cpu_left=8_000)
RICH = node(0, 0, cpu=99_000, cpu_left=40_000)


def test_where_pods_leave_those_without_gpus_go_where_cpu_is_over() -> None:
    assert best([SHORT, RICH], CPU, leaving=False) == Choice(0, -1)  # the fuller one
    assert best([SHORT, RICH], CPU) == Choice(1, -1)


def test_it_does_not_count_where_pods_without_gpus_ask_for_all_cpu_that_is_over() -> None:
    assert best([SHORT, RICH], CPU, others=999) == Choice(0, -1)
