"""What the ledger shows besides the cards of a node: what it withholds, what would be, and what waits for an answer."""

from collections.abc import Callable

import pytest

from fractile.ledger.ledger import EntryState, Ledger
from fractile.ledger.precedence import LAST, Rank
from fractile.ledger.usage import Key
from fractile.model.card import Card
from fractile.model.placement import Charge
from fractile.model.quota import NamespaceQuota, NodePlace, Quota, QuotaLimit, QuotaOwner
from fractile.model.refusal import Code, Refusal
from fractile.model.units import CardUUID, ContainerName, MiB, NodeName, Percent, PodUID
from fractile.policy.quota import CardKind
from tests.builders import CARD_MEMORY as FULL
from tests.builders import (
    Clock,
    by_card,
    card,
    card_uuid,
    cards,
    cluster,
    device,
    given,
    in_use,
    on_card,
    piece,
    placement,
    request,
)

A, B, C = PodUID("a"), PodUID("b"), PodUID("c")
N1 = NodeName("n1")
FIRST = card_uuid("n1", 0)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def ledger(clock: Clock) -> Ledger:
    """Two nodes of two cards."""
    return cluster({n: cards(n) for n in ("n1", "n2")}, clock=clock)


def free(ledger: Ledger, node: str = "n1") -> list[tuple[int, int, bool]]:
    """Memory and cores of each card, and whether it is unused."""
    state = ledger.node(node)
    assert state is not None
    return [(c.free_memory, c.free_cores, c.idle) for c in state.cards]


# ── withheld ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def less(memory: int, cores: int = 0) -> Charge:
    return Charge(FIRST, MiB(memory), Percent(cores))


def test_what_the_agent_withholds_of_a_card_is_given_to_no_pod(ledger: Ledger) -> None:
    ledger.withhold(FIRST, less(1000, 10))
    assert free(ledger) == [(FULL - 1000, 90, False), (FULL, 100, True)]
    assert ledger.assume(A, on_card(0, FULL)) is not None
    assert ledger.assume(A, on_card(0, FULL - 1000)) is None
    assert ledger.audit() == []


def test_what_is_withheld_is_what_was_said_last(ledger: Ledger) -> None:
    ledger.withhold(FIRST, less(1000))
    ledger.withhold(FIRST, less(300))
    assert free(ledger)[0] == (FULL - 300, 100, False)
    ledger.withhold(FIRST, None)
    assert free(ledger)[0] == (FULL, 100, True)
    assert ledger.audit() == []


def test_to_withhold_the_same_again_changes_nothing(ledger: Ledger) -> None:
    ledger.withhold(FIRST, less(1000))
    before = ledger.generation
    ledger.withhold(FIRST, less(1000))
    ledger.withhold(card_uuid("n2", 0), None)
    assert ledger.generation == before
    assert free(ledger)[0] == (FULL - 1000, 100, False)
    ledger.withhold(FIRST, less(999))
    assert ledger.generation > before


def test_pods_of_a_card_stay_charged_when_nothing_is_withheld_any_more(ledger: Ledger) -> None:
    ledger.observe(A, on_card(0, 5000))
    ledger.withhold(FIRST, less(1000))
    ledger.withhold(FIRST, None)
    assert free(ledger)[0] == (FULL - 5000, 100, False)
    ledger.withhold(FIRST, less(1000))
    ledger.release(A)
    assert free(ledger)[0] == (FULL - 1000, 100, False)
    assert ledger.audit() == []


def test_what_is_withheld_of_a_card_that_is_not_known_counts_once_it_is_reported(ledger: Ledger) -> None:
    ledger.withhold(card_uuid("n3", 0), less(1000))
    ledger.put_card(NodeName("n3"), card("n3", 0))
    assert free(ledger, "n3") == [(FULL - 1000, 100, False)]


def test_the_audit_finds_what_is_withheld_and_not_charged(ledger: Ledger) -> None:
    ledger.withhold(FIRST, less(1000))
    assert ledger.audit() == []
    ledger._withheld[FIRST] = less(999)  # pyright: ignore[reportPrivateUsage]  # the audit must find it
    assert ledger.audit() == [FIRST]


# ── imagined ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def imagined(ledger: Ledger, gone: tuple[PodUID, ...] = (), *come: int) -> list[tuple[int, int, bool]]:
    """Node n1 without some pods, and with others of so much memory on its card 1."""
    before = (ledger.generation, free(ledger))
    state = ledger.imagine("n1", gone=gone, come=[on_card(1, memory) for memory in come])
    assert state is not None
    assert state.node == "n1"
    assert (ledger.generation, free(ledger)) == before, "nothing changes"
    return [(c.free_memory, c.free_cores, c.idle) for c in state.cards]


