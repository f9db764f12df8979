"""What a pod needs of cards, and which nodes meet it: now, and if they were empty."""

import numpy as np
import pytest
from msgspec import structs

from fractile.ledger import scan
from fractile.ledger.layers import KeptLayer
from fractile.ledger.ledger import Ledger
from fractile.ledger.scan import Cards, Need
from fractile.model.card import DeviceKind
from fractile.model.request import ANY, ContainerRequest, Role, Selector
from fractile.model.units import NodeName, Percent, PodUID
from fractile.wire.fractile.placement import MAX_SLICES
from tests.builders import (
    by_card,
    by_memory,
    by_share,
    by_slots,
    card,
    card_uuid,
    cluster,
    device,
    given,
    only,
    piece,
    placement,
    request,
)

INIT = Role.INIT
SIZE = 1000
T4 = Selector(models=("T4",))
A10 = Selector(models=("A10",))


def need(*containers: ContainerRequest) -> Need:
    return scan.need_of(request(*containers))


def cores_only(cores: int, name: str = "main") -> ContainerRequest:
    return by_share(0, cores, name)


# ── what is needed ───────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("containers", "wanted"),
    [
        pytest.param([by_share(8, 30)], Cards(memory=8, cores=30), id="memory and cores"),
        pytest.param([cores_only(30)], Cards(cores=30), id="cores"),
        pytest.param([by_slots(2, 8, 30)], Cards(count=2, memory=8, cores=30, slots=1), id="several cards"),
        pytest.param([by_slots(1, 8)], Cards(memory=8, coreless=True, slots=1), id="a slot"),
        pytest.param(
            [by_slots(2, 0, percent=50)], Cards(count=2, percent=50, coreless=True, slots=1), id="a percentage"
        ),
        pytest.param([only(T4, by_memory(8))], Cards(memory=8, coreless=True, selector=T4), id="memory of a model"),
        pytest.param([only(T4, by_card(2))], Cards(count=2, whole=True, selector=T4), id="whole cards of a model"),
    ],
)
def test_what_a_digest_cannot_judge_is_looked_for_on_every_card(
    containers: list[ContainerRequest], wanted: Cards
) -> None:
    found = need(*containers)
    assert found.cards == (wanted,)
    assert found.exact


@pytest.mark.parametrize(
    "containers",
    [
        pytest.param([by_memory(8)], id="memory"),
        pytest.param([by_memory(8, "a"), by_memory(7, "b")], id="memory for two"),
        pytest.param([by_card(2)], id="whole cards"),
        pytest.param([by_card(1, "a"), by_memory(7, "b")], id="both"),
        pytest.param([], id="nothing"),
    ],
)
def test_what_a_digest_can_judge_needs_no_look_at_cards(containers: list[ContainerRequest]) -> None:
    found = scan.need_of(structs.replace(request(), containers=tuple(containers)))
    assert found.cards == ()


@pytest.mark.parametrize(
    ("containers", "one_card", "total", "whole", "percent"),
    [
        pytest.param([by_slots(3, 8)], 8, 24, 0, 0, id="of three cards"),
        pytest.param([by_slots(2, 0, percent=40), by_memory(8, "b")], 8, 8, 0, 80, id="percent of two cards"),
        pytest.param([by_memory(8, "a"), by_memory(5, "b"), by_memory(2, "c")], 8, 15, 0, 0, id="three containers"),
        pytest.param(
            [by_memory(9, "a", role=INIT), by_memory(5, "b"), by_memory(3, "c")], 9, 9, 0, 0, id="a long init"
        ),
        pytest.param(
            [by_memory(1, "a", role=INIT), by_memory(5, "b"), by_memory(3, "c")], 5, 8, 0, 0, id="a short init"
        ),
        pytest.param([by_memory(5, "a", role=Role.SIDECAR), by_memory(9, "b", role=INIT)], 9, 14, 0, 0, id="a sidecar"),
        pytest.param([by_card(1, "a"), by_card(2, "b")], 0, 0, 3, 0, id="whole cards for two"),
        pytest.param([by_card(2, "a", role=INIT), by_card(1, "b")], 0, 0, 2, 0, id="whole cards one after the other"),
        pytest.param([by_card(2, "a"), by_memory(8, "b")], 8, 8, 2, 0, id="both"),
        pytest.param(
            [by_slots(1, 0, percent=70, name="a", role=INIT), by_slots(1, 0, percent=30, name="b")],
            0,
            0,
            0,
            70,
            id="percent one after the other",
        ),
    ],
)
def test_what_is_needed_of_one_card_and_of_all(
    containers: list[ContainerRequest], one_card: int, total: int, whole: int, percent: int
) -> None:
    found = need(*containers)
    assert (found.one_card, found.total, found.whole, found.percent) == (one_card, total, whole, percent)


