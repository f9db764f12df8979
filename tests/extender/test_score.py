"""How good each fitting node is, and the hints about pods that are on their way."""

import pytest
from msgspec import structs

from fractile.extender.expected import LIFETIME, Expected
from fractile.extender.score import MAX_SCORE, rank
from fractile.ledger.ledger import Ledger
from fractile.model.units import NodeName, PodUID
from tests.builders import CARD_MEMORY, Clock, by_card, by_memory, card, cards, cluster, in_use, request

FULL = CARD_MEMORY


@pytest.fixture
def ledger() -> Ledger:
    ledger = cluster({n: [card(n, 0, memory=10_000)] for n in ("empty", "half", "nearly-full")})
    in_use(ledger, "half", 5000)
    in_use(ledger, "nearly-full", 8000)
    return ledger


def scores(ledger: Ledger, memory: int, *names: str) -> list[int]:
    return rank(request(by_memory(memory)), list(names), ledger).scores.tolist()


def test_the_score_is_the_share_that_would_be_in_use(ledger: Ledger) -> None:
    assert scores(ledger, 1000, "empty", "half", "nearly-full") == [1, 6, 9]


def test_the_score_is_rounded_to_the_nearest_step(ledger: Ledger) -> None:
    assert scores(ledger, 499, "empty", "half") == [0, 5]
    assert scores(ledger, 500, "empty", "half") == [1, 6]


def test_every_name_is_answered_in_the_order_asked(ledger: Ledger) -> None:
    ranking = rank(request(by_memory(1000)), ["half", "stranger", "empty"], ledger)
    assert ranking.scores.tolist() == [6, 0, 1]


def test_the_first_of_the_best_is_named_with_what_the_pod_takes(ledger: Ledger) -> None:
    ranking = rank(request(by_memory(1000)), ["empty", "nearly-full", "half"], ledger)
    assert (ranking.best, ranking.memory) == ("nearly-full", 1000)
    equal = cluster({n: cards(n) for n in ("a", "b")})
    assert rank(request(), ["b", "a"], equal).best == "b"


def test_no_names_are_no_scores(ledger: Ledger) -> None:
    ranking = rank(request(), [], ledger)
    assert (len(ranking.scores), ranking.best) == (0, "")


def test_scores_stay_within_bounds_whatever_is_asked(ledger: Ledger) -> None:
    ledger.put_card(NodeName("half"), card("half", 0, memory=100))
    for containers in ([by_memory(2**80)], [by_card(2**80)], [by_memory(2**80, "a"), by_card(2**80, "b")]):
        found = rank(request(*containers), ["empty", "half", "nearly-full", "stranger"], ledger).scores
        assert all(0 <= s <= MAX_SCORE for s in found.tolist())


def test_whole_cards_count_with_their_memory() -> None:
    ledger = cluster({"two": cards("two", 2), "eight": cards("eight", 8)})
    ranking = rank(request(by_card(1)), ["two", "eight"], ledger)
    assert ranking.scores.tolist() == [5, 1]
    assert (ranking.best, ranking.memory) == ("two", FULL)


@pytest.mark.parametrize(
    ("own", "cluster_wide", "wanted"),
    [
        pytest.param("spread", "binpack", [9, 4, 1], id="the pod's own"),
        pytest.param("", "spread", [9, 4, 1], id="the cluster's"),
        pytest.param("binpack", "spread", [1, 6, 9], id="the pod's own before the cluster's"),
        pytest.param("nonsense", "spread", [9, 4, 1], id="an unknown word"),
        pytest.param("nonsense", "binpack", [1, 6, 9], id="an unknown word, filled"),
    ],
)
def test_nodes_are_filled_or_spread_over(ledger: Ledger, own: str, cluster_wide: str, wanted: list[int]) -> None:
    asked = structs.replace(by_memory(1000), request=structs.replace(by_memory(1000).request, node_policy=own))
    names = ["empty", "half", "nearly-full", "stranger"]
    ranking = rank(request(asked), names, ledger, policy=cluster_wide)
    assert ranking.scores.tolist() == [*wanted, 0]
    assert ranking.best == ("empty" if wanted[0] == 9 else "nearly-full")


def test_a_pod_on_its_way_makes_its_node_fuller(ledger: Ledger) -> None:
    ranking = rank(request(by_memory(1000)), ["empty", "half"], ledger, [("empty", 7000), ("stranger", 5)])
    assert ranking.scores.tolist() == [8, 6]


def test_scoring_changes_nothing(ledger: Ledger) -> None:
    before = ledger.statistics()
    for i in range(1000):
        rank(request(by_memory(i)), ["empty", "half"], ledger, [("half", i)])
    assert ledger.statistics() == before


# ── expectations ─────────────────────────────────────────────────────────────────────────────────────────────────────

A, B = PodUID("a"), PodUID("b")


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_a_pod_does_not_see_itself_coming(clock: Clock) -> None:
    expected = Expected(clock)
    expected.put(A, "n1", 100)
    assert list(expected.others(A)) == []
    assert list(expected.others(B)) == [("n1", 100)]


def test_a_hint_is_replaced_by_the_next_one_of_its_pod(clock: Clock) -> None:
    expected = Expected(clock)
    expected.put(A, "n1", 100)
    expected.put(A, "n2", 100)
    assert list(expected.others(B)) == [("n2", 100)]


def test_a_hint_ends_with_the_binding_of_its_pod(clock: Clock) -> None:
    expected = Expected(clock)
    expected.put(A, "n1", 100)
    expected.discard(A)
    expected.discard(A)
    assert list(expected.others(B)) == []


def test_a_hint_is_forgotten_after_seconds(clock: Clock) -> None:
    expected = Expected(clock)
    expected.put(A, "n1", 100)
    clock.now += LIFETIME
    assert list(expected.others(B)) == [("n1", 100)]
    clock.now += 0.1
    assert list(expected.others(B)) == []


def test_hints_are_bounded_and_known_pods_may_still_change_theirs(clock: Clock) -> None:
    expected = Expected(clock)
    for i in range(5000):
        expected.put(PodUID(f"u{i}"), "n1", 1)
    expected.put(PodUID("u0"), "n2", 1)
    hints = list(expected.others(B))
    assert len(hints) == 1000
    assert ("n2", 1) in hints


def test_old_hints_make_room_for_new_ones(clock: Clock) -> None:
    expected = Expected(clock)
    for i in range(5000):
        expected.put(PodUID(f"u{i}"), "n1", 1)
    clock.now += LIFETIME + 1
    expected.put(A, "n2", 7)
    assert list(expected.others(B)) == [("n2", 7)]