def test_a_node_is_imagined_without_some_of_its_pods_and_with_others(ledger: Ledger) -> None:
    for uid, memory in ((A, 5000), (B, 1000)):
        ledger.observe(uid, on_card(0, memory))
    assert imagined(ledger) == free(ledger)
    assert imagined(ledger, (A,)) == [(FULL - 1000, 100, False), (FULL, 100, True)]
    assert imagined(ledger, (A, B, PodUID("never seen"))) == [(FULL, 100, True)] * 2
    assert imagined(ledger, (B,), 10, 20) == [(FULL - 5000, 100, False), (FULL - 30, 100, False)]


def test_more_than_there_is_may_be_imagined(ledger: Ledger) -> None:
    assert imagined(ledger, (), FULL, 1)[1] == (-1, 100, False)


def test_a_node_is_imagined_with_what_others_will_take(ledger: Ledger) -> None:
    ledger.observe(A, on_card(0, 5000))
    state = ledger.imagine("n1", taken=[[less(100, 10)], [less(20)]])
    assert state is not None
    assert [(c.free_memory, c.free_cores) for c in state.cards] == [(FULL - 5120, 90), (FULL, 100)]


def test_nodes_without_cards_are_not_imagined_and_those_with_other_devices_are() -> None:
    ledger = cluster({"n1": [device("n1")]})
    assert ledger.imagine("n9") is None
    state = ledger.imagine("n1")
    assert state is not None
    assert (len(state.cards), len(state.others)) == (0, 1)
    assert state == ledger.node("n1")


# ── views ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_node_is_found_by_its_column() -> None:
    ledger = cluster({"n1": [card("n1", 0), device("n1")], "n2": [card("n2", 0)]})
    for name in ("n1", "n2"):
        assert ledger.node_at(ledger.arrays.find(name)) == ledger.node(name)
    with pytest.raises(AssertionError, match=r"^column 63 belongs to no node$"):
        ledger.node_at(63)


def test_cards_are_listed_as_reported_gpus_first() -> None:
    ib, second, first = device("n1", 0), card("n1", 1), card("n1", 0)
    ledger = cluster({"n1": [ib, second, first], "n2": [card("n2", 0)]})
    assert ledger.cards("n1") == (first, second, ib)
    assert set(ledger.all_cards()) == {ib, second, first, card("n2", 0)}


def test_cards_with_the_same_index_are_ordered_by_uuid(ledger: Ledger) -> None:
    names = [CardUUID(f"GPU-{name}") for name in "cab"]
    for uuid in names:
        ledger.put_card(N1, Card(uuid, 7, "T4", MiB(100)))
    assert [c.uuid for c in ledger.cards("n1")][2:] == sorted(names)
    state = ledger.node("n1")
    assert state is not None
    assert [c.uuid for c in state.cards][2:] == sorted(names)


def test_every_card_that_takes_a_place_is_told(ledger: Ledger) -> None:
    told: list[Card] = []
    ledger.on_card(told.append)
    ledger.put_card(N1, card("n1", 0))
    ledger.put_card(N1, card("n1", 0, healthy=False))
    ledger.put_card(N1, card("n1", 0, memory=0))
    assert told == []
    changed = card("n1", 0, memory=5000)
    ledger.put_card(N1, changed)
    ledger.put_card(N1, device("n1"))
    ledger.put_card(NodeName("n2"), changed)
    assert told == [changed, device("n1"), changed]


def test_the_clock_is_the_one_that_was_given(ledger: Ledger, clock: Clock) -> None:
    assert ledger.now() == clock.now
    clock.now += 7
    assert ledger.now() == clock.now


def test_holds_that_differed_are_counted(ledger: Ledger) -> None:
    assert ledger.statistics().drifted == 0
    ledger.drifted(3)
    ledger.drifted(4)
    assert ledger.statistics().drifted == 7


def test_the_statistics_say_the_generation(ledger: Ledger) -> None:
    assert ledger.statistics().generation == ledger.generation


