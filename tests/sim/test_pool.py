"""What arrivals offer, and what one pool of all GPUs would hold of them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fractile.policy.nodes.mix import mix_of
from fractile.policy.nodes.prices import prices_of
from fractile.policy.nodes.view import TaskDemand
from fractile.sim.pool import Pool

ONE, EIGHT = TaskDemand(1, 1, 1, 1000), TaskDemand(1, 1, 8, 1000)
MOST, HALF = TaskDemand(1, 1, 1, 810), TaskDemand(1, 1, 1, 500)
NO_GPU = TaskDemand(1, 1)

times = st.floats(0, 10, allow_nan=False)


def pool(gpus: int, *mix: TaskDemand) -> Pool:
    return Pool(gpus, prices_of(mix_of(mix or (ONE,))), begin=1.0, end=3.0)


def test_a_pod_counts_from_the_begin_to_the_end() -> None:
    for now, lifetime, counted in ((0.0, 0.5, 0.0), (0.0, 2.0, 1.0), (1.5, 1.0, 1.0), (2.5, 9.0, 0.5), (3.5, 1.0, 0.0)):
        one = pool(8)
        one.arrive(now, EIGHT, lifetime)
        assert one.offered == one.held == pytest.approx(8000 * counted)


def test_who_does_not_fit_is_offered_and_not_held() -> None:
    full = pool(8)
    full.arrive(1.0, ONE, 1.0)
    full.arrive(1.0, EIGHT, 1.0)
    assert (full.held, full.offered) == (1000, 9000)


def test_who_leaves_makes_room() -> None:
    again = pool(8)
    again.arrive(0.0, EIGHT, 1.5)
    again.arrive(1.4, EIGHT, 1.0)
    again.arrive(1.5, EIGHT, 1.0)
    assert again.held == pytest.approx(8000 * (0.5 + 1.0))


def test_nodes_do_not_count_and_pods_without_gpus_neither() -> None:
    """Eight GPUs may be of eight nodes."""
    one = pool(9)
    for ask in (NO_GPU, ONE, EIGHT):
        one.arrive(1.0, ask, 1.0)
    assert one.held == one.offered == 9000


def test_pods_that_share_cost_what_no_combination_of_them_saves() -> None:
    """810 thousandths leave nothing that another of them, or a half, could use; halves leave nothing."""
    shared = pool(2, MOST, HALF)
    for ask in (MOST, HALF, HALF, HALF):
        shared.arrive(1.0, ask, 1.0)
    assert shared.held == 810 + 500 + 500


@given(st.lists(st.tuples(times, st.sampled_from([ONE, EIGHT, MOST, HALF, NO_GPU]), times)), st.integers(1, 30))
def test_a_pool_never_holds_more_than_it_has_or_is_offered(
    coming: list[tuple[float, TaskDemand, float]], gpus: int
) -> None:
    some, plenty = pool(gpus, MOST, HALF, ONE, EIGHT), pool(10_000, MOST, HALF, ONE, EIGHT)
    for now, ask, lifetime in sorted(coming, key=lambda c: c[0]):
        some.arrive(now, ask, lifetime)
        plenty.arrive(now, ask, lifetime)
    assert some.held <= min(some.offered, gpus * 1000 * 2.0) + 1e-6
    assert plenty.held == plenty.offered == some.offered
