"""Scores taken apart: worked checks of kube-scheduler's arithmetic, old and new; the parts make the whole."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fractile.policy.nodes.kubernetes import Rounding
from fractile.policy.nodes.terms import Amount, NodeScore, score
from fractile.wire.kubernetes.scoring import BIN_PACKING, ShapePoint, Strategy, StrategyKind, Weighted

OLD, NEW = Rounding.OLD, Rounding.NEW
MI = 2**20


def scored(
    kind: StrategyKind,
    *amounts: tuple[str, int, int, int],
    rounding: Rounding,
    shape: tuple[ShapePoint, ...] = BIN_PACKING,
    pod: int = 1,
) -> NodeScore:
    """Amounts: name, requested with the pod, capacity, weight."""
    strategy = Strategy(kind, tuple(Weighted(name, weight) for name, _, _, weight in amounts), shape)
    return score(
        strategy, [Amount(n, requested - pod, pod, capacity) for n, requested, capacity, _ in amounts], rounding
    )


@pytest.mark.parametrize(
    ("requested", "capacity", "rounding", "expected"),
    [(1, 3, OLD, 34), (1, 3, NEW, 33), (3, 8, OLD, 38), (3, 8, NEW, 37)],
)
def test_the_old_utilization_is_rounded_up_and_the_new_one_down(
    requested: int, capacity: int, rounding: Rounding, expected: int
) -> None:
    found = scored(StrategyKind.RATIO, ("a/b", requested, capacity, 1), rounding=rounding)

    assert (found.terms[0].utilization, found.score) == (expected, expected)


NODE_A = ("a/foo", 3, 4, 5), ("memory", 512 * MI, 1024 * MI, 1), ("cpu", 3000, 8000, 3)
NODE_B = ("a/foo", 4, 8, 5), ("memory", 768 * MI, 1024 * MI, 1), ("cpu", 8000, 8000, 3)


@pytest.mark.parametrize(
    ("node", "rounding", "products", "expected", "tenths"),
    [
        (NODE_A, OLD, (375, 50, 114), 60, (49, 5)),
        (NODE_A, NEW, (375, 50, 111), 60, (49, 5)),
        (NODE_B, OLD, (250, 75, 300), 69, (62, 7)),
        (NODE_B, NEW, (250, 75, 300), 69, (62, 7)),
    ],
    ids=["A old", "A new", "B old", "B new"],
)
def test_the_two_nodes_of_the_documentation_make_60_and_69_or_5_and_7_of_10(
    node: tuple[tuple[str, int, int, int], ...],
    rounding: Rounding,
    products: tuple[int, ...],
    expected: int,
    tenths: tuple[int, int],
) -> None:
    found = scored(StrategyKind.RATIO, *node, rounding=rounding)

    assert tuple(t.product for t in found.terms) == products
    assert (found.sum, found.weights, found.score) == (sum(products), 9, expected)
    assert found.tenths is not None
    assert (found.tenths.sum, found.tenths.score) == tenths


@pytest.mark.parametrize("rounding", [OLD, NEW])
@pytest.mark.parametrize(
    ("kind", "each", "expected"), [(StrategyKind.MOST, [37, 50], 43), (StrategyKind.LEAST, [62, 50], 56)]
)
def test_the_mean_of_the_others_is_cut(kind: StrategyKind, each: list[int], expected: int, rounding: Rounding) -> None:
    found = scored(kind, ("cpu", 3000, 8000, 1), ("memory", 1, 2, 1), rounding=rounding)

    assert [t.score for t in found.terms] == each
    assert (found.score, found.tenths) == (expected, None)


@pytest.mark.parametrize(("rounding", "expected"), [(OLD, 0), (NEW, 100)])
def test_nine_of_eight_are_nothing_to_the_old_most_allocated_and_all_to_the_new_one(
    rounding: Rounding, expected: int
) -> None:
    assert scored(StrategyKind.MOST, ("a/b", 9, 8, 1), rounding=rounding).score == expected


@pytest.mark.parametrize("rounding", [OLD, NEW])
def test_a_shape_with_three_points_is_two_lines(rounding: Rounding) -> None:
    shape = ShapePoint(0, 0), ShapePoint(40, 2), ShapePoint(100, 10)

    assert scored(StrategyKind.RATIO, ("a/b", 70, 100, 1), rounding=rounding, shape=shape).score == 60


@pytest.mark.parametrize("rounding", [OLD, NEW])
def test_a_resource_that_scores_nothing_is_not_counted_by_the_ratio(rounding: Rounding) -> None:
    found = scored(StrategyKind.RATIO, ("cpu", 40, 100, 1), ("memory", 0, 8, 9), rounding=rounding, pod=0)

    assert [t.counted for t in found.terms] == [True, False]
    assert (found.score, found.weights) == (40, 1)


@pytest.mark.parametrize(("rounding", "counted"), [(OLD, True), (NEW, False)])
def test_an_extended_resource_that_the_pod_does_not_ask_for_counts_in_the_old_version_only(
    rounding: Rounding, counted: bool
) -> None:
    found = scored(StrategyKind.MOST, ("cpu", 1000, 4000, 1), ("a/b", 4, 8, 1), rounding=rounding, pod=0)

    assert [t.counted for t in found.terms] == [True, counted]
    assert found.score == (37 if counted else 25)


amount = st.tuples(st.sampled_from(["cpu", "memory", "a/b", "c/d"]), st.integers(0, 2**40), st.integers(0, 2**40))
weights = st.integers(1, 100)


@given(
    st.sampled_from(StrategyKind),
    st.sampled_from(Rounding),
    st.lists(st.tuples(amount, st.integers(0, 2**20), weights), min_size=1, max_size=4, unique_by=lambda a: a[0][0]),
    st.lists(st.tuples(st.integers(0, 100), st.integers(0, 10)), min_size=1, max_size=4, unique_by=lambda p: p[0]),
)
def test_the_terms_make_the_score(
    kind: StrategyKind,
    rounding: Rounding,
    given_: list[tuple[tuple[str, int, int], int, int]],
    points: list[tuple[int, int]],
) -> None:
    strategy = Strategy(
        kind, tuple(Weighted(a[0], w) for a, _, w in given_), tuple(ShapePoint(u, s) for u, s in sorted(points))
    )
    found = score(strategy, [Amount(a[0], a[1], pod, a[2]) for a, pod, _ in given_], rounding)

    counted = [t for t in found.terms if t.counted]
    total, weight = sum(t.score * t.weight for t in counted), sum(t.weight for t in counted)
    assert (found.sum, found.weights) == (total, weight)
    rounded = (2 * total + weight) // (2 * weight) if weight else 0
    assert found.score == (rounded if kind is StrategyKind.RATIO else total // max(weight, 1))