# ── stamps ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_every_change_on_a_node_gives_it_another_stamp_and_no_other_node(ledger: Ledger) -> None:
    other, seen = ledger.stamp("n2"), [ledger.stamp("n1")]
    changes: list[Callable[[], object]] = [
        lambda: ledger.assume(A, on_card(0, 10)),
        lambda: ledger.assume(B, on_card(0, 10)),
        lambda: ledger.release(A),
        lambda: ledger.withhold(FIRST, less(1000)),
        lambda: ledger.put_card(N1, card("n1", 2)),
        lambda: ledger.put_card(N1, card("n1", 3)),
        lambda: ledger.drop_card(card_uuid("n1", 3)),
        lambda: ledger.drop_card(card_uuid("n1", 2)),
    ]
    for change in changes:
        change()
        seen.append(ledger.stamp("n1"))
    assert len(set(seen)) == len(seen)
    assert all(seen)
    assert ledger.stamp("n2") == other


@pytest.mark.parametrize("kind", [card, device], ids=["GPUs", "other devices"])
@pytest.mark.parametrize("node", ["n1", "n2"])
def test_a_node_has_a_stamp_for_as_long_as_it_has_a_card(kind: Callable[[str, int], Card], node: str) -> None:
    ledger = cluster({n: [kind(n, i) for i in range(2)] for n in ("n1", "n2")})
    assert ledger.stamp("n9") == 0
    before = ledger.stamp(node)
    ledger.drop_card(kind(node, 0).uuid)
    assert ledger.stamp(node) not in (0, before)
    ledger.drop_card(kind(node, 1).uuid)
    assert ledger.stamp(node) == 0
    ledger.put_card(NodeName(node), kind(node, 0))
    assert ledger.stamp(node) > 0


def test_a_card_shows_what_was_reported_of_it(ledger: Ledger) -> None:
    state = ledger.node("n1")
    assert state is not None
    one = state.cards[1]
    assert (one.uuid, one.index, one.model, one.memory) == (card_uuid("n1", 1), 1, "Tesla-V100", FULL)
    assert one.properties is card("n1", 1).properties


def test_slots_are_counted_where_cards_have_few() -> None:
    ledger = Ledger(Clock(), slots=3)
    ledger.put_card(N1, card("n1", 0))
    assert ledger.assume(A, placement(given("main", piece(FIRST, 1, 0, 2)))) is None
    state = ledger.node("n1")
    assert state is not None
    assert (state.cards[0].slots, state.cards[0].free_slots) == (3, 1)
    assert ledger.arrays.free_slots[ledger.arrays.cells[FIRST]] == 1
    assert ledger.assume(B, placement(given("main", piece(FIRST, 1, 0, 2)))) == Refusal(
        Code.NO_ROOM, "card 0 has 1 slots free"
    )
    assert ledger.audit() == []


def test_the_arrays_show_slices_and_whether_a_container_has_no_cores(ledger: Ledger) -> None:
    cell = ledger.arrays.cells[FIRST]
    assert (ledger.arrays.slices[cell], ledger.arrays.coreless[cell]) == (0, False)
    ledger.observe(A, on_card(0, 10))
    assert (ledger.arrays.slices[cell], ledger.arrays.coreless[cell], ledger.arrays.spare_cores[cell]) == (1, True, 99)
    state = ledger.node("n1")
    assert state is not None
    assert [(c.slices, c.coreless) for c in state.cards] == [(1, True), (0, False)]


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        *(("memory", 1), ("free", 1), ("free_cores", 1), ("idle", True), ("coreless", False), ("free_slots", 1)),
        *(("slices", 2), ("usable", 1), ("spare_cores", 1)),
    ],
)
def test_the_audit_finds_every_number_of_a_card_that_is_wrong(ledger: Ledger, name: str, wrong: int) -> None:
    ledger.observe(A, on_card(0, 10))
    assert ledger.audit() == []
    getattr(ledger.arrays, name)[ledger.arrays.cells[FIRST]] = wrong
    assert FIRST in ledger.audit()


@pytest.mark.parametrize("name", ["node_free", "most_free", "unused"])
def test_the_audit_finds_every_number_of_a_node_that_is_wrong(ledger: Ledger, name: str) -> None:
    ledger.observe(A, on_card(0, 10))
    assert ledger.audit() == []
    getattr(ledger.arrays, name)[ledger.arrays.find("n1")] += 1
    assert ledger.audit() == [FIRST, card_uuid("n1", 1)]


def test_the_audit_names_cards_in_their_order(ledger: Ledger) -> None:
    for node, index in (("n2", 0), ("n1", 1)):
        ledger.arrays.free[ledger.arrays.cells[card_uuid(node, index)]] = 1
    assert ledger.audit() == [card_uuid("n1", 1), card_uuid("n2", 0)]


