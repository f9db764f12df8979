"""Which pod holds what on which card, and what is left: one test per arrow of the drawing above the class."""

import pytest
from msgspec import structs

from fractile.ledger.ledger import EntryState, Ledger, Statistics
from fractile.model.card import Card
from fractile.model.interconnect import Interconnect
from fractile.model.properties import shared
from fractile.model.refusal import Code, Refusal
from fractile.model.units import NodeName, PodUID
from tests.builders import (
    CARD_MEMORY,
    Clock,
    card,
    card_uuid,
    cards,
    cluster,
    given,
    in_use,
    on_card,
    piece,
    placement,
)

FULL = CARD_MEMORY
A, B = PodUID("a"), PodUID("b")
N1 = NodeName("n1")


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def ledger(clock: Clock) -> Ledger:
    """Two nodes of two cards."""
    return cluster({n: cards(n) for n in ("n1", "n2")}, clock=clock)


def free(ledger: Ledger, node: str = "n1") -> list[int]:
    state = ledger.node(node)
    assert state is not None
    return [c.free_memory for c in state.cards]


def code_of(refusal: Refusal | None) -> Code | None:
    return None if refusal is None else refusal.code


# ── inventory ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_node_lists_its_cards_by_index_with_what_is_free() -> None:
    ledger = cluster({"n1": [card("n1", 2), card("n1", 0, memory=100), card("n1", 1)]})
    state = ledger.node("n1")
    assert state is not None
    assert [(c.index, c.memory, c.free_memory, c.free_cores, c.idle) for c in state.cards] == [
        (0, 100, 100, 100, True),
        (1, FULL, FULL, 100, True),
        (2, FULL, FULL, 100, True),
    ]
    assert [c.index for c in ledger.cards("n1")] == [0, 1, 2]


def test_a_new_ledger_knows_nothing() -> None:
    ledger = Ledger(Clock())
    assert ledger.statistics() == Statistics(nodes=0, cards=0, assumed=0, bound=0, conflicts=0, generation=0)
    assert (ledger.reshared, ledger.unsettled, ledger.audit()) == (0, False, [])
    assert len(ledger.dead_ends) == 0


def test_a_node_without_cards_is_unknown_though_every_column_is_in_use() -> None:
    ledger = cluster({f"n{i}": [card(f"n{i}", 0)] for i in range(64)})
    assert len(ledger.arrays.names) == 64
    assert ledger.node("other") is None
    assert ledger.cards("other") == ()


def test_a_node_that_reported_nothing_is_unknown(ledger: Ledger) -> None:
    assert ledger.node("n9") is None
    assert ledger.cards("n9") == ()


def test_the_same_report_again_changes_nothing(ledger: Ledger) -> None:
    before = ledger.generation
    ledger.put_card(N1, card("n1", 0))
    assert ledger.generation == before


def test_a_card_that_moved_to_another_node_takes_its_holds_along(ledger: Ledger) -> None:
    assert ledger.observe(A, on_card(0, 5000)) is None
    ledger.put_card(NodeName("n2"), card("n1", 0))
    assert free(ledger, "n1") == [FULL]
    assert sorted(free(ledger, "n2")) == [FULL - 5000, FULL, FULL]


def test_a_card_that_vanishes_and_returns_finds_its_holds_again(ledger: Ledger) -> None:
    assert ledger.observe(A, on_card(0, 5000)) is None
    ledger.drop_card(card_uuid("n1", 0))
    assert free(ledger) == [FULL]
    ledger.put_card(N1, card("n1", 0))
    assert free(ledger) == [FULL - 5000, FULL]


def test_a_node_whose_last_card_went_is_unknown_and_its_column_serves_another(ledger: Ledger) -> None:
    for index in (0, 1):
        ledger.drop_card(card_uuid("n1", index))
    assert ledger.node("n1") is None
    ledger.put_card(NodeName("n3"), card("n3", 0))
    assert free(ledger, "n3") == [FULL]
    assert free(ledger, "n2") == [FULL, FULL]
    assert ledger.audit() == []


