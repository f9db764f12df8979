"""kube-scheduler's integer arithmetic on worked examples, old and new, and against plain Python integers."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fractile.policy.nodes.kubernetes import (
    BIN_PACKING,
    Resource,
    Rounding,
    UtilizationPoint,
    at,
    least_allocated,
    most_allocated,
    requested_to_capacity_ratio,
    utilization,
)
from tests.policy.nodes.nodes import column

OLD, NEW = Rounding.OLD, Rounding.NEW


def resource(requested: int, capacity: int, weight: int = 1) -> Resource:
    return Resource(column([requested]), column([capacity]), weight)


NODE_A = [resource(3, 4, 5), resource(512, 1024, 1), resource(3, 8, 3)]
NODE_B = [resource(4, 8, 5), resource(768, 1024, 1), resource(8, 8, 3)]


@pytest.mark.parametrize(
    ("requested", "capacity", "old", "new"),
    [pytest.param(1, 3, 34, 33, id="a third"), pytest.param(3, 8, 38, 37, id="three eighths")],
)
def test_the_old_utilization_rounds_up_and_the_new_one_down(requested: int, capacity: int, old: int, new: int) -> None:
    r = resource(requested, capacity)

    assert (int(utilization(r, OLD)[0]), int(utilization(r, NEW)[0])) == (old, new)


@pytest.mark.parametrize("rounding", [OLD, NEW])
def test_the_documentations_two_nodes_score_60_and_69(rounding: Rounding) -> None:
    a = requested_to_capacity_ratio(NODE_A, rounding=rounding)
    b = requested_to_capacity_ratio(NODE_B, rounding=rounding)

    assert (int(a[0]), int(b[0])) == (60, 69)


@pytest.mark.parametrize("rounding", [OLD, NEW])
def test_three_eighths_and_a_half_are_43_full_and_56_empty(rounding: Rounding) -> None:
    both = [resource(3, 8), resource(1, 2)]

    assert int(most_allocated(both, rounding)[0]) == 43
    assert int(least_allocated(both, rounding)[0]) == 56


def test_what_is_overfull_scores_nothing_in_the_old_version_and_all_in_the_new_one() -> None:
    nine_of_eight = [resource(9, 8)]

    assert int(most_allocated(nine_of_eight, OLD)[0]) == 0
    assert int(most_allocated(nine_of_eight, NEW)[0]) == 100


@pytest.mark.parametrize("rounding", [OLD, NEW])
def test_what_is_overfull_is_full_to_the_ratio(rounding: Rounding) -> None:
    assert int(requested_to_capacity_ratio([resource(9, 8)], rounding=rounding)[0]) == 100
    assert int(utilization(resource(9, 8), rounding)[0]) == (100 if rounding is OLD else 112)


def test_a_shape_is_a_straight_line_between_its_points() -> None:
    shape = [UtilizationPoint(0, 0), UtilizationPoint(40, 2), UtilizationPoint(100, 10)]

    assert at(shape, column([70, 0, 40, 100, 20])).tolist() == [60, 0, 20, 100, 10]


def test_a_shape_is_flat_outside_its_points_and_may_fall() -> None:
    shape = [UtilizationPoint(20, 10), UtilizationPoint(80, 3)]

    # 100 + trunc(-70 x 1 / 60), as Go divides; rounding down would give 98.
    assert at(shape, column([0, 20, 21, 80, 100])).tolist() == [100, 100, 99, 30, 30]


@pytest.mark.parametrize("rounding", [OLD, NEW])
def test_a_resource_that_scores_nothing_does_not_count_in_the_ratio(rounding: Rounding) -> None:
    cpu, gpu = resource(40, 100, 1), resource(0, 8, 9)

    assert int(requested_to_capacity_ratio([cpu, gpu], rounding=rounding)[0]) == 40


def test_a_resource_that_a_node_does_not_have_counts_with_nothing_in_the_old_version_only() -> None:
    here, absent = resource(1, 2), resource(0, 0)

    assert int(least_allocated([here, absent], OLD)[0]) == 25
    assert int(least_allocated([here, absent], NEW)[0]) == 50
    assert int(most_allocated([here, absent], NEW)[0]) == 50
    # The old ratio takes it for full.
    assert int(requested_to_capacity_ratio([here, absent], rounding=OLD)[0]) == 75
    assert int(requested_to_capacity_ratio([here, absent], rounding=NEW)[0]) == 50


def test_no_resources_score_nothing() -> None:
    assert int(most_allocated([resource(0, 0)], NEW)[0]) == 0


amounts = st.tuples(st.integers(0, 2**50), st.integers(0, 2**50), st.integers(1, 100))


@given(st.lists(amounts, min_size=1, max_size=4))
def test_the_new_scores_are_those_of_plain_integers(given_: list[tuple[int, int, int]]) -> None:
    resources = [resource(*g) for g in given_]
    there = [(r, c, w) for r, c, w in given_ if c]
    weights = sum(w for _, _, w in there)
    full = [(min(r, c) * 100 // c, w) for r, c, w in there]
    counted = [(min(r * 100 // c, 100), w) for r, c, w in there if r * 100 // c > 0]

    assert int(most_allocated(resources)[0]) == (sum(s * w for s, w in full) // weights if there else 0)
    ratio = Fraction(sum(s * w for s, w in counted), sum(w for _, w in counted)) if counted else Fraction(0)
    assert int(requested_to_capacity_ratio(resources, BIN_PACKING)[0]) == int(ratio + Fraction(1, 2))