def test_the_audit_finds_a_total_of_a_card_that_is_not_reported(ledger: Ledger) -> None:
    ledger.observe(A, on_card(0, 10, node="n3"))
    assert ledger.audit() == []
    held = ledger._held[card_uuid("n3", 0)]  # pyright: ignore[reportPrivateUsage]  # the audit must find it
    held.size += 1
    assert ledger.audit() == [card_uuid("n3", 0)]
    held.size -= 1
    ledger._held[card_uuid("n3", 1)] = held  # pyright: ignore[reportPrivateUsage]  # the audit must find it
    assert ledger.audit() == [card_uuid("n3", 1)]
    ledger._held.clear()  # pyright: ignore[reportPrivateUsage]  # the audit must find it
    assert ledger.audit() == [card_uuid("n3", 0)]


# ── what waits for an answer ─────────────────────────────────────────────────────────────────────────────────────────


def test_the_first_write_of_a_binding_is_told_from_a_later_one(ledger: Ledger, clock: Clock) -> None:
    assert not ledger.sent(A), "it holds nothing"
    ledger.assume(A, on_card(0, 10))
    entry = ledger.entry(A)
    assert entry is not None
    assert (entry.sent, entry.since) == (False, clock.now)
    clock.now += 20
    assert not ledger.sent(A)
    entry = ledger.entry(A)
    assert entry is not None
    assert (entry.sent, entry.since, entry.state) == (True, clock.now, EntryState.ASSUMED)
    assert ledger.sent(A)


def test_a_write_of_which_the_outcome_is_not_known_is_unsettled(ledger: Ledger) -> None:
    ledger.observe(B, on_card(1, 10))
    ledger.assume(A, on_card(0, 10))
    assert not ledger.unsettled, "nothing was sent"
    ledger.sent(A)
    assert ledger.unsettled
    ledger.confirm(A)
    assert not ledger.unsettled
    ledger.move(A, on_card(1, 20))
    assert ledger.unsettled
    assert ledger.moved(A)
    assert not ledger.unsettled


def test_a_move_is_settled_once(ledger: Ledger, clock: Clock) -> None:
    assert not ledger.moved(A), "it holds nothing"
    ledger.observe(A, on_card(0, 10))
    assert not ledger.moved(A)
    clock.now += 5
    assert ledger.move(A, on_card(1, 20)) is None
    entry = ledger.entry(A)
    assert entry is not None
    assert (entry.moving, entry.since) == (True, clock.now)
    assert [(c.card, c.memory) for c in entry.charges] == [(FIRST, 10), (card_uuid("n1", 1), 20)]
    assert ledger.moved(A)
    entry = ledger.entry(A)
    assert entry is not None
    assert (entry.moving, entry.since) == (False, clock.now)
    assert [(c.card, c.memory) for c in entry.charges] == [(card_uuid("n1", 1), 20)]
    assert not ledger.moved(A)


def test_a_move_is_settled_when_a_watch_shows_it(ledger: Ledger) -> None:
    ledger.observe(A, on_card(0, 10))
    ledger.move(A, on_card(1, 20))
    assert ledger.observe(A, on_card(1, 20)) is None
    assert free(ledger)[0] == (FULL, 100, True)


def test_a_pod_that_was_not_moved_after_all_holds_what_it_held(ledger: Ledger) -> None:
    ledger.observe(A, on_card(0, 100))
    assert not ledger.stayed(A, on_card(0, 100), version=8), "it does not move"
    assert ledger.move(A, on_card(1, 100), version=7) is None
    assert not ledger.stayed(A, on_card(0, 100), version=7), "the move may still be stored"
    assert not ledger.stayed(A, on_card(1, 100), version=8), "it was moved"
    assert not ledger.stayed(A, on_card(0, 101), version=8), "more than it has"
    assert not ledger.stayed(A, on_card(0, 100, node="n2"), version=8), "a card of which it has nothing"
    assert ledger.stayed(A, on_card(0, 100), version=8)
    entry = ledger.entry(A)
    assert entry is not None
    assert (entry.placement, entry.moving) == (on_card(0, 100), False)
    assert [memory for memory, _, _ in free(ledger)] == [FULL - 100, FULL]
    assert not ledger.stayed(B, on_card(0, 100), version=8), "it holds nothing"


