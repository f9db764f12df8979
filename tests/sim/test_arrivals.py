"""Which pods arrive, and that a seed says it all."""

from collections.abc import Sequence
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from fractile.policy.nodes.view import TaskDemand
from fractile.sim.arrivals import arrivals, in_order, orders
from fractile.sim.snapshot.trace import NodeRow
from tests.sim.traces import mixed, nodes, part, pods, whole

CLUSTER = nodes(8, 8, 4)  # 20,000 thousandths


def queue(*asks: TaskDemand, tune: float = 1.0, seed: int = 0) -> list[TaskDemand]:
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
    assert queue(TaskDemand(1, 1), TaskDemand(1, 1)) == [TaskDemand(1, 1)] * 2


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


def published(*asks: TaskDemand, seed: int = 42, tune: float = 1.0) -> list[TaskDemand]:
    return orders(pods(*asks), CLUSTER, tune=tune, seed=seed, which="published").queue


def test_published_orders_are_those_of_a_program_in_go() -> None:
    """Checked with one that draws as the published code does: log, shuffle, copies, ten watches, nodes."""
    found = orders(
        pods(*[part(100 + i) for i in range(8)]), nodes(1, 1, 1, 1, 1, 1), tune=0.2, seed=42, which="published"
    )

    assert [a.milli for a in found.queue] == [103, 106, 102, 105, 107, 101, 104, 100, 100, 103, 101]
    assert [n.name for n in found.nodes] == ["n0", "n4", "n3", "n5", "n2", "n1"]


def test_published_copies_are_drawn_from_the_pods_by_name() -> None:
    asks = [part(100 + i) for i in range(40)]
    queue = published(*asks)

    assert sorted(queue[:40], key=lambda a: a.milli) == asks
    assert [a.milli for a in queue[40:46]] == [135, 127, 124, 100, 116, 132]


@given(st.integers(0, 2**32), st.floats(0.2, 3))
def test_published_orders_too_follow_from_the_seed_alone(seed: int, tune: float) -> None:
    lines = mixed()
    found = orders(lines, CLUSTER, tune=tune, seed=seed, which="published")

    assert found == orders(lines[::-1], CLUSTER[::-1], tune=tune, seed=seed, which="published")
    assert sorted(n.name for n in found.nodes) == sorted(n.name for n in CLUSTER)
    assert abs(sum(a.total for a in found.queue) - tune * 20_000) <= 8_000


def test_own_orders_of_pods_do_not_depend_on_the_nodes() -> None:
    def queue(cluster: Sequence[NodeRow]) -> list[TaskDemand]:
        return orders(mixed(), cluster, tune=0, seed=1, which="own").queue

    assert queue(CLUSTER) == queue(nodes(8, 4, 8)) == arrivals(mixed(), CLUSTER, tune=0, random=Random("1:pods"))
