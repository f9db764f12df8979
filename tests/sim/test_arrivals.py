"""Which pods arrive, and that a seed says it all."""

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from fractile.policy.score.view import Ask
from fractile.sim.arrivals import arrivals, in_order
from tests.sim.traces import mixed, nodes, part, pods, whole

CLUSTER = nodes(8, 8, 4)  # 20,000 thousandths


def queue(*asks: Ask, tune: float = 1.0, seed: int = 0) -> list[Ask]:
    return arrivals(pods(*asks), CLUSTER, tune=tune, random=Random(seed))


def test_too_few_pods_are_repeated_until_the_next_would_be_too_many() -> None:
    assert queue(*[part(600)] * 3) == [part(600)] * 33  # 19,800


def test_too_many_pods_are_thinned_out_until_they_are_not_more_than_asked_for() -> None:
    assert queue(*[whole(4)] * 9, tune=0.5) == [whole(4)] * 2


def test_the_last_pod_is_weighed_by_one_of_its_gpus_as_in_the_published_code() -> None:
    assert sum(a.total for a in queue(*[whole(8)] * 2)) == 24_000
    assert sum(a.total for a in queue(whole(4))) == 20_000


def test_copies_are_drawn_from_the_pods_of_the_trace_and_not_from_copies() -> None:
    for seed in range(10):
        found = queue(part(99), part(101), seed=seed)  # about 200
        share = found.count(part(99)) / len(found)

        assert set(found) == {part(99), part(101)}
        assert 0.35 < share < 0.65  # four deviations; what is drawn from copies too may be any share


def test_without_a_bar_the_pods_are_only_shuffled() -> None:
    asks = [part(100 + i) for i in range(30)]
    found = queue(*asks, tune=0)

    assert found != asks
    assert sorted(found, key=lambda a: a.milli) == asks


def test_pods_without_gpus_are_not_repeated_for_ever() -> None:
    assert queue(Ask(1, 1), Ask(1, 1)) == [Ask(1, 1)] * 2


@given(st.integers(0, 2**32), st.floats(0.2, 3))
def test_a_seed_says_it_all_and_the_order_of_lines_nothing(seed: int, tune: float) -> None:
    lines = mixed()
    found = arrivals(lines, CLUSTER, tune=tune, random=Random(seed))

    assert found == arrivals(lines[::-1], CLUSTER[::-1], tune=tune, random=Random(seed))
    assert abs(sum(a.total for a in found) - tune * 20_000) <= 4_000


def test_the_order_of_nodes_follows_from_the_seed_alone() -> None:
    many = nodes(*[8] * 40)

    assert in_order(many, Random(1)) == in_order(many[::-1], Random(1)) != in_order(many, Random(2))
    assert sorted(in_order(many, Random(1)), key=lambda n: n.name) == sorted(many, key=lambda n: n.name)
