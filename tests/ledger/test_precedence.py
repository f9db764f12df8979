"""Who keeps a card that was promised twice: who was granted it first, in whatever order the pods are seen."""

import random
import time

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fractile.ledger.ledger import EntryState, Ledger
from fractile.ledger.precedence import LAST, Rank, contested, rank
from fractile.model.placement import Placement
from fractile.model.units import NodeName, PodUID
from tests.builders import CARD_MEMORY as FULL
from tests.builders import card, cards, cluster, on_card, piece, placement
from tests.builders import given as container_of

A, B, C = PodUID("a"), PodUID("b"), PodUID("c")
EARLY, LATE = "2026-01-01T10:00:00Z", "2026-01-01T10:00:01Z"


def at(bound: str, *, waits: bool = True, created: str = EARLY) -> Rank:
    return rank(waits=waits, bound=bound, created=created)


def ledger() -> Ledger:
    return cluster({"n1": cards("n1")})


def test_who_has_run_comes_before_who_was_bound_earlier_and_that_before_who_is_older() -> None:
    order = [at(LATE, waits=False), at(EARLY), at(LATE, created=EARLY), at(LATE, created=LATE), at(""), LAST]
    assert order == sorted(order)
    assert len(set(order)) == len(order)


@pytest.mark.parametrize(
    "said", ["", "2026", "20260101100000", "２０２６-01-01T10:00:00Z", "abcd-ef-ghTij:kl:mnZ", "abc"]
)
def test_a_time_that_makes_no_sense_is_later_than_any_other(said: str) -> None:
    assert at(said) > at("9999-12-31T23:59:59Z")
    assert at(EARLY, created=said) > at(EARLY, created="9999-12-31T23:59:59Z")
    assert at(said) == at("")
    assert at(said) < LAST


class _Claimed(msgspec.Struct):
    placement: Placement
    rank: Rank


def _in_a_row(*ranks: int) -> tuple[dict[PodUID, _Claimed], dict[str, list[PodUID]]]:
    """Pods p0, p1, ..., each of which shares one card with the next; and who claims which card."""
    claims: dict[PodUID, _Claimed] = {}
    sharing: dict[str, list[PodUID]] = {}
    for i, place in enumerate(ranks):
        both = placement(container_of("main", piece(f"GPU-{i}", 1), piece(f"GPU-{i + 1}", 1)))
        claims[PodUID(f"p{i}")] = _Claimed(both, Rank(place))
        for number in (i, i + 1):
            sharing.setdefault(f"GPU-{number}", []).append(PodUID(f"p{i}"))
    return claims, sharing


def test_those_that_come_after_a_pod_are_found_from_card_to_card() -> None:
    claims, sharing = _in_a_row(9, 5, 7, 6, 3, 8)
    found = contested(PodUID("p1"), claims.get, lambda card: sharing[card])
    assert found == ["p1", "p3", "p2", "p0"], "p4 came before, so that p5 is not reached"
    assert contested(PodUID("p4"), claims.get, lambda card: sharing[card]) == ["p4", "p1", "p3", "p2", "p5", "p0"]


def test_those_that_come_before_are_found_when_they_are_asked_for() -> None:
    claims, sharing = _in_a_row(9, 5, 7)
    assert contested(PodUID("p0"), claims.get, lambda card: sharing[card]) == ["p0"]
    assert contested(PodUID("p0"), claims.get, lambda card: sharing[card], earlier=True) == ["p1", "p2", "p0"]


def test_of_equal_ranks_the_smaller_uid_comes_first() -> None:
    claims, sharing = _in_a_row(4, 4, 4)
    assert contested(PodUID("p1"), claims.get, lambda card: sharing[card]) == ["p1", "p2"]
    assert contested(PodUID("p0"), claims.get, lambda card: sharing[card]) == ["p0", "p1", "p2"]


def test_pods_that_take_no_part_are_left_out() -> None:
    claims, sharing = _in_a_row(1, 2, 3)
    del claims[PodUID("p1")]
    assert contested(PodUID("p0"), claims.get, lambda card: sharing[card]) == ["p0"]
    assert contested(PodUID("p1"), claims.get, lambda card: sharing[card]) == []


def test_the_pod_that_was_granted_the_card_first_keeps_it_though_it_is_seen_later() -> None:
    books = ledger()
    assert books.observe(A, on_card(0, FULL), rank=at(LATE)) is None
    assert books.observe(B, on_card(0, FULL), rank=at(EARLY)) is None
    assert {uid for uid, _ in books.entries()} == {B}
    assert list(books.conflicts()) == [A]
    assert books.displaced() == [A]
    assert books.displaced() == []
    assert books.audit() == []