def test_a_move_of_which_no_version_is_known_is_not_over(ledger: Ledger) -> None:
    ledger.observe(A, on_card(0, 100))
    assert ledger.move(A, on_card(1, 100)) is None
    assert not ledger.stayed(A, on_card(0, 100), version=8)


def test_a_move_that_names_the_first_version_is_over_with_the_second(ledger: Ledger) -> None:
    ledger.observe(A, on_card(0, 100))
    assert ledger.move(A, on_card(1, 100), version=1) is None
    assert ledger.stayed(A, on_card(0, 100), version=2)


def test_versions_up_to_the_one_that_a_move_names_may_show_any_placement(ledger: Ledger) -> None:
    """Whatever it was before; the write of the move makes a later version."""
    ledger.observe(A, on_card(0, 100))
    assert not ledger.before_move(A, on_card(1, 5000), version=1), "it does not move"
    assert ledger.move(A, on_card(1, 100), version=7) is None
    for settle in (lambda: False, lambda: ledger.moved(A)):
        settle()
        for version in (1, 7):
            assert ledger.before_move(A, on_card(1, 5000), version=version)
        for version in (0, 8):
            assert not ledger.before_move(A, on_card(1, 5000), version=version)
    assert not ledger.before_move(B, on_card(1, 5000), version=7), "it holds nothing"


def test_both_placements_may_be_shown_while_the_write_of_a_move_is_under_way(ledger: Ledger) -> None:
    ledger.observe(A, on_card(0, 100))
    assert ledger.move(A, on_card(1, 100), version=7) is None
    for index in (0, 1):
        assert ledger.before_move(A, on_card(index, 100), version=8)
    ledger.moved(A)
    assert not ledger.before_move(A, on_card(0, 100), version=8)


def test_a_move_that_is_written_again_counts_from_the_later_version(ledger: Ledger) -> None:
    ledger.observe(A, on_card(0, 100))
    assert ledger.move(A, on_card(1, 100), version=7) is None
    assert ledger.moved(A, version=9)
    assert ledger.before_move(A, on_card(0, 100), version=9)
    assert not ledger.before_move(A, on_card(0, 100), version=10)


def test_where_no_move_names_a_version_none_is_before_it(ledger: Ledger) -> None:
    ledger.observe(A, on_card(0, 100))
    assert ledger.move(A, on_card(1, 100)) is None
    assert ledger.moved(A)
    assert not ledger.before_move(A, on_card(0, 100), version=1)


def test_a_pod_moves_to_reported_cards_only(ledger: Ledger) -> None:
    ledger.observe(A, on_card(0, 10))
    assert ledger.move(A, on_card(5, 10)) == Refusal(Code.NO_ROOM, "card GPU-n1-5 is not reported by its node")
    assert ledger.move(B, on_card(0, 10)) == Refusal(Code.GONE, "the pod holds no placement")
    ledger.put_card(N1, card("n1", 1, healthy=False))
    assert ledger.move(A, on_card(1, 10)) is None, "kubelet gave it a card that is sick by now"


def test_a_refused_move_leaves_the_entry_as_it_was(ledger: Ledger, clock: Clock) -> None:
    ledger.observe(A, on_card(0, 10))
    before = ledger.entry(A)
    clock.now += 5
    assert ledger.move(A, on_card(1, FULL + 1)) is not None
    assert ledger.entry(A) == before


# ── owners and ranks ─────────────────────────────────────────────────────────────────────────────────────────────────

TEAM = QuotaOwner("team")


