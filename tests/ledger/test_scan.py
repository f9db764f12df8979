"""Which of many nodes can serve a pod, in one pass over the arrays."""

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fractile.ledger import scan
from fractile.ledger.ledger import Ledger
from fractile.ledger.scan import Need
from fractile.model.request import ContainerRequest, Role
from tests.builders import CARD_MEMORY, by_card, by_memory, card, cards, cluster, in_use, request

FULL = CARD_MEMORY
INIT = Role.INIT


def names(ledger: Ledger, found: object) -> list[str | None]:
    return [ledger.arrays.names[c] for c in np.asarray(found).tolist()]


def now(ledger: Ledger, need: Need) -> set[str | None]:
    return set(names(ledger, scan.now(ledger.arrays, need).nonzero()[0]))


@pytest.mark.parametrize(
    ("containers", "need"),
    [
        pytest.param([by_memory(8)], Need(one_card=8, total=8, whole=0, exact=True), id="memory"),
        pytest.param([by_card(2)], Need(one_card=0, total=0, whole=2, exact=True), id="whole cards"),
        pytest.param(
            [by_memory(8, "a"), by_memory(5, "b")],
            Need(one_card=8, total=13, whole=0, exact=False),
            id="two containers",
        ),
        pytest.param(
            [by_memory(9, "a", role=INIT), by_memory(5, "b")],
            Need(one_card=9, total=9, whole=0, exact=True),
            id="an init container",
        ),
        pytest.param(
            [by_memory(8, "a"), by_card(1, "b")],
            Need(one_card=8, total=8, whole=1, exact=False),
            id="memory and a card",
        ),
    ],
)
def test_what_a_pod_needs_of_a_node(containers: list[ContainerRequest], need: Need) -> None:
    assert scan.need_of(request(*containers)) == need


def test_the_worked_example_is_decided_by_the_scan_alone() -> None:
    ledger = cluster({n: cards(n) for n in ("n1", "n2", "n3")})
    in_use(ledger, "n1", 16276, 12207)
    in_use(ledger, "n2", 12207, 12207)
    in_use(ledger, "n3", 8138, 16276)
    assert now(ledger, scan.need_of(request(by_memory(8138)))) == {"n3"}
    assert set(names(ledger, scan.ever(ledger.arrays, scan.need_of(request())).nonzero()[0])) == {"n1", "n2", "n3"}


def test_amounts_beyond_64_bits_fit_nowhere_and_break_nothing() -> None:
    ledger = cluster({"n1": cards("n1")})
    for containers in ([by_memory(2**80)], [by_card(2**80)], [by_memory(2**80, "a"), by_memory(2**80, "b")]):
        need = scan.need_of(request(*containers))
        assert now(ledger, need) == set()
        assert not scan.ever(ledger.arrays, need).any()


def test_columns_without_a_node_are_never_found() -> None:
    ledger = cluster({"n1": cards("n1")})
    need = Need(one_card=1, total=1, whole=0, exact=True)
    assert now(ledger, need) == {"n1"}
    assert now(ledger, Need(one_card=0, total=0, whole=1, exact=True)) == {"n1"}


def test_the_fullest_nodes_come_first() -> None:
    ledger = cluster({f"n{i}": [card(f"n{i}", 0)] for i in range(5)})
    for i, used in enumerate((1000, 9000, 0, 9000, 5000)):
        in_use(ledger, f"n{i}", used)
    columns = scan.now(ledger.arrays, Need(one_card=1, total=1, whole=0, exact=True)).nonzero()[0]
    assert names(ledger, scan.best_first(ledger.arrays, columns, 9)) == ["n1", "n3", "n4", "n0", "n2"]
    assert names(ledger, scan.best_first(ledger.arrays, columns, 3)) == ["n1", "n3", "n4"]
    assert names(ledger, scan.best_first(ledger.arrays, columns, 9, emptiest=True)) == ["n2", "n0", "n4", "n1", "n3"]
    assert names(ledger, scan.best_first(ledger.arrays, columns, 2, emptiest=True)) == ["n2", "n0"]


def test_of_very_many_nodes_only_the_best_are_named() -> None:
    ledger = cluster({f"n{i}": [card(f"n{i}", 0)] for i in range(500)})
    for i in range(500):
        in_use(ledger, f"n{i}", (i * 37) % 500 * 32)
    columns = scan.now(ledger.arrays, Need(one_card=1, total=1, whole=0, exact=True)).nonzero()[0]
    found = names(ledger, scan.best_first(ledger.arrays, columns, 20))
    wanted = sorted(range(500), key=lambda i: -((i * 37) % 500))[:20]
    assert found == [f"n{i}" for i in wanted]


def test_of_equally_full_nodes_the_first_columns_are_taken() -> None:
    ledger = cluster({f"n{i}": [card(f"n{i}", 0)] for i in range(50)})
    in_use(ledger, "n40", 16_000)
    columns = scan.now(ledger.arrays, Need(one_card=0, total=0, whole=0, exact=True)).nonzero()[0]
    assert names(ledger, scan.best_first(ledger.arrays, columns, 4)) == ["n40", "n0", "n1", "n2"]


@given(
    values=st.lists(st.integers(-3, 3), min_size=1, max_size=60),
    wanted=st.sets(st.integers(0, 59)),
    most=st.integers(1, 8),
)
@example(values=[0] * 40, wanted={38, 39}, most=2)  # none of them is in the head
def test_a_known_order_gives_what_sorting_gives(values: list[int], wanted: set[int], most: int) -> None:
    value = np.array(values)
    mask = np.array([column in wanted for column in range(len(values))])
    order = np.argsort(-value, kind="stable")
    known = scan.first_in_order(order, mask, most).tolist()
    assert known == sorted(mask.nonzero()[0].tolist(), key=lambda c: (-values[c], c))[:most]
    assert known == scan.largest_first(value, mask.nonzero()[0], most).tolist()
