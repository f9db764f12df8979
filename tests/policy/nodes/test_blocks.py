"""What nodes are worth to pods of several GPUs, and that fgd-plus spares it where pods leave."""

import numpy as np
import pytest

from fractile.policy.nodes.blocks import blocks_of, hold
from fractile.policy.nodes.mix import mix_of
from fractile.policy.nodes.policies.table import POLICIES
from fractile.policy.nodes.score_cache import Choice, ScoreCache
from fractile.policy.nodes.scoring_context import scoring_of
from fractile.policy.nodes.view import TaskDemand
from tests.policy.nodes.nodes import Node, node, view

ONE = TaskDemand(4_000, 0, 1, 1000)
TWO = TaskDemand(24_000, 0, 2, 1000)
MIX = mix_of([ONE] * 6 + [TWO])  # a quarter of the demand is for two together


def worths(*some: Node) -> list[int]:
    v = view(*some)
    return hold(v, v.cpu_left, v.gpu_left, np.arange(len(some)), blocks_of(MIX, v.models)).tolist()


WHOLE = 2_000 * 1_000 * 1_000 // 4  # two GPUs in thousandths, by 1000 and by the unit of fade, a quarter of demand


@pytest.mark.parametrize(
    ("some", "part"),
    [
        pytest.param(node(1000, 1000), 1000, id="there"),
        pytest.param(node(1000, 1000, 1000, 1000, 1000), 2000, id="twice"),
        pytest.param(node(1000, 1000, 1000, 1000, cpu_left=40_000), 1000, id="twice by GPUs, once by CPU"),
        pytest.param(node(1000, 500), 700, id="one is lacking"),
        pytest.param(node(0, 500), 490, id="two are lacking"),
        pytest.param(node(1000, 1000, cpu_left=23_999), 700, id="a little CPU is lacking"),
        pytest.param(node(1000, 0, cpu_left=0), 490, id="more CPU is lacking than GPUs"),
        pytest.param(node(1000), 0, id="never that many GPUs"),
        pytest.param(node(1000, 1000, cpu=20_000), 0, id="never that much CPU"),
    ],
)
def test_a_node_is_worth_what_fits_or_the_hope_for_it(some: Node, part: int) -> None:
    assert worths(some) == [WHOLE * part // 1000]


def test_a_model_that_the_pods_do_not_take_is_worth_nothing_to_them() -> None:
    v = view(node(1000, 1000, model="T4"), node(1000, 1000, model="V100"))
    mix = mix_of([TaskDemand(24_000, 0, 2, 1000, ("V100",))])

    found = hold(v, v.cpu_left, v.gpu_left, np.arange(2), blocks_of(mix, v.models))
    assert found[0] == 0 < found[1]


def best(some: list[Node], ask: TaskDemand, large: TaskDemand, *, leaving: bool) -> Choice | None:
    """Large pods are so rare that F does not know them."""
    v = view(*some)
    mix = mix_of([ONE] * 30 + [large])
    return ScoreCache(v, POLICIES["fgd-plus"], scoring_of(v, mix, leaving=leaving)).best(ask, 0)


def test_where_pods_leave_small_ones_spare_a_node_that_two_want_and_large_ones_take_it() -> None:
    """The second node has a single GPU and a lot of CPU, for which it is avoided where pods stay."""
    some = [node(1000, 1000, cpu=32_000), node(1000, cpu=96_000)]

    assert best(some, ONE, TWO, leaving=False) == Choice(0, -1)
    assert best(some, ONE, TWO, leaving=True) == Choice(1, -1)
    assert best(some, TWO, TWO, leaving=True) == Choice(0, -1)


def test_where_pods_leave_the_node_that_is_nearly_empty_is_left_to_become_empty() -> None:
    """None of the two has room for four; where pods stay the first is taken, since its CPU is used."""
    four = TaskDemand(24_000, 0, 4, 1000)
    some = [node(1000, 1000, 1000, 0, cpu_left=40_000), node(1000, 0, 0, 0)]

    assert best(some, ONE, four, leaving=False) == Choice(0, -1)
    assert best(some, ONE, four, leaving=True) == Choice(1, -1)


def test_a_mix_without_large_pods_changes_nothing() -> None:
    v = view(node(1000, 1000), node(1000, 500))
    mix = mix_of([ONE])

    assert hold(v, v.cpu_left, v.gpu_left, np.arange(2), blocks_of(mix, v.models)).tolist() == [0, 0]