def test_a_hold_is_counted_for_its_owner(ledger: Ledger) -> None:
    assert ledger.assume(A, on_card(0, FULL // 2), TEAM) is None
    assert ledger.observe(B, on_card(1, FULL // 2), TEAM) is None
    assert ledger.usage.held("team") == {("", "Tesla-V100"): 100}
    entry = ledger.entry(A)
    assert entry is not None
    assert entry.owner == TEAM
    ledger.observe(A, on_card(0, FULL // 2))
    entry = ledger.entry(A)
    assert entry is not None
    assert entry.owner == TEAM, "a watch that does not say keeps what is known"
    ledger.release(A)
    ledger.release(B)
    assert ledger.usage.held("team") == {}


def test_a_hold_is_counted_by_class_and_by_the_labels_of_its_node(ledger: Ledger) -> None:
    ledger.usage.put_place(N1, NodePlace("red", "Volta"))
    owner = QuotaOwner("team", ((ContainerName("main"), "small"),))
    ledger.observe(A, on_card(0, FULL // 2), owner)
    assert dict(ledger.usage.rows()) == {Key("team", "small", "Tesla-V100", "Volta", "red"): 50}


def test_quotas_and_arrays_know_the_cards_that_are_there(ledger: Ledger) -> None:
    assert ledger.arrays.models == ["Tesla-V100"]
    assert set(ledger.usage.kinds()) == {CardKind("", "Tesla-V100", MiB(FULL))}
    assert ledger.bounds.somewhere(request(by_card(2)), None)
    for node in ("n1", "n2"):
        for index in range(2):
            ledger.drop_card(card_uuid(node, index))
    assert set(ledger.usage.kinds()) == set()
    assert not ledger.bounds.somewhere(request(by_card(2)), None)


def test_what_was_assumed_elsewhere_keeps_its_owner(ledger: Ledger) -> None:
    ledger.assume(A, on_card(0, 10), TEAM)
    ledger.observe(A, on_card(1, 10))
    entry = ledger.entry(A)
    assert entry is not None
    assert (entry.owner, entry.state) == (TEAM, EntryState.BOUND)


def test_a_conflict_that_is_settled_keeps_its_owner_and_its_rank(ledger: Ledger) -> None:
    in_use(ledger, "n1", FULL)
    assert ledger.observe(A, on_card(0, 10), TEAM, Rank(7)) is not None
    ledger.release(PodUID("filler-n1-0"))
    assert ledger.observe(A, on_card(0, 10)) is None
    entry = ledger.entry(A)
    assert entry is not None
    assert (entry.owner, entry.rank) == (TEAM, 7)


def test_a_pod_has_no_rank_until_a_watch_shows_it_bound(ledger: Ledger, clock: Clock) -> None:
    ledger.assume(A, on_card(0, 10))
    entry = ledger.entry(A)
    assert entry is not None
    assert entry.rank == LAST
    clock.now += 3
    ledger.observe(B, on_card(0, 10), rank=Rank(5))
    entry = ledger.entry(B)
    assert entry is not None
    assert (entry.rank, entry.since) == (5, clock.now)


def test_a_quota_refuses_a_hold_and_a_move_that_would_pass_it(ledger: Ledger) -> None:
    ledger.usage.limit(Quota({"team": NamespaceQuota(limits=(QuotaLimit("V100", 50),))}))
    assert ledger.assume(A, on_card(0, FULL), TEAM) == Refusal(
        Code.QUOTA, "namespace team may hold 0.5 V100, holds 0, and this pod takes 1"
    )
    assert ledger.assume(A, on_card(0, FULL)) is None, "of nobody"
    ledger.release(A)
    assert ledger.assume(A, on_card(0, FULL // 2), TEAM) is None
    assert ledger.move(A, on_card(1, FULL)) == Refusal(
        Code.QUOTA, "namespace team may hold 0.5 V100, holds 0, and this pod takes 1"
    )
    assert ledger.move(A, on_card(1, FULL // 2)) is None
    assert ledger.observe(B, on_card(0, FULL // 2), TEAM) is None, "what runs stays"
    ledger.usage.limit(Quota({"team": NamespaceQuota(limits=(QuotaLimit("V100", 1),))}))
    assert ledger.move(B, on_card(0, FULL // 2)) is None, "as much as before is not refused"


# ── sick cards ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_pods_of_a_sick_card_are_charged_and_not_more_than_it_has(ledger: Ledger) -> None:
    ledger.put_card(N1, card("n1", 0, healthy=False))
    assert ledger.observe(A, on_card(0, 10_000)) is None
    refusal = ledger.observe(B, on_card(0, 10_000))
    assert refusal is not None
    assert refusal.code is Code.NO_ROOM
    assert ledger.misplaced(on_card(0, 1, node="n1")) is None
    wrong = placement(given("main", piece(FIRST, 1)), node="n2")
    assert ledger.misplaced(wrong) == Refusal(Code.MALFORMED, "card GPU-n1-0 is on n1, not on n2")


def test_the_generation_grows_when_a_card_takes_a_place_and_stays_when_none_had_one(ledger: Ledger) -> None:
    before = ledger.generation
    ledger.put_card(N1, card("n1", 5, healthy=False))
    ledger.put_card(N1, card("n1", 5, memory=0))
    ledger.drop_card(card_uuid("n1", 5))
    assert ledger.generation == before
    ledger.put_card(N1, card("n1", 5))
    assert ledger.generation == before + 1
    ledger.drop_card(card_uuid("n1", 5))
    assert ledger.generation == before + 2