@pytest.mark.parametrize(
    ("containers", "exact"),
    [
        pytest.param([by_memory(8)], True, id="one container"),
        pytest.param([by_slots(2, 8, 30)], True, id="one container on several cards"),
        pytest.param([by_slots(1, 0, percent=30)], True, id="a percentage"),
        pytest.param([by_card(1, "a"), by_card(2, "b")], True, id="whole cards for two"),
        pytest.param([only(T4, by_card(1, "a")), only(T4, by_card(2, "b"))], True, id="of one model"),
        pytest.param([only(T4, by_card(1, "a")), by_card(2, "b")], False, id="of different models"),
        pytest.param([by_card(1, "a"), by_memory(2, "b")], False, id="whole cards and parts"),
        pytest.param([by_memory(9, "a", role=INIT), by_memory(5, "b")], True, id="one after the other"),
        pytest.param([by_memory(5, "a"), by_memory(9, "b")], False, id="parts that may be apart"),
        pytest.param(
            [by_slots(1, 0, percent=9, name="a", role=INIT), by_slots(1, 0, percent=5, name="b")],
            False,
            id="percent of one card one after the other",
        ),
    ],
)
def test_a_need_is_exact_when_cards_can_be_judged_one_by_one(containers: list[ContainerRequest], exact: bool) -> None:
    assert need(*containers).exact is exact


def test_whole_cards_of_each_model_are_counted_together() -> None:
    found = need(only(T4, by_card(1, "a")), only(A10, by_card(1, "b")), only(T4, by_card(2, "c")))
    assert set(found.cards) == {
        Cards(count=3, whole=True, selector=T4),
        Cards(count=1, whole=True, selector=A10),
    }
    assert found.whole == 4


def test_parts_and_whole_cards_are_looked_for_apart_and_each_part_once() -> None:
    found = need(by_share(8, 30, "a"), by_share(8, 30, "b"), by_card(1, "c"))
    assert found.cards == (Cards(memory=8, cores=30), Cards(count=1, whole=True))


def test_containers_that_share_a_card_need_their_peak_of_it() -> None:
    init = by_share(5, 80, "a", role=INIT)
    main = structs.replace(by_share(7, 20, "b"), amount=80)
    assert need(init, main).cards == (Cards(memory=7, cores=80),)
    half = structs.replace(init, request=structs.replace(init.request, memory_percent=Percent(50)))
    assert need(half, main).cards == (Cards(memory=0, percent=50, cores=80),)


def test_more_cards_than_a_pod_can_hold_are_on_no_node() -> None:
    assert need(by_card(MAX_SLICES)).whole == MAX_SLICES
    found = need(by_memory(1, "a"), by_card(MAX_SLICES + 1, "b"))
    assert found == Need(0, 0, 2**13, exact=True)


def test_hostile_amounts_are_cut() -> None:
    huge = need(
        structs.replace(by_share(2**80, 2**80), request=structs.replace(by_share(2**80, 2**80).request, slots=2**80))
    )
    assert (huge.one_card, huge.total) == (2**41, 2**41)
    assert huge.cards == (Cards(memory=2**41, cores=2**41, slots=2**41),)


# ── which nodes meet it ──────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def ledger() -> Ledger:
    """Three nodes of a T4 and an A10 of 1000 MiB with two slots each: ``a`` is unused, ``b`` in use, ``c`` full. And
    ``d``, which has an unused T4 alone."""
    found = Ledger(lambda: 0.0, slots=2)
    for node in "abc":
        for index, model in enumerate(("T4", "A10")):
            found.put_card(NodeName(node), card(node, index, memory=SIZE, model=model))
    found.put_card(NodeName("d"), card("d", 0, memory=SIZE, model="T4"))
    hold(found, "b", 0, memory=400, cores=50, slots=1)
    hold(found, "b", 1, memory=700, cores=20)
    hold(found, "c", 0, memory=10, cores=100)
    hold(found, "c", 1, memory=1000, cores=10, slots=2)
    return found


