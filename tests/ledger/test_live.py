"""What scores see of the ledger: rows that follow it, and nothing that was forgotten."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fractile.ledger.arrays import CardArrays
from fractile.ledger.ledger import Ledger
from fractile.ledger.live import Live
from fractile.ledger.node_totals import NodeTotals
from fractile.model.pod_demand import PartOfCard, PodDemand
from fractile.model.units import NodeName, PodUID
from fractile.wire.kubernetes.pod_totals import NodeCapacity
from tests.builders import card, cluster, on_card, piece, placement
from tests.builders import given as slices

SIZE = 1000
PART = PodDemand(500, 100, parts=(PartOfCard(memory=250),))


@pytest.fixture
def ledger() -> Ledger:
    return cluster({n: [card(n, i, memory=SIZE) for i in range(2)] for n in ("a", "b")})


def totals(*names: str) -> NodeTotals:
    found = NodeTotals()
    for name in names:
        found.put_node(NodeName(name), NodeCapacity(4000, 8192, 10))
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


def test_rows_that_were_written_and_are_as_they_were_are_not_named(ledger: Ledger) -> None:
    known = totals("a", "b")
    live = Live(ledger.arrays, known)
    live.follow()
    ledger.observe(PodUID("p"), on_card(0, 250, node="a"))
    ledger.release(PodUID("p"))
    ledger.observe(PodUID("q"), on_card(1, 250, node="b"))
    found = live.follow()
    assert found is not None
    assert (found.tolist(), found.dtype) == ([ledger.arrays.find("b")], np.int64)


def test_the_first_look_is_another_view_and_the_next_one_without_a_change_names_no_row(ledger: Ledger) -> None:
    live = Live(ledger.arrays, totals("a", "b"))
    assert live.follow() is None
    again = live.follow()
    assert again is not None
    assert (again.tolist(), again.dtype) == ([], np.int64)


def test_changes_of_nodes_without_cards_are_changes_of_no_row(ledger: Ledger) -> None:
    known = totals("a", "b")
    live = Live(ledger.arrays, known)
    live.follow()
    known.put_node(NodeName("without cards"), NodeCapacity(1, 1, 1))
    found = live.follow()
    assert found is not None
    assert found.tolist() == []


def rows(live: Live, ledger: Ledger, known: NodeTotals, *, after: tuple[int, int]) -> list[int]:
    """Those that are worked out again for what changed since so many changes of cards and nodes."""
    found = live._rows(*after)  # pyright: ignore[reportPrivateUsage]  # ``follow`` hides rows that are equal
    assert (ledger.arrays.changes, known.changes) > after
    return found.tolist()


def test_only_rows_that_may_have_changed_are_worked_out_again(ledger: Ledger) -> None:
    known = totals("a", "b")
    live = Live(ledger.arrays, known)
    before = ledger.arrays.changes, known.changes
    ledger.observe(PodUID("p"), on_card(1, 250, node="b"))
    assert rows(live, ledger, known, after=before) == [ledger.arrays.find("b")]
    known.put_pod(PodUID("p"), NodeName("a"), PART)
    assert rows(live, ledger, known, after=before) == [0, 1]


@pytest.mark.parametrize("what", ["cards", "nodes"])
def test_all_rows_are_worked_out_again_when_more_changed_than_is_remembered(ledger: Ledger, what: str) -> None:
    known = totals("a", "b")
    live = Live(ledger.arrays, known)
    live.follow()
    before = ledger.arrays.changes, known.changes
    for number in range(70):
        if what == "cards":
            ledger.observe(PodUID(f"p{number}"), on_card(1, 1, node="b"))
        else:
            known.put_pod(PodUID(f"p{number}"), NodeName("b"), PART)
    assert rows(live, ledger, known, after=before) == list(range(64))
    found = live.follow()
    assert found is not None
    assert found.tolist() == [ledger.arrays.find("b")]


def test_each_node_shows_the_model_and_the_size_of_its_largest_card() -> None:
    sizes = {"a": (1000, 3000), "b": (2000, 500), "c": (1,)}
    ledger = cluster(
        {n: [card(n, i, memory=size, model=f"of {size}") for i, size in enumerate(of)] for n, of in sizes.items()}
    )
    live = Live(ledger.arrays, totals("a", "b", "c"))
    live.follow()
    assert (live.size[:4].tolist(), live.sizes) == ([3000, 2000, 1, 0], (1, 2000, 3000))
    assert [live.view.models[number] for number in live.view.model[:3].tolist()] == ["of 3000", "of 2000", "of 1"]
    assert live.view.gpus[:4].tolist() == [2, 2, 1, 0]
    assert live.view.gpu_left[2, :2].tolist() == [1000, -1]
    ledger.put_card(NodeName("c"), card("c", 0, memory=500, model="of 500"))
    live.follow()
    assert live.sizes == (500, 2000, 3000)
    ledger.drop_card(card("a", 1).uuid)
    ledger.drop_card(card("a", 0).uuid)
    live.follow()
    assert (live.size[:4].tolist(), live.sizes) == ([0, 2000, 500, 0], (500, 2000))


def test_a_cluster_without_cards_has_no_sizes() -> None:
    live = Live(Ledger(lambda: 0.0).arrays, totals("a"))
    assert live.sizes == ()
    live.follow()
    assert live.sizes == ()
    assert not live.size.any()


def test_a_view_that_was_not_followed_yet_shows_no_cards(ledger: Ledger) -> None:
    live = Live(ledger.arrays, totals("a", "b"))
    view = live.view
    assert view.number.tolist() == list(range(64))
    assert (view.gpu_left.shape, bool((view.gpu_left == -1).all())) == ((64, 8), True)
    assert view.kinds.shape == (64, 9)
    assert view.models == ("Tesla-V100",)
    columns = (
        *(view.cpu, view.cpu_left, view.memory, view.memory_left, view.gpus, view.model, view.slots_left),
        *(live.size, view.kinds),
    )
    assert not any(column.any() for column in columns)
    assert {column.dtype for column in (*columns, view.number, view.gpu_left)} == {np.dtype(np.int64)}


@pytest.mark.parametrize(("nodes", "cards"), [(65, 1), (1, 9)], ids=["nodes", "cards of a node"])
def test_it_is_another_view_when_the_arrays_have_grown(ledger: Ledger, nodes: int, cards: int) -> None:
    known = totals("a", "b")
    live = Live(ledger.arrays, known)
    live.follow()
    before = live.view
    for n in range(nodes):
        for i in range(cards):
            ledger.put_card(NodeName(f"n{n}"), card(f"n{n}", i, memory=SIZE))
    assert live.follow() is None
    assert live.view is not before
    assert live.view.gpu_left.shape == ledger.arrays.memory.T.shape
    assert _same(live, Live(ledger.arrays, known), ledger.arrays)


@pytest.mark.parametrize(
    ("memory", "used", "cores", "left"),
    [
        pytest.param(7, 4, 0, 429, id="rounded up"),
        pytest.param(7, 7, 0, 0, id="all memory"),
        pytest.param(1000, 1, 100, 0, id="all cores"),
        pytest.param(1000, 1, 99, 10, id="one percent"),
        pytest.param(1, 1, 0, 0, id="of one MiB"),
        pytest.param(80_000, 1, 0, 999, id="nearly nothing"),
        pytest.param(1000, 500, 20, 500, id="memory is less"),
        pytest.param(1000, 200, 50, 500, id="cores are less"),
    ],
)
def test_what_is_left_of_a_card_in_thousandths(memory: int, used: int, cores: int, left: int) -> None:
    ledger = cluster({"a": [card("a", 0, memory=memory)]})
    live = Live(ledger.arrays, totals("a"))
    ledger.observe(PodUID("p"), placement(slices("main", piece(card("a", 0).uuid, used, cores)), node="a"))
    live.follow()
    assert live.view.gpu_left[0, :2].tolist() == [left, -1]


def test_a_card_in_debt_has_nothing_left(ledger: Ledger) -> None:
    live = Live(ledger.arrays, totals("a"))
    ledger.observe(PodUID("p"), on_card(0, 900, node="a"))
    ledger.put_card(NodeName("a"), card("a", 0, memory=500))
    live.follow()
    assert live.view.gpu_left[ledger.arrays.find("a"), 0] == 0


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
        known.put_node(name, NodeCapacity(4000 + node, 8192, 10))
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
    known.put_node(NodeName("b"), NodeCapacity(1, 1, 1))
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