@pytest.mark.parametrize(
    "gone", [card("n1", 0, healthy=False), card("n1", 0, memory=0)], ids=["sick", "without memory"]
)
def test_a_card_that_cannot_serve_is_not_counted_until_it_can(ledger: Ledger, gone: Card) -> None:
    assert ledger.observe(A, on_card(0, 5000)) is None
    ledger.put_card(N1, gone)
    assert free(ledger) == [FULL]
    ledger.put_card(N1, card("n1", 0))
    assert free(ledger) == [FULL - 5000, FULL]


def test_a_card_that_shrinks_under_its_pods_shows_the_debt(ledger: Ledger) -> None:
    assert ledger.observe(A, on_card(0, 9000)) is None
    ledger.put_card(N1, card("n1", 0, memory=8000))
    assert free(ledger) == [-1000, FULL]
    assert ledger.arrays.node_free[ledger.arrays.find("n1")] == FULL
    assert ledger.audit() == []


def test_a_sick_card_that_is_gone_is_not_known_any_more(ledger: Ledger) -> None:
    ledger.put_card(N1, card("n1", 0, healthy=False))
    ledger.drop_card(card_uuid("n1", 0))
    ledger.observe(A, on_card(1, 1))
    assert code_of(ledger.move(A, on_card(0, 1))) is Code.NO_ROOM
    assert ledger.misplaced(placement(given("main", piece(card_uuid("n1", 0), 1)), node="n2")) is None


def test_dropping_an_unknown_card_is_nothing(ledger: Ledger) -> None:
    before = ledger.statistics()
    ledger.drop_card(card_uuid("n9", 0))
    assert ledger.statistics() == before


def test_hundreds_of_nodes_and_dozens_of_cards_fit() -> None:
    ledger = cluster({f"n{i}": cards(f"n{i}", 20 if i % 50 == 0 else 1) for i in range(200)})
    assert ledger.statistics().nodes == 200
    assert ledger.statistics().cards == 196 + 4 * 20
    assert free(ledger, "n150") == [FULL] * 20
    assert ledger.audit() == []


# ── free -> assumed -> bound -> released ─────────────────────────────────────────────────────────────────────────────


def test_an_assumption_is_charged_at_once(ledger: Ledger) -> None:
    assert ledger.assume(A, on_card(0, 8138)) is None
    assert free(ledger) == [FULL - 8138, FULL]
    entry = ledger.entry(A)
    assert entry is not None
    assert entry.state is EntryState.ASSUMED
    assert ledger.statistics().assumed == 1


def test_a_confirmed_assumption_is_bound_and_charged_once(ledger: Ledger) -> None:
    ledger.assume(A, on_card(0, 8138))
    ledger.confirm(A)
    assert free(ledger) == [FULL - 8138, FULL]
    assert (ledger.statistics().assumed, ledger.statistics().bound) == (0, 1)


def test_a_forgotten_assumption_leaves_nothing_behind(ledger: Ledger) -> None:
    ledger.assume(A, on_card(0, 8138))
    ledger.forget(A)
    assert free(ledger) == [FULL, FULL]
    assert ledger.entry(A) is None


def test_what_is_bound_cannot_be_forgotten(ledger: Ledger) -> None:
    ledger.assume(A, on_card(0, 8138))
    ledger.confirm(A)
    ledger.forget(A)
    assert free(ledger) == [FULL - 8138, FULL]


def test_an_assumption_seen_in_a_watch_is_bound_and_charged_once(ledger: Ledger) -> None:
    ledger.assume(A, on_card(0, 8138))
    assert ledger.observe(A, on_card(0, 8138)) is None
    assert free(ledger) == [FULL - 8138, FULL]
    assert ledger.statistics().bound == 1


def test_what_the_watch_shows_wins_over_what_was_assumed(ledger: Ledger) -> None:
    ledger.assume(A, on_card(0, 8138))
    assert ledger.observe(A, on_card(1, 4000)) is None
    assert free(ledger) == [FULL, FULL - 4000]


def test_a_pod_never_assumed_goes_straight_to_bound(ledger: Ledger) -> None:
    assert ledger.observe(A, on_card(0, 8138)) is None
    assert ledger.statistics().bound == 1


def test_release_frees_what_was_held_and_says_what_it_was(ledger: Ledger) -> None:
    ledger.observe(A, on_card(0, 8138))
    entry = ledger.release(A)
    assert entry is not None
    assert entry.placement == on_card(0, 8138)
    assert free(ledger) == [FULL, FULL]
    assert ledger.release(A) is None