def hold(ledger: Ledger, node: str, index: int, *, memory: int, cores: int = 0, slots: int = 0) -> None:
    placed = placement(given("main", piece(card_uuid(node, index), memory, cores, slots)), node=node)
    assert ledger.observe(PodUID(f"{node}{index}{memory}"), placed) is None


def now(ledger: Ledger, *containers: ContainerRequest) -> str:
    return _names(ledger, scan.now(ledger.arrays, need(*containers)))


def ever(ledger: Ledger, *containers: ContainerRequest) -> str:
    return _names(ledger, scan.ever(ledger.arrays, need(*containers)))


def _names(ledger: Ledger, meets: object) -> str:
    found = np.asarray(meets)
    assert (found.shape, found.dtype) == ((64,), np.bool_)
    return "".join(ledger.arrays.names[column] or "" for column in found.nonzero()[0].tolist())


@pytest.mark.parametrize(
    ("containers", "nodes"),
    [
        pytest.param([by_memory(600)], "abd", id="as much as is free"),
        pytest.param([by_memory(601)], "ad", id="more than is free"),
        pytest.param([by_memory(600, "a"), by_memory(300, "b")], "abd", id="as much as is free in all"),
        pytest.param([by_memory(600, "a"), by_memory(301, "b")], "ad", id="more than is free in all"),
        pytest.param([by_memory(601, "a"), by_memory(299, "b")], "ad", id="enough in all and not on one card"),
        pytest.param([by_memory(1001, "a"), by_card(1, "b")], "", id="an unused card and too much memory"),
        pytest.param([by_slots(1, 0)], "abd", id="a slot without memory"),
        pytest.param([by_card(1)], "ad", id="an unused card"),
        pytest.param([by_card(2)], "a", id="two unused cards"),
        pytest.param([by_share(600, 50)], "abd", id="as many cores as are free"),
        pytest.param([by_share(600, 51)], "ad", id="more cores than are free"),
        pytest.param([by_share(300, 80)], "abd", id="of the other card"),
        pytest.param([by_share(300, 81)], "ad", id="more cores than are free on the other card"),
        pytest.param([cores_only(80)], "abcd", id="cores without memory"),
        pytest.param([cores_only(90)], "acd", id="of a card without memory left"),
        pytest.param([cores_only(91)], "ad", id="more than that card has"),
        pytest.param([by_slots(1, 600)], "abd", id="a slot"),
        pytest.param([by_slots(2, 300)], "ab", id="a slot of two cards"),
        pytest.param([by_slots(2, 301)], "a", id="more of two cards"),
        pytest.param([by_slots(1, 0, percent=60)], "abd", id="a percentage"),
        pytest.param([by_slots(1, 0, percent=61)], "ad", id="a larger percentage"),
        pytest.param([by_slots(2, 0, percent=30)], "ab", id="a percentage of two cards"),
        pytest.param([only(T4, by_memory(600))], "abd", id="memory of a T4"),
        pytest.param([only(A10, by_memory(300))], "ab", id="memory of an A10"),
        pytest.param([only(A10, by_memory(301))], "a", id="more memory of an A10"),
        pytest.param([only(T4, by_card(1))], "ad", id="an unused T4"),
        pytest.param([only(A10, by_card(1))], "a", id="an unused A10"),
        pytest.param([only(T4, by_card(2))], "", id="two T4"),
        pytest.param([only(T4, by_card(1, "a")), only(A10, by_card(1, "b"))], "a", id="one of each"),
        pytest.param([only(T4, by_card(1, "a")), only(A10, by_memory(8, "b"))], "a", id="one, and a part of the other"),
    ],
)
def test_nodes_that_meet_a_need_now(ledger: Ledger, containers: list[ContainerRequest], nodes: str) -> None:
    assert now(ledger, *containers) == nodes


