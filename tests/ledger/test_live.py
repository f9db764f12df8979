"""What scores see of the ledger: rows that follow it, and nothing that was forgotten."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fractile.ledger.arrays import CardArrays
from fractile.ledger.ledger import Ledger
from fractile.ledger.live import Live
from fractile.ledger.node_totals import NodeTotals
from fractile.model.units import NodeName, PodUID
from fractile.model.wish import CardPart, Wish
from fractile.wire.pod_totals import Capacity
from tests.builders import card, cluster, on_card, piece, placement
from tests.builders import given as slices

SIZE = 1000
PART = Wish(500, 100, parts=(CardPart(memory=250),))


@pytest.fixture
def ledger() -> Ledger:
    return cluster({n: [card(n, i, memory=SIZE) for i in range(2)] for n in ("a", "b")})


def totals(*names: str) -> NodeTotals:
    found = NodeTotals()
    for name in names:
        found.put_node(NodeName(name), Capacity(4000, 8192, 10))
    return found


def test_a_row_shows_cards_cpu_memory_and_pods(ledger: Ledger) -> None:
    known = totals("a", "b")
    live = Live(ledger.arrays, known)
    ledger.observe(PodUID("p"), on_card(1, 250, node="a"))
    known.put_pod(PodUID("p"), NodeName("a"), PART)
    live.follow()
    a = ledger.arrays.find("a")
    assert live.view.gpu_left[a, :3].tolist() == [1000, 750, -1]
    assert (live.view.cpu_left[a], live.view.memory_left[a], live.view.slots_left[a]) == (3500, 8092, 9)
    assert (live.view.gpus[a], live.view.kinds[a, 0], live.size[a], live.sizes) == (2, 1, SIZE, (SIZE,))


def test_only_rows_that_changed_are_named(ledger: Ledger) -> None:
    known = totals("a", "b")
    live = Live(ledger.arrays, known)
    live.follow()
    again = live.follow()
    assert again is not None
    assert again.tolist() == []
    ledger.observe(PodUID("p"), on_card(0, 250, node="b"))
    found = live.follow()
    assert found is not None
    assert found.tolist() == [ledger.arrays.find("b")]
    known.put_pod(PodUID("p"), NodeName("a"), PART)
    found = live.follow()
    assert found is not None
    assert found.tolist() == [ledger.arrays.find("a")]


def test_cores_that_are_promised_leave_less_of_a_card_than_memory(ledger: Ledger) -> None:
    live = Live(ledger.arrays, totals("a"))
    part = placement(slices("main", piece(card("a", 0).uuid, 100, cores=70)), node="a")
    ledger.observe(PodUID("p"), part)
    live.follow()
    assert live.view.gpu_left[ledger.arrays.find("a"), 0] == 300


def test_a_slice_without_cores_takes_no_more_of_a_card_than_its_memory(ledger: Ledger) -> None:
    live = Live(ledger.arrays, totals("a"))
    ledger.observe(PodUID("p"), on_card(0, 3, node="a"))
    live.follow()
    assert live.view.gpu_left[ledger.arrays.find("a"), 0] == 997


def test_a_card_in_use_is_never_whole_however_little_is_used() -> None:
    ledger = cluster({"a": [card("a", 0, memory=80_000)]})
    live = Live(ledger.arrays, totals("a"))
    ledger.observe(PodUID("p"), on_card(0, 1, node="a"))
    live.follow()
    assert live.view.gpu_left[ledger.arrays.find("a"), 0] < 1000


def test_a_model_that_nobody_knew_makes_another_view(ledger: Ledger) -> None:
    live = Live(ledger.arrays, totals("a", "b", "c"))
    live.follow()
    ledger.put_card(NodeName("c"), card("c", 0, memory=SIZE, model="new"))
    assert live.follow() is None
    assert "new" in live.view.models


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 200), st.integers(0, 119), st.integers(1, 400)), max_size=200))
def test_a_view_that_followed_is_the_view_that_begins_now(steps: list[tuple[int, int, int]]) -> None:
    """Also when more changed at once than is remembered, and when the arrays have grown."""
    names = [NodeName(f"n{i}") for i in range(120)]
    ledger, known = cluster({n: [card(n, 0, memory=SIZE)] for n in names[:50]}), totals(*names[:50])
    live = Live(ledger.arrays, known)
    for number, (batch, node, memory) in enumerate(steps):
        name = names[node]
        known.put_node(name, Capacity(4000 + node, 8192, 10))
        ledger.put_card(name, card(name, 0, memory=SIZE))
        known.put_pod(PodUID(f"p{number}"), name, PART)
        ledger.observe(PodUID(f"p{number}"), on_card(0, memory, node=name))
        ledger.release(PodUID(f"p{number - 20}"))
        known.drop_pod(PodUID(f"p{number - 20}"))
        if batch % 5 == 0:
            live.follow()
    live.follow()
    assert _same(live, Live(ledger.arrays, known), ledger.arrays)


def _same(one: Live, other: Live, arrays: CardArrays) -> bool:
    other.follow()
    fields = ("cpu", "cpu_left", "memory", "memory_left", "gpus", "gpu_left", "model", "kinds", "slots_left")
    columns = [arrays.find(n) for n in arrays.names if n is not None]
    return all(np.array_equal(getattr(one.view, f)[columns], getattr(other.view, f)[columns]) for f in fields)


# ── nodes ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_node_that_is_gone_and_empty_leaves_nothing_behind() -> None:
    known = totals("a")
    known.put_pod(PodUID("p"), NodeName("a"), PART)
    known.drop_node(NodeName("a"))
    assert known.of(["a"])[0, 3:6].tolist() == [500, 100, 1]
    known.drop_pod(PodUID("p"))
    known.drop_pod(PodUID("p"))
    assert not known.of(["a"]).any()
    known.put_node(NodeName("b"), Capacity(1, 1, 1))
    assert not known.of(["a", None]).any()


def test_a_pod_counts_once_and_where_it_is() -> None:
    known = totals("a", "b")
    for _ in range(2):
        known.put_pod(PodUID("p"), NodeName("a"), PART)
    known.put_pod(PodUID("p"), NodeName("b"), PART)
    assert known.of(["a", "b"])[:, 3].tolist() == [0, 500]
    assert len(known) == 1


def test_pods_may_come_before_their_nodes_however_many() -> None:
    known = NodeTotals()
    for n in range(1000):
        known.put_pod(PodUID(f"p{n}"), NodeName(f"n{n}"), PART)
    assert known.of([f"n{n}" for n in range(1000)])[:, 3].tolist() == [500] * 1000