def test_the_later_one_is_the_conflict_when_it_is_seen_later_too() -> None:
    books = ledger()
    books.observe(B, on_card(0, FULL), rank=at(EARLY))
    assert books.observe(A, on_card(0, FULL), rank=at(LATE)) is not None
    assert (list(books.conflicts()), books.displaced()) == ([A], [])


def test_the_pod_whose_containers_run_gets_its_card_back_from_one_that_only_was_bound() -> None:
    books = ledger()
    books.observe(A, on_card(0, FULL), rank=at(EARLY))
    books.observe(B, on_card(0, FULL), rank=at(LATE))
    assert list(books.conflicts()) == [B]
    books.observe(B, on_card(0, FULL), rank=at(LATE, waits=False))
    assert list(books.conflicts()) == [A]


def test_an_assumption_gives_way_once_it_is_seen_to_be_later() -> None:
    books = ledger()
    assert books.assume(A, on_card(0, FULL)) is None
    assert books.observe(B, on_card(0, FULL), rank=at(EARLY)) is not None  # a Binding of ours is on its way
    books.observe(A, on_card(0, FULL), rank=at(LATE))
    assert ({uid for uid, _ in books.entries()}, list(books.conflicts())) == ({B}, [A])


def test_who_gives_way_leaves_the_others_of_the_card_alone() -> None:
    books = ledger()
    books.observe(A, on_card(0, 5000), rank=at(LATE))
    books.observe(B, on_card(0, FULL - 5000), rank=at(LATE, created=LATE))
    assert books.observe(C, on_card(0, 5000), rank=at(EARLY)) is None
    assert {uid for uid, _ in books.entries()} == {A, C}


def test_of_several_pods_on_a_card_each_is_forgotten_alone() -> None:
    books = ledger()
    for uid in (A, B, C):
        books.observe(uid, on_card(0, 5000), rank=at(LATE))
    books.release(B)
    assert books.observe(PodUID("first"), on_card(0, FULL), rank=at(EARLY)) is None
    assert list(books.conflicts()) == [A, C], "both that are still there"


def test_the_pod_that_takes_a_card_is_bound_and_keeps_its_rank_and_all_who_give_way_are_named() -> None:
    books = ledger()
    for uid, index in ((A, 0), (B, 1)):
        books.observe(uid, on_card(index, FULL), rank=at(LATE))
    both = placement(container_of("main", piece("GPU-n1-0", 10), piece("GPU-n1-1", 10)))
    assert books.observe(C, both, rank=at(EARLY)) is None
    entry = books.entry(C)
    assert entry is not None
    assert (entry.state, entry.rank) == (EntryState.BOUND, at(EARLY))
    assert books.displaced() == [A, B]
    books.release(C)
    assert books.observe(A, on_card(0, FULL)) is None
    entry = books.entry(A)
    assert entry is not None
    assert entry.rank == at(LATE), "as before"