@pytest.mark.parametrize(
    ("containers", "nodes"),
    [
        pytest.param([by_memory(1000)], "abcd", id="a whole card's memory"),
        pytest.param([by_memory(1001)], "", id="more than any card has"),
        pytest.param([by_memory(1000, "a"), by_memory(1000, "b")], "abc", id="all memory of two cards"),
        pytest.param([by_memory(1000, "a"), by_memory(1000, "b"), by_memory(1, "c")], "", id="more than any node has"),
        pytest.param([by_share(900, 10, name) for name in "xyz"], "", id="parts of more cards than there are"),
        pytest.param([by_card(2)], "abc", id="two cards"),
        pytest.param([by_card(3)], "", id="three cards"),
        pytest.param([by_share(1000, 100)], "abcd", id="all cores"),
        pytest.param([by_share(1, 101)], "", id="more than all cores"),
        pytest.param([cores_only(100)], "abcd", id="all cores without memory"),
        pytest.param([by_slots(2, 1000)], "abc", id="two slots"),
        pytest.param([by_slots(2, 1001)], "", id="too much of each"),
        pytest.param([by_slots(2, 0, percent=100)], "abc", id="all of two cards"),
        pytest.param([by_slots(2, 0, percent=101)], "", id="more than all of them"),
        pytest.param([only(A10, by_memory(1000))], "abc", id="an A10"),
        pytest.param([only(A10, by_card(1))], "abc", id="a whole A10"),
        pytest.param([only(A10, by_card(2))], "", id="two A10"),
    ],
)
def test_nodes_that_would_meet_a_need_if_they_were_empty(
    ledger: Ledger, containers: list[ContainerRequest], nodes: str
) -> None:
    assert ever(ledger, *containers) == nodes


def test_a_card_of_one_mib_is_a_card() -> None:
    ledger = cluster({"n1": [card("n1", 0, memory=1)]})
    half = Need(0, 0, 0, exact=True, cards=(Cards(percent=50, cores=1),))
    assert _names(ledger, scan.ever(ledger.arrays, half)) == "n1"


def test_beside_a_container_without_cores_one_percent_stays_free(ledger: Ledger) -> None:
    hold(ledger, "d", 0, memory=1)
    assert now(ledger, by_share(1, 99)) == "ad"
    assert now(ledger, by_share(1, 100)) == "a"
    mixed = (
        by_share(1, 80, "a", role=INIT),
        structs.replace(by_slots(1, 1, 0, "b"), resource="tencent.com/vcuda-core"),
    )
    assert need(*mixed).cards[0].coreless is False, "the container without cores comes after the other has ended"
    full = Cards(cores=100, coreless=True)
    assert _names(ledger, scan.ever(ledger.arrays, Need(0, 0, 0, exact=True, cards=(full,)))) == ""
    assert (
        _names(ledger, scan.ever(ledger.arrays, Need(0, 0, 0, exact=True, cards=(Cards(cores=99, coreless=True),))))
        == "abcd"
    )
    assert (
        _names(ledger, scan.now(ledger.arrays, Need(0, 0, 0, exact=True, cards=(Cards(cores=79, coreless=True),))))
        == "abcd"
    )
    assert (
        _names(ledger, scan.now(ledger.arrays, Need(0, 0, 0, exact=True, cards=(Cards(cores=90, coreless=True),))))
        == "ad"
    )


def test_a_card_without_cores_left_has_no_room_for_memory(ledger: Ledger) -> None:
    assert now(ledger, by_slots(1, 1)) == "abd"
    assert now(ledger, only(T4, by_memory(1))) == "abd"


def test_slots_that_are_in_use_are_missing(ledger: Ledger) -> None:
    hold(ledger, "d", 0, memory=1, cores=1, slots=1)
    assert now(ledger, by_slots(1, 1)) == "abd"
    hold(ledger, "d", 0, memory=2, cores=1, slots=1)
    assert now(ledger, by_slots(1, 1)) == "ab"
    assert now(ledger, by_memory(1)) == "abd"


# ── selectors ────────────────────────────────────────────────────────────────────────────────────────────────────────

A0, B1, D0 = card_uuid("a", 0), card_uuid("b", 1), card_uuid("d", 0)


