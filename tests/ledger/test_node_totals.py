"""What nodes can give of CPU, memory and pods, and what the pods on them take."""

import numpy as np
import pytest

from fractile.ledger.node_totals import KINDS_FROM, WIDTH, NodeTotals, kind_of
from fractile.model.pod_demand import PartOfCard, PodDemand
from fractile.model.units import NodeName, PodUID
from fractile.wire.kubernetes.pod_totals import NodeCapacity

A, B = NodeName("a"), NodeName("b")
P, Q = PodUID("p"), PodUID("q")
PLAIN = PodDemand(500, 100)
PART = PodDemand(500, 100, parts=(PartOfCard(memory=250),))
THREE = PodDemand(500, 100, whole=3)
MANY = PodDemand(500, 100, whole=20)
SOME = NodeCapacity(4000, 8192, 10)


@pytest.fixture
def totals() -> NodeTotals:
    found = NodeTotals()
    found.put_node(A, SOME)
    return found


def row(totals: NodeTotals, node: str) -> list[int]:
    """What the node can give, and what is taken of it: CPU, memory, pods."""
    found = totals.of([node])
    assert (found.shape, found.dtype) == ((1, WIDTH), np.int64)
    return found[0, :KINDS_FROM].tolist()


def kinds(totals: NodeTotals, node: str) -> dict[int, int]:
    """Pods that hold GPUs, by how many whole ones."""
    found: list[int] = totals.of([node])[0, KINDS_FROM:].tolist()
    return {kind: count for kind, count in enumerate(found) if count}


def test_a_node_shows_what_it_can_give_and_what_is_taken(totals: NodeTotals) -> None:
    totals.put_pod(P, A, PLAIN)
    totals.put_pod(Q, A, PodDemand(30, 7))
    assert row(totals, "a") == [4000, 8192, 10, 530, 107, 2]
    totals.drop_pod(Q)
    assert row(totals, "a") == [4000, 8192, 10, 500, 100, 1]


def test_pods_that_hold_gpus_are_counted_by_how_many_whole_ones(totals: NodeTotals) -> None:
    for number, wish in enumerate((PLAIN, PART, PART, THREE, MANY, PodDemand(0, 0, whole=8))):
        totals.put_pod(PodUID(f"p{number}"), A, wish)
    assert kinds(totals, "a") == {0: 2, 3: 1, 8: 2}
    totals.drop_pod(PodUID("p3"))
    assert kinds(totals, "a") == {0: 2, 8: 2}
    assert [kind_of(wish) for wish in (PART, THREE, MANY)] == [0, 3, 8]


def test_nodes_that_are_not_known_show_nothing(totals: NodeTotals) -> None:
    assert not totals.of(["z", None, ""]).any()
    assert totals.of(["z", "a"])[:, 0].tolist() == [0, 4000]


def test_a_pod_that_asks_for_something_else_counts_as_it_asks_now(totals: NodeTotals) -> None:
    totals.put_pod(P, A, PART)
    totals.put_pod(P, A, THREE)
    assert row(totals, "a")[3:] == [500, 100, 1]
    assert kinds(totals, "a") == {3: 1}


def test_a_pod_that_is_reported_again_as_it_is_changes_nothing(totals: NodeTotals) -> None:
    totals.put_pod(P, A, PART)
    before = totals.changes
    totals.put_pod(P, A, PodDemand(500, 100, parts=(PartOfCard(memory=250),)))
    assert totals.changes == before


def test_a_node_that_is_reported_again_as_it_is_changes_nothing(totals: NodeTotals) -> None:
    before = totals.changes
    totals.put_node(A, NodeCapacity(4000, 8192, 10))
    assert totals.changes == before


@pytest.mark.parametrize(
    "other",
    [NodeCapacity(1, 8192, 10), NodeCapacity(4000, 1, 10), NodeCapacity(4000, 8192, 1)],
    ids=["CPU", "memory", "pods"],
)
def test_a_node_that_can_give_something_else_is_a_change(totals: NodeTotals, other: NodeCapacity) -> None:
    before = totals.changes
    totals.put_node(A, other)
    assert totals.changed_since(before) == ["a"]
    assert row(totals, "a")[:3] == [other.cpu, other.memory, other.pods]