def test_a_conflict_that_gave_way_takes_no_card_from_the_one_who_came_before() -> None:
    books = ledger()
    books.observe(A, on_card(0, FULL), rank=at(EARLY))
    books.put_card(NodeName("n1"), card("n1", 0, memory=FULL // 2))  # in debt from now on
    assert books.observe(B, on_card(0, 1), rank=at(LATE)) is not None
    assert ({uid for uid, _ in books.entries()}, list(books.conflicts()), books.displaced()) == ({A}, [B], [])


def test_a_pod_that_turns_out_to_come_first_keeps_its_card() -> None:
    books = ledger()
    assert books.assume(A, on_card(0, FULL)) is None
    assert books.observe(B, on_card(0, FULL), rank=at(LATE)) is not None
    assert books.observe(A, on_card(0, FULL), rank=at(EARLY)) is None
    assert ({uid for uid, _ in books.entries()}, list(books.conflicts())) == ({A}, [B])
    entry = books.entry(A)
    assert entry is not None
    assert entry.rank == at(EARLY)


def test_a_conflict_is_looked_at_again_when_the_one_before_it_is_bound() -> None:
    books = ledger()
    assert books.assume(A, on_card(0, FULL)) is None
    assert books.observe(B, on_card(0, FULL), rank=at(EARLY)) is not None
    books.stirred()
    books.confirm(A)
    assert books.stirred() == {B: on_card(0, FULL)}
    books.confirm(A)
    assert books.stirred() == {}, "it was bound already"


def test_conflicts_of_several_cards_are_looked_at_again() -> None:
    books = ledger()
    for uid, index in ((A, 0), (B, 1)):
        books.observe(PodUID(f"holder of {index}"), on_card(index, FULL), rank=at(EARLY))
        books.observe(uid, on_card(index, FULL), rank=at(LATE))
    books.stirred()
    for index in range(2):
        books.release(PodUID(f"holder of {index}"))
    assert books.stirred() == {A: on_card(0, FULL), B: on_card(1, FULL)}


def test_a_pod_of_which_nothing_is_known_takes_nothing_away() -> None:
    books = ledger()
    books.observe(B, on_card(0, FULL))
    assert books.observe(A, on_card(0, FULL)) is not None
    assert list(books.conflicts()) == [A]


def test_a_conflict_is_charged_when_there_is_room_again() -> None:
    books = ledger()
    books.observe(A, on_card(0, FULL), rank=at(LATE))
    books.observe(B, on_card(0, FULL), rank=at(EARLY))
    books.release(B)
    assert books.observe(A, books.conflicts()[A]) is None
    assert books.conflicts() == {}


def test_what_a_conflict_costs_does_not_grow_with_the_pods_of_other_cards() -> None:
    """A node can have as many conflicts as pods, and each is looked at whenever anything becomes free."""

    def seconds(others: int) -> float:
        books = ledger()
        for number in range(others):
            there = NodeName(f"m{number}")
            books.put_card(there, card(there, 0))
            books.observe(PodUID(f"p{number}"), on_card(0, FULL, node=there), rank=at(LATE))
        books.observe(A, on_card(0, FULL), rank=at(EARLY))
        books.observe(B, on_card(0, FULL), rank=at(LATE))
        assert list(books.conflicts()) == [B]
        took: list[float] = []
        for _ in range(5):
            begun = time.perf_counter()
            books.observe(B, on_card(0, FULL))
            took.append(time.perf_counter() - begun)
        return min(took)

    assert seconds(5000) < 20 * seconds(0)


def test_only_conflicts_whose_cards_have_changed_are_looked_at_again() -> None:
    books = ledger()
    books.observe(A, on_card(0, FULL), rank=at(EARLY))
    books.observe(B, on_card(0, FULL), rank=at(LATE))
    books.stirred()
    books.observe(C, on_card(1, FULL), rank=at(LATE))
    books.release(C)
    assert books.stirred() == {}
    books.release(A)
    assert books.stirred() == {B: on_card(0, FULL)}


@pytest.mark.parametrize("healthy", [True, False])
def test_a_conflict_is_looked_at_again_when_its_card_is_reported_otherwise(healthy: bool) -> None:
    books = ledger()
    books.observe(A, on_card(0, FULL + 1), rank=at(EARLY))
    books.stirred()
    books.put_card(NodeName("n1"), card("n1", 0, memory=FULL + 1, healthy=healthy))
    for uid, claimed in books.stirred().items():
        books.observe(uid, claimed)
    assert books.conflicts() == {}
    assert books.audit() == []


def test_a_conflict_is_looked_at_again_when_its_card_is_gone() -> None:
    books = ledger()
    books.observe(A, on_card(0, FULL + 1), rank=at(EARLY))
    books.stirred()
    books.drop_card(on_card(0, FULL).containers[0].slices[0].card)
    assert list(books.stirred()) == [A]


def _placed(code: int) -> Placement:
    size = (4000, 8000, 12_000, FULL)[code % 4]
    if code < 4:
        return on_card(0, size)
    if code < 8:
        return on_card(1, size)
    first, second = (piece(f"GPU-n1-{i}", size) for i in range(2))
    return placement(container_of("main", first, second))


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 11), st.integers(0, 9), st.booleans()), min_size=1, max_size=9),
    st.integers(0, 99),
)
def test_the_order_in_which_pods_are_seen_decides_nothing(pods: list[tuple[int, int, bool]], seed: int) -> None:
    """The one who is granted first takes its cards, then the next: the same in any order."""
    claims = [
        (PodUID(f"p{i}"), _placed(code), at(f"2026-01-01T10:00:0{second}Z", waits=waits))
        for i, (code, second, waits) in enumerate(pods)
    ]
    room: dict[str, int] = {"GPU-n1-0": FULL, "GPU-n1-1": FULL}
    wanted: set[str] = set()
    for uid, placed, _ in sorted(claims, key=lambda c: (c[2], c[0])):
        needed: dict[str, int] = {s.card: s.memory for c in placed.containers for s in c.slices}
        if all(room[card] >= size for card, size in needed.items()):
            wanted.add(uid)
            room = {card: left - needed.get(card, 0) for card, left in room.items()}
    books = ledger()
    random.Random(seed).shuffle(claims)
    for uid, placed, place in claims:
        books.observe(uid, placed, rank=place)
    assert {uid for uid, _ in books.entries()} == wanted
    assert books.audit() == []