@pytest.mark.parametrize(
    ("selector", "nodes"),
    [
        pytest.param(ANY, "abcd", id="any"),
        pytest.param(T4, "abcd", id="a model"),
        pytest.param(Selector(not_models=("T4",)), "abc", id="not a model"),
        pytest.param(Selector(cards=(A0, D0)), "ad", id="some cards"),
        pytest.param(Selector(cards=(A0, card_uuid("z", 0))), "a", id="some cards, one of which is not there"),
        pytest.param(Selector(cards=(card_uuid("z", 0),)), "", id="a card that is not there"),
        pytest.param(Selector(not_cards=(D0, card_uuid("z", 0))), "abc", id="not some cards"),
        pytest.param(Selector(cards=(A0, D0), not_cards=(D0,)), "a", id="some cards but one"),
        pytest.param(Selector(models=("A10",), cards=(A0, B1)), "b", id="a model and some cards"),
        pytest.param(Selector(members=frozenset({A0, B1})), "ab", id="members"),
        pytest.param(Selector(models=("T4",), members=frozenset({A0, B1})), "a", id="a model and members"),
        pytest.param(Selector(members=frozenset({A0, B1}), not_cards=(A0,)), "b", id="members but one"),
    ],
)
def test_cards_are_those_that_the_selector_admits(ledger: Ledger, selector: Selector, nodes: str) -> None:
    assert ever(ledger, only(selector, by_memory(1))) == nodes
    assert ever(ledger, only(selector, by_share(1, 1))) == nodes


def test_a_class_is_judged_by_its_digest(ledger: Ledger) -> None:
    kept = KeptLayer(ledger.arrays)
    for uuid in (A0, B1, D0):
        kept.mark(uuid)
    for extra in (Selector(), Selector(not_cards=(D0,))):
        selector = kept.selector if extra == ANY else structs.replace(kept.selector, not_cards=extra.not_cards)
        d = "d" if extra == ANY else ""
        assert now(ledger, only(selector, by_memory(300))) == "ab" + d
        assert now(ledger, only(selector, by_memory(301))) == "a" + d
        assert now(ledger, only(selector, by_card(1))) == "a" + d
        assert now(ledger, only(selector, by_card(2))) == ""
        assert now(ledger, only(selector, by_share(300, 80))) == "ab" + d
        assert now(ledger, only(selector, by_share(300, 81))) == "a" + d
        assert now(ledger, only(selector, cores_only(80))) == "ab" + d
        assert now(ledger, only(selector, by_slots(1, 300))) == "ab" + d
        assert now(ledger, only(selector, by_slots(2, 300))) == ""
        assert now(ledger, only(selector, by_slots(1, 0, percent=31))) == "a" + d
        assert now(ledger, only(selector, by_card(1, "x")), by_memory(300, "y")) == "a" + d
        assert now(ledger, only(selector, by_memory(300, "x")), only(A10, by_card(1, "y"))) == "a"
        assert now(ledger, only(selector, by_memory(300, "x")), by_card(2, "y")) == "a"
        assert now(ledger, only(selector, by_memory(1, "x")), by_memory(901, "y")) == "a" + d
        assert ever(ledger, only(selector, by_memory(1000))) == "ab" + d


def test_several_cards_of_a_class_are_not_judged_by_its_largest(ledger: Ledger) -> None:
    kept = KeptLayer(ledger.arrays)
    for uuid in (A0, card_uuid("a", 1), B1, D0):
        kept.mark(uuid)
    two = by_memory(300)
    two = structs.replace(two, request=structs.replace(two.request, count=2))
    assert now(ledger, only(kept.selector, two)) == "a"
    assert now(ledger, only(structs.replace(kept.selector, models=("A10",)), by_memory(1))) == "ab"


def test_an_unused_card_of_another_model_does_not_count(ledger: Ledger) -> None:
    for index, model in enumerate(("T4", "A10")):
        ledger.put_card(NodeName("e"), card("e", index, memory=SIZE, model=model))
    hold(ledger, "e", 1, memory=1, cores=1)
    assert now(ledger, only(A10, by_card(1))) == "a"
    assert now(ledger, only(T4, by_card(1))) == "ade"


