"""What rules about cuts of cards mean for what is free, and for placements that are still to be made."""

from fractions import Fraction

import pytest
from msgspec import structs

from fractile.ledger.ledger import Ledger
from fractile.model.placement import Charge, Placement, Slice, charges
from fractile.model.refusal import Code, Refusal
from fractile.model.sharing import FREE, SharingRule
from fractile.model.units import NodeName, PodUID
from tests.builders import (
    by_card,
    by_memory,
    card,
    card_uuid,
    cluster,
    device,
    given,
    on_card,
    piece,
    placement,
    request,
)

A, B, C = PodUID("a"), PodUID("b"), PodUID("c")
N1, N2 = NodeName("n1"), NodeName("n2")
SIZE = 16_000
TWO = SharingRule(max_slices=2)
HALVES = SharingRule(fractions=(Fraction(1, 2),))


def by_model(node: NodeName, model: str) -> SharingRule:
    """On n1 two slices of a T4 and halves of an A10; everything elsewhere."""
    return {"T4": TWO, "A10": HALVES}.get(model, FREE) if node == N1 else FREE


@pytest.fixture
def ledger() -> Ledger:
    """Node n1 with a T4 (0), an A10 (1) and a non-GPU device; node n2 with a T4."""
    found = cluster(
        {
            "n1": [card("n1", 0, memory=SIZE, model="T4"), card("n1", 1, memory=SIZE, model="A10"), device("n1")],
            "n2": [card("n2", 0, memory=SIZE, model="T4")],
        }
    )
    found.share_by(by_model)
    return found


def spare(ledger: Ledger, index: int = 0, node: str = "n1") -> int:
    """Percent of the card's cores that scans see."""
    arrays = ledger.arrays
    return int(arrays.free_cores[arrays.cells[card_uuid(node, index)]])


def of_n1(*slices: Slice) -> Placement:
    return placement(given("main", *slices))


def test_without_rules_cards_may_be_cut_in_any_way() -> None:
    ledger = cluster({"n1": [card("n1", 0, model="T4")]})
    assert not ledger.ruled
    assert ledger.rule_on(N1, "T4") == FREE
    for uid in (A, B, C):
        assert ledger.assume(uid, on_card(0, 10)) is None


def test_a_card_shows_the_rule_of_its_node_and_model(ledger: Ledger) -> None:
    assert ledger.ruled
    assert (ledger.rule_on(N1, "T4"), ledger.rule_on(N2, "T4"), ledger.rule_on(N1, "A10")) == (TWO, FREE, HALVES)
    state = ledger.node("n1")
    assert state is not None
    assert [(c.rule, c.slices) for c in (*state.cards, *state.others)] == [(TWO, 0), (HALVES, 0), (FREE, 0)]


def test_rules_are_about_gpus_only(ledger: Ledger) -> None:
    ledger.share_by(lambda node, model: TWO)
    state = ledger.node("n1")
    assert state is not None
    assert [c.rule for c in (*state.cards, *state.others)] == [TWO, TWO, FREE]


def test_a_card_that_takes_no_more_slices_has_no_cores_left_for_scans(ledger: Ledger) -> None:
    assert ledger.assume(A, on_card(0, 10)) is None
    assert spare(ledger) == 100
    assert ledger.assume(B, on_card(0, 10)) is None
    assert spare(ledger) == 0
    state = ledger.node("n1")
    assert state is not None
    assert (state.cards[0].free_cores, state.cards[0].slices) == (100, 2), "how many are promised is another matter"
    assert ledger.audit() == []
    ledger.release(A)
    assert spare(ledger) == 100


def test_a_card_that_takes_more_slices_has_the_cores_that_are_not_promised(ledger: Ledger) -> None:
    assert ledger.assume(A, of_n1(piece(card_uuid("n1", 0), 10, 30))) is None
    assert spare(ledger) == 70


def test_a_card_that_takes_no_more_slices_keeps_its_debt(ledger: Ledger) -> None:
    for uid in (A, B):
        assert ledger.observe(uid, of_n1(piece(card_uuid("n1", 0), 10, 30))) is None
    assert spare(ledger) == 0
    ledger.withhold(card_uuid("n1", 0), _charge_of_cores(70))
    assert spare(ledger) == -30


def _charge_of_cores(cores: int) -> Charge:
    (charge,) = charges(of_n1(piece(card_uuid("n1", 0), 1, cores)))
    return charge


def test_more_slices_than_the_rule_allows_are_refused(ledger: Ledger) -> None:
    for uid in (A, B):
        assert ledger.assume(uid, on_card(0, 10)) is None
    assert ledger.assume(C, on_card(0, 10)) == Refusal(Code.NO_ROOM, "card 0 is already cut into 2")
    assert ledger.assume(C, on_card(0, 10, node="n2")) is None