def test_a_pod_that_holds_something_cannot_be_assumed_again(ledger: Ledger) -> None:
    ledger.assume(A, on_card(0, 10))
    refusal = ledger.assume(A, on_card(0, 10, node="n2"))
    assert refusal == Refusal(Code.ELSEWHERE, "the pod already holds a placement on n1")
    assert free(ledger, "n2") == [FULL, FULL]


def test_transitions_of_unknown_pods_change_nothing(ledger: Ledger) -> None:
    before = ledger.statistics()
    ledger.confirm(A)
    ledger.forget(A)
    ledger.renew(A)
    assert ledger.release(A) is None
    assert code_of(ledger.move(A, on_card(0, 1))) is Code.GONE
    assert ledger.statistics() == before


def test_a_deletion_that_overtakes_the_answer_leaves_no_charge(ledger: Ledger) -> None:
    ledger.assume(A, on_card(0, 8138))
    ledger.release(A)
    ledger.confirm(A)
    assert free(ledger) == [FULL, FULL]
    assert ledger.entry(A) is None


def test_a_recreated_pod_is_another_pod(ledger: Ledger) -> None:
    ledger.observe(A, on_card(0, 8138))
    ledger.observe(B, on_card(0, 8138))
    ledger.release(A)
    assert free(ledger) == [FULL - 8138, FULL]


# ── what is refused ──────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("verb", ["assume", "observe"])
def test_a_card_is_never_promised_twice(ledger: Ledger, verb: str) -> None:
    in_use(ledger, "n1", 8139)
    before = ledger.generation
    refusal = ledger.assume(A, on_card(0, 8138)) if verb == "assume" else ledger.observe(A, on_card(0, 8138))
    assert refusal == Refusal(
        Code.NO_ROOM, "card 0 has 8137 MiB and 100 percent of its cores free, 8138 MiB and 0 percent are needed"
    )
    assert ledger.generation == before
    assert ledger.entry(A) is None


def test_one_card_too_small_refuses_the_whole_placement(ledger: Ledger) -> None:
    in_use(ledger, "n1", 0, 10_000)
    both = placement(given("x", piece(card_uuid("n1", 0), 5000)), given("y", piece(card_uuid("n1", 1), 8000)))
    assert code_of(ledger.assume(A, both)) is Code.NO_ROOM
    assert free(ledger) == [FULL, FULL - 10_000]


def test_a_card_that_is_not_reported_hides_none_that_is_full(ledger: Ledger) -> None:
    in_use(ledger, "n1", FULL)
    both = placement(given("x", piece(card_uuid("n1", 9), 1)), given("y", piece(card_uuid("n1", 0), 1)))
    assert code_of(ledger.assume(A, both)) is Code.NO_ROOM


def test_a_used_card_is_not_given_away_whole(ledger: Ledger) -> None:
    whole = placement(given("main", piece(card_uuid("n1", 0), FULL, 100)))
    in_use(ledger, "n1", 1)
    assert code_of(ledger.assume(A, whole)) is Code.NO_ROOM


def test_a_whole_card_is_not_shared(ledger: Ledger) -> None:
    assert ledger.assume(A, placement(given("main", piece(card_uuid("n1", 0), FULL, 100)))) is None
    assert code_of(ledger.assume(B, on_card(0, 1))) is Code.NO_ROOM
    state = ledger.node("n1")
    assert state is not None
    assert [(c.free_memory, c.free_cores, c.idle) for c in state.cards] == [(0, 0, False), (FULL, 100, True)]


def test_a_placement_that_names_a_card_of_another_node_is_refused(ledger: Ledger) -> None:
    elsewhere = placement(given("main", piece(card_uuid("n2", 0))), node="n1")
    refusal = Refusal(Code.MALFORMED, "card GPU-n2-0 is on n2, not on n1")
    assert ledger.assume(A, elsewhere) == refusal
    ledger.observe(A, on_card(0, 8138))
    assert ledger.move(A, elsewhere) == refusal


def test_a_bound_pod_keeps_the_card_that_another_node_reports_now(ledger: Ledger) -> None:
    """Whether the card was carried there or somebody only says so: given to a second pod it would be held twice."""
    elsewhere = placement(given("main", piece(card_uuid("n2", 0), FULL)), node="n1")
    assert ledger.observe(A, elsewhere) is None
    assert ledger.misplaced(elsewhere) == Refusal(Code.MALFORMED, "card GPU-n2-0 is on n2, not on n1")
    assert code_of(ledger.assume(B, on_card(0, 1, node="n2"))) is Code.NO_ROOM


