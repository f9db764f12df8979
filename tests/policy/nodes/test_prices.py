"""What pieces of a GPU are worth, and how scarce models are, on examples that can be checked by hand."""

from fractions import Fraction

from hypothesis import given, settings
from hypothesis import strategies as st

from fractile.policy.nodes.mix import Mix
from fractile.policy.nodes.prices import UNIT, Prices, prices_of
from fractile.policy.nodes.scarcity import scarcity
from fractile.policy.nodes.view import TaskDemand
from tests.policy.nodes.nodes import node, view


def sharing(**counts: int) -> Prices:
    """``s470=3``: three pods of 470 thousandths."""
    return prices_of(Mix(tuple(TaskDemand(0, 0, 1, int(s[1:])) for s in counts), tuple(counts.values())))


def test_two_that_fill_a_gpu_between_them_are_worth_half_of_one_each() -> None:
    p = sharing(s500=10)

    assert (p.gpus, p.demand) == (5 * UNIT, 5000)
    assert [int(p.value[x]) for x in (499, 500, 999, 1000)] == [0, UNIT // 2, UNIT // 2, UNIT]


def test_one_that_leaves_a_piece_for_nobody_is_worth_a_whole_gpu() -> None:
    p = sharing(s810=4, s470=4)

    assert (p.gpus, int(p.value[810]), int(p.value[470])) == (6 * UNIT, UNIT, UNIT // 2)


def test_small_ones_that_fit_beside_large_ones_cost_nothing() -> None:
    p = sharing(s810=10, s160=5)

    assert (p.gpus, int(p.value[160]), int(p.value[810])) == (10 * UNIT, 0, UNIT)


def test_small_ones_have_a_price_once_there_are_too_many_of_them() -> None:
    p = sharing(s810=1, s160=7)

    assert p.gpus == 2 * UNIT
    assert int(p.value[160]) == UNIT // 6
    assert int(p.value[810]) == UNIT - UNIT // 6 - 1  # five sixths, rounded down


def test_without_sharing_pods_nothing_has_a_price() -> None:
    p = prices_of(Mix((TaskDemand(1, 0, 1, 1000), TaskDemand(1, 0)), (5, 5)))

    assert (p.gpus, p.demand, int(p.value.max())) == (0, 0, 0)


sizes = st.dictionaries(st.integers(40, 999), st.integers(1, 500), min_size=1, max_size=7)


@settings(max_examples=40, deadline=None)
@given(sizes)
def test_prices_prove_that_no_fewer_gpus_hold_the_pods(wanted: dict[int, int]) -> None:
    """Weak duality: no cut of a GPU is worth more than 1, so the pods' worth is a lower bound; it is reached."""
    p = prices_of(Mix(tuple(TaskDemand(0, 0, 1, s) for s in wanted), tuple(wanted.values())))
    worth = sum(int(p.value[s]) * n for s, n in wanted.items())

    assert int(p.value[1000]) in (UNIT, UNIT - 1)
    assert abs(p.gpus - worth) <= sum(wanted.values()) + 1  # each price is rounded down by less than a millionth
    assert p.gpus >= sum(s * n for s, n in wanted.items()) * (UNIT // 1000) - 1
    assert Fraction(p.gpus, UNIT) <= sum(Fraction(n, 1000 // s) for s, n in wanted.items())


def test_the_value_of_a_piece_never_falls_with_its_size() -> None:
    value = sharing(s810=35, s470=24, s320=11, s650=8, s230=5).value.tolist()

    assert value == sorted(value)


def test_a_model_is_as_scarce_as_those_who_need_it_ask_for_more_than_its_share() -> None:
    # A quarter of the GPUs are T4; half of the demand can use nothing else.
    v = view(node(1000, model="T4"), node(1000, 1000, 1000, model="V100"))
    mix = Mix((TaskDemand(1, 0, 1, 1000, ("T4",)), TaskDemand(1, 0, 1, 1000)), (2, 2))

    assert dict(zip(v.models, scarcity(mix, v).tolist(), strict=True)) == {"T4": 2 * UNIT, "V100": 0}


def test_those_who_take_several_models_ask_for_each_by_its_supply() -> None:
    v = view(node(1000, model="T4"), node(1000, 1000, 1000, model="V100"))
    mix = Mix((TaskDemand(1, 0, 1, 1000, ("T4", "V100")),), (4,))

    assert scarcity(mix, v).tolist() == [UNIT, UNIT]