def test_equal_wishes_of_many_pods_are_one_object(totals: NodeTotals) -> None:
    for number in range(3):
        totals.put_pod(PodUID(f"p{number}"), A, PodDemand(500, 100, whole=2))
    known = {id(wish) for _, wish in totals._pods.values()}  # pyright: ignore[reportPrivateUsage]  # sharing is about memory alone
    assert len(known) == 1


def test_changes_are_named_once_each_in_their_order(totals: NodeTotals) -> None:
    before = totals.changes
    totals.put_pod(P, B, PART)
    totals.put_pod(Q, A, PART)
    totals.drop_pod(P)
    assert totals.changes == before + 3
    assert totals.changed_since(before) == ["b", "a"]
    assert totals.changed_since(before + 1) == ["a", "b"]
    assert totals.changed_since(totals.changes) == []


def test_sixty_four_changes_are_followed_one_by_one_and_more_are_not(totals: NodeTotals) -> None:
    before = totals.changes
    for number in range(64):
        totals.put_pod(PodUID(f"p{number}"), A, PART)
    assert totals.changed_since(before) == ["a"]
    totals.put_pod(PodUID("one more"), A, PART)
    assert totals.changed_since(before) is None


def test_the_last_changes_are_known_however_many_there_were(totals: NodeTotals) -> None:
    for number in range(500):
        totals.put_pod(PodUID(f"p{number}"), NodeName(f"n{number}"), PART)
        assert totals.changes == number + 2
        assert totals.changed_since(number + 1) == [f"n{number}"]
        if number >= 64:
            assert totals.changed_since(number - 62) == [f"n{n}" for n in range(number - 63, number + 1)]
    assert totals.changed_since(0) is None


def test_a_node_that_is_gone_keeps_what_its_pods_take_until_they_are_gone(totals: NodeTotals) -> None:
    totals.put_pod(P, A, PART)
    totals.drop_node(A)
    assert row(totals, "a") == [0, 0, 0, 500, 100, 1]
    totals.drop_pod(P)
    assert row(totals, "a") == [0] * 6
    totals.drop_node(A)
    totals.drop_node(B)
    assert len(totals) == 0


def test_nodes_that_came_and_went_leave_their_rows_to_others() -> None:
    totals = NodeTotals()
    for number in range(500):
        totals.put_node(NodeName(f"n{number}"), SOME)
        totals.drop_node(NodeName(f"n{number}"))
    assert len(totals._table) == 64  # pyright: ignore[reportPrivateUsage]  # its size is about memory alone


@pytest.mark.parametrize("rows", [64, 128, 256])
def test_the_table_grows_when_every_row_is_in_use(rows: int) -> None:
    totals = NodeTotals()
    for number in range(1, rows):
        totals.put_node(NodeName(f"n{number}"), SOME)
    assert len(totals._table) == rows  # pyright: ignore[reportPrivateUsage]  # its size is about memory alone
    totals.put_node(NodeName("one more"), SOME)
    assert len(totals._table) == 2 * rows  # pyright: ignore[reportPrivateUsage]  # its size is about memory alone


def test_the_first_changes_are_known() -> None:
    totals = NodeTotals()
    assert totals.changed_since(0) == []
    totals.put_node(A, SOME)
    assert totals.changed_since(0) == ["a"]


def test_hundreds_of_nodes_have_a_row_each() -> None:
    totals = NodeTotals()
    names = [f"n{number}" for number in range(300)]
    for number, name in enumerate(names):
        totals.put_node(NodeName(name), NodeCapacity(number, number + 1, 10))
        totals.put_pod(PodUID(name), NodeName(name), PodDemand(number, 0))
    found = totals.of(names)
    assert found.shape == (300, WIDTH)
    assert found[:, 0].tolist() == list(range(300))
    assert found[:, 1].tolist() == list(range(1, 301))
    assert found[:, 3].tolist() == list(range(300))
    assert not totals.of([None]).any()


def test_pods_count_until_they_are_gone(totals: NodeTotals) -> None:
    totals.put_pod(P, A, PART)
    totals.put_pod(Q, B, PART)
    assert len(totals) == 2
    totals.drop_pod(P)
    totals.drop_pod(PodUID("never seen"))
    assert len(totals) == 1