def test_a_changed_placement_of_a_bound_pod_is_not_believed(ledger: Ledger) -> None:
    ledger.observe(A, on_card(0, 8138))
    refusal = ledger.observe(A, on_card(1, 1))
    assert refusal == Refusal(
        Code.MALFORMED, "the placement was changed after the pod was bound; the change is ignored"
    )
    assert free(ledger) == [FULL - 8138, FULL]
    assert ledger.conflicts() == {}


def test_a_card_not_reported_yet_is_charged_when_it_comes(ledger: Ledger) -> None:
    assert ledger.observe(A, on_card(0, 8138, node="n3")) is None
    ledger.put_card(NodeName("n3"), card("n3", 0))
    assert free(ledger, "n3") == [FULL - 8138]


# ── conflicts ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_recorded_placement_that_does_not_fit_is_kept_as_a_conflict_without_a_charge(ledger: Ledger) -> None:
    in_use(ledger, "n1", 10_000)
    assert code_of(ledger.observe(A, on_card(0, 8138))) is Code.NO_ROOM
    assert ledger.conflicts() == {A: on_card(0, 8138)}
    assert ledger.statistics().conflicts == 1
    assert free(ledger) == [FULL - 10_000, FULL]


def test_a_conflict_is_settled_when_there_is_room(ledger: Ledger) -> None:
    in_use(ledger, "n1", 10_000)
    ledger.observe(A, on_card(0, 8138))
    ledger.release(PodUID("filler-n1-0"))
    assert ledger.observe(A, on_card(0, 8138)) is None
    assert ledger.conflicts() == {}


def test_a_released_conflict_is_forgotten(ledger: Ledger) -> None:
    in_use(ledger, "n1", 10_000)
    ledger.observe(A, on_card(0, 8138))
    assert ledger.release(A) is None
    assert ledger.conflicts() == {}


def test_the_list_of_conflicts_may_be_walked_while_they_are_settled(ledger: Ledger) -> None:
    in_use(ledger, "n1", 10_000)
    ledger.observe(A, on_card(0, 8138))
    ledger.observe(B, on_card(0, 8000))
    for uid in ledger.conflicts():
        ledger.release(uid)
    assert ledger.conflicts() == {}


def test_a_conflict_that_is_assumed_is_one_no_longer(ledger: Ledger) -> None:
    in_use(ledger, "n1", 10_000)
    ledger.observe(A, on_card(0, 8138))
    assert code_of(ledger.assume(A, on_card(0, 8138))) is Code.NO_ROOM
    assert ledger.conflicts() == {A: on_card(0, 8138)}
    assert ledger.assume(A, on_card(1, 8138)) is None
    assert ledger.conflicts() == {}


# ── moving ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_pod_moves_to_the_card_that_kubelet_chose(ledger: Ledger) -> None:
    ledger.observe(A, on_card(0, 8138))
    assert ledger.move(A, on_card(1, 8138)) is None
    assert free(ledger) == [FULL - 8138, FULL - 8138]  # the API server may show either
    ledger.moved(A)
    assert free(ledger) == [FULL, FULL - 8138]
    entry = ledger.entry(A)
    assert entry is not None
    assert (entry.state, entry.placement) == (EntryState.BOUND, on_card(1, 8138))


def test_a_pod_may_move_within_its_own_room(ledger: Ledger) -> None:
    ledger.observe(A, on_card(0, 10_000))
    assert ledger.move(A, on_card(0, 12_000)) is None
    assert free(ledger) == [FULL - 12_000, FULL]


def test_a_pod_that_cannot_move_stays_where_it_was(ledger: Ledger) -> None:
    in_use(ledger, "n1", 0, 10_000)
    ledger.observe(A, on_card(0, 8138))
    before = ledger.entry(A)
    assert code_of(ledger.move(A, on_card(1, 8138))) is Code.NO_ROOM
    assert free(ledger) == [FULL - 8138, FULL - 10_000]
    assert ledger.entry(A) == before
    assert ledger.audit() == []