def test_several_slices_of_one_pod_count_each(ledger: Ledger) -> None:
    two = placement(given("one", piece(card_uuid("n1", 0), 10)), given("two", piece(card_uuid("n1", 0), 10)))
    assert ledger.assume(A, two) is None
    ledger.release(A)
    assert ledger.assume(B, on_card(0, 10)) is None
    assert ledger.assume(A, two) == Refusal(Code.NO_ROOM, "card 0 is already cut into 2")


def test_a_slice_of_another_size_than_the_rule_allows_is_refused(ledger: Ledger) -> None:
    assert ledger.assume(A, on_card(1, SIZE // 2)) is None
    assert ledger.assume(B, on_card(1, 1000)) == Refusal(Code.TOO_LARGE, "card 1 may not be cut into 1000 MiB")
    half = of_n1(piece(card_uuid("n1", 1), SIZE // 2, 51))
    assert ledger.assume(B, half) == Refusal(Code.TOO_LARGE, f"card 1 may not be cut into {SIZE // 2} MiB")


def test_every_card_of_a_placement_is_held_against_its_rule(ledger: Ledger) -> None:
    free_one, unknown = piece(card_uuid("n1", 0), 10), piece(card_uuid("n9", 0), 10)
    share = structs.replace(piece(device("n1").uuid, 0), shares=1)
    assert ledger.assume(A, of_n1(free_one, unknown, share, piece(card_uuid("n1", 1), 10))) == Refusal(
        Code.TOO_LARGE, "card 1 may not be cut into 10 MiB"
    )
    assert ledger.assume(A, of_n1(unknown, share, free_one, piece(card_uuid("n1", 1), SIZE // 2))) is None


def test_what_is_bound_is_held_whatever_the_rules_say(ledger: Ledger) -> None:
    for uid in (A, B, C):
        assert ledger.observe(uid, on_card(0, 10)) is None
    assert ledger.observe(PodUID("d"), on_card(1, 1000)) is None
    assert ledger.audit() == []


def test_a_pod_moves_only_where_the_rules_allow_it(ledger: Ledger) -> None:
    assert ledger.observe(A, on_card(0, 10)) is None
    assert ledger.move(A, on_card(1, 10)) == Refusal(Code.TOO_LARGE, "card 1 may not be cut into 10 MiB")
    assert ledger.observe(B, on_card(0, 10)) is None
    assert ledger.move(A, on_card(0, 20)) is None, "its own slice counts no more"


def test_new_rules_are_told_to_all_nodes_that_have_cards(ledger: Ledger) -> None:
    assert ledger.assume(A, on_card(0, 10, node="n2")) is None
    assert spare(ledger, node="n2") == 100
    before = ledger.reshared
    assert ledger.share_by(lambda node, model: SharingRule(max_slices=1)) == ["n1", "n2"]
    assert ledger.reshared == before + 2
    assert (spare(ledger, node="n2"), spare(ledger)) == (0, 100)
    assert ledger.audit() == []


def test_rules_that_say_something_else_of_one_node_are_read_again_for_it() -> None:
    ledger = cluster({n: [card(n, 0)] for n in ("n1", "n2")})
    most = {N1: 0, N2: 0}
    ledger.share_by(lambda node, model: SharingRule(max_slices=most[node]))
    for uid, node in ((A, "n1"), (B, "n2")):
        assert ledger.assume(uid, on_card(0, 10, node=node)) is None
    most[N1] = most[N2] = 1
    before = ledger.reshared
    ledger.reshare(N1)
    assert ledger.reshared == before + 1
    assert (spare(ledger, node="n1"), spare(ledger, node="n2")) == (0, 100)


@pytest.mark.parametrize(("sized", "of_one"), [(False, True), (True, False)])
def test_sums_decide_unless_rules_are_about_sizes_or_several_containers_ask(sized: bool, of_one: bool) -> None:
    ledger = cluster({"n1": [card()]})
    one, two = request(by_memory()), request(by_memory(1, "a"), by_card(1, "b"))
    assert ledger.judged_by_sums(one)
    assert ledger.judged_by_sums(two)
    ledger.share_by(by_model, sized=sized)
    assert ledger.judged_by_sums(one) is of_one
    assert not ledger.judged_by_sums(two)


def test_rules_are_about_sizes_unless_it_is_said_otherwise(ledger: Ledger) -> None:
    assert not ledger.judged_by_sums(request(by_memory()))


def test_a_card_that_comes_later_is_under_the_rules_too(ledger: Ledger) -> None:
    for uid in (A, B):
        assert ledger.observe(uid, on_card(5, 10)) is None
    ledger.put_card(N1, card("n1", 5, model="T4"))
    assert spare(ledger, 5) == 0
    assert ledger.audit() == []