def test_a_percentage_of_a_card_is_rounded_down() -> None:
    ledger = cluster({"a": [card("a", 0, memory=999)]})
    hold(ledger, "a", 0, memory=500, cores=1)
    half = by_slots(1, 0, percent=50)
    assert now(ledger, half) == "a"
    assert now(ledger, by_slots(1, 0, percent=51)) == ""


def test_cards_that_one_container_hands_to_the_next_are_looked_for_one_by_one() -> None:
    found = need(by_slots(2, 5, 0, "a", role=INIT), by_slots(2, 7, 0, "b"))
    assert found.cards == (Cards(memory=7, coreless=True, slots=1),)
    assert not found.exact


def test_two_parts_of_a_class_need_the_memory_of_both(ledger: Ledger) -> None:
    kept = KeptLayer(ledger.arrays)
    for uuid in (A0, B1, D0):
        kept.mark(uuid)
    two = (only(kept.selector, by_memory(600, "x")), only(kept.selector, by_memory(600, "y")))
    assert now(ledger, *two) == "a", "the second may be on another card of the node"


def test_nodes_of_one_kind_of_arrays_are_found_in_the_other() -> None:
    ledger = cluster({"a": [card("a"), device("a")], "x": [device("x")], "b": [card("b")]})
    meets = np.zeros(64, np.bool_)
    for name in ("a", "b"):
        meets[ledger.arrays.find(name)] = True
    meets[9] = True
    found = scan.carried(meets, ledger.arrays, ledger.arrays_of(DeviceKind.OTHER))
    assert (found.shape, found.dtype) == ((64,), np.bool_)
    assert found.nonzero()[0].tolist() == [ledger.arrays_of(DeviceKind.OTHER).find("a")]


def test_needs_of_requests_without_a_class_are_remembered() -> None:
    asked = request(by_share(8, 30))
    assert scan.need_of(asked) is scan.need_of(request(by_share(8, 30)))
    members = KeptLayer(cluster({"a": [card("a")]}).arrays)
    of_class = request(only(members.selector, by_memory(8)))
    assert scan.need_of(of_class) == scan.need_of(of_class)
    assert scan.need_of(of_class) is not scan.need_of(of_class), "nothing keeps a class alive"


# ── the first of many ────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_largest_come_first_and_then_by_column() -> None:
    value = np.array([3, 9, 5, 9, 5, 7])
    columns = np.array([0, 1, 2, 3, 4])
    assert scan.largest_first(value, columns, 9).tolist() == [1, 3, 2, 4, 0]
    assert scan.largest_first(value, columns, 5).tolist() == [1, 3, 2, 4, 0]
    assert scan.largest_first(value, columns, 3).tolist() == [1, 3, 2]
    assert scan.largest_first(value, columns, 1).tolist() == [1]
    assert scan.largest_first(value, np.array([5, 0]), 1).tolist() == [5]


def test_only_the_head_of_an_order_is_read_when_it_has_enough() -> None:
    order, wanted = np.arange(100)[::-1], np.zeros(100, np.bool_)
    wanted[[99, 97, 3]] = True
    assert scan.first_in_order(order, wanted, 2).tolist() == [99, 97]
    assert scan.first_in_order(order, wanted, 1).tolist() == [99]
    assert scan.first_in_order(order, wanted, 3).tolist() == [99, 97, 3]
    assert scan.first_in_order(order, wanted, 9).tolist() == [99, 97, 3]
    assert scan.first_in_order(order[:4], wanted, 1).tolist() == [99]


@pytest.mark.parametrize("most", [1, 2, 3, 4, 5])
def test_nodes_are_ordered_by_how_full_they_are(most: int) -> None:
    ledger = cluster({f"n{i}": [card(f"n{i}", 0, memory=SIZE)] for i in range(5)})
    for i, used in enumerate((0, 500, 1000, 500, 1)):
        if used:
            hold(ledger, f"n{i}", 0, memory=used, cores=1)
    columns = np.arange(5)
    assert scan.best_first(ledger.arrays, columns, most).tolist() == [2, 1, 3, 4, 0][:most]
    assert scan.best_first(ledger.arrays, columns, most, emptiest=True).tolist() == [0, 4, 1, 3, 2][:most]
    assert scan.best_first(ledger.arrays, np.array([4, 2]), most).tolist() == [2, 4][:most]