# ── time ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_only_old_assumptions_are_overdue(ledger: Ledger, clock: Clock) -> None:
    ledger.assume(A, on_card(0, 1))
    ledger.observe(B, on_card(0, 1))
    clock.now += 29.9
    assert ledger.overdue(30) == []
    clock.now += 0.1
    assert ledger.overdue(30) == [A]


def test_a_renewed_assumption_gets_another_period(ledger: Ledger, clock: Clock) -> None:
    ledger.assume(A, on_card(0, 1))
    clock.now += 30
    ledger.renew(A)
    assert ledger.overdue(30) == []
    clock.now += 30
    assert ledger.overdue(30) == [A]


# ── views ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_generation_grows_with_every_change_of_what_is_free(ledger: Ledger) -> None:
    seen = [ledger.generation]
    for change in (
        lambda: ledger.assume(A, on_card(0, 1)),
        lambda: ledger.move(A, on_card(1, 1)),
        lambda: ledger.release(A),
        lambda: ledger.drop_card(card_uuid("n1", 1)),
        lambda: ledger.put_card(N1, card("n1", 1)),
    ):
        change()
        seen.append(ledger.generation)
    assert seen == sorted(set(seen))


def test_the_statistics_count_everything(ledger: Ledger) -> None:
    in_use(ledger, "n1", 10_000)
    ledger.assume(A, on_card(1, 1))
    ledger.observe(B, on_card(0, 8138))
    found = ledger.statistics()
    assert (found.nodes, found.cards, found.assumed, found.bound, found.conflicts) == (2, 4, 1, 1, 1)


def test_the_audit_finds_a_total_that_nobody_holds(ledger: Ledger) -> None:
    in_use(ledger, "n1", 10_000)
    assert ledger.audit() == []
    ledger.arrays.free[0, ledger.arrays.find("n1")] += 1
    assert card_uuid("n1", 0) in ledger.audit()


@pytest.mark.parametrize(("first", "then", "fits"), [((60, 39), 0, True), ((60, 40), 0, False), ((0, 60), 40, False)])
def test_cores_are_promised_in_full_only_where_everybody_has_some(
    first: tuple[int, ...], then: int, *, fits: bool
) -> None:
    ledger = cluster({"n1": cards("n1", 1)})
    for i, cores in enumerate(first):
        assert ledger.assume(PodUID(f"u{i}"), placement(given("main", piece(card_uuid("n1", 0), 10, cores)))) is None
    refusal = ledger.assume(PodUID("last"), placement(given("main", piece(card_uuid("n1", 0), 10, then))))
    assert (refusal is None) == fits
    if refusal is not None:
        assert refusal.message.endswith("; beside containers without a share 1 percent must stay free")
    assert ledger.audit() == []


def test_how_a_card_is_joined_and_what_it_says_of_itself_is_known_to_who_chooses() -> None:
    ledger = Ledger(Clock())
    said = shared({"numaNode": "1"})
    ledger.put_card(N1, structs.replace(card("n1", 0), interconnect=Interconnect("X NV2", nvlink=2), properties=said))
    state = ledger.node(N1)
    assert state is not None
    assert state.cards[0].interconnect == Interconnect("X NV2", nvlink=2)
    assert state.cards[0].properties == said


# ── what is left behind ──────────────────────────────────────────────────────────────────────────────────────────────


def test_pods_that_are_gone_leave_nothing_behind(ledger: Ledger) -> None:
    """However often they were refused, moved and seen."""
    uids = [PodUID(f"p{i}") for i in range(4)]
    both = placement(given("x", piece(card_uuid("n1", 0), 9000)), given("y", piece(card_uuid("n1", 1), 9000)))
    for uid in uids:
        for _ in range(2):
            ledger.observe(uid, both)
    ledger.move(uids[0], on_card(0, 100))
    assert list(ledger.conflicts()) == uids[1:]
    ledger.moved(uids[0])
    for uid in ledger.stirred():
        ledger.observe(uid, both)
    for uid in (uids[2], uids[0], uids[3], uids[1]):
        ledger.release(uid)
    assert free(ledger) == [FULL, FULL]
    assert ledger._sharing == {}  # pyright: ignore[reportPrivateUsage]  # a leak shows nowhere else
    assert ledger._held == {}  # pyright: ignore[reportPrivateUsage]  # a leak shows nowhere else
