"""What namespaces hold of the cards, by class, model and pool, and which hold would pass a quota."""

import pytest
from msgspec import structs

from fractile.ledger.usage import Key, LedgerUsage, class_on
from fractile.model.card import Card
from fractile.model.placement import Charge, Placement, Slice, charges
from fractile.model.quota import NOWHERE, UNLIMITED, NamespaceQuota, NodePlace, Quota, QuotaLimit, QuotaOwner
from fractile.model.refusal import Code, Refusal
from fractile.model.request import PodRequest
from fractile.model.units import CardUUID, ContainerName, MiB, NodeName, Percent
from fractile.policy.quota import Allowance, CardKind
from tests.builders import by_card, by_memory, card, card_uuid, given, piece, placement, request

N1, N2 = NodeName("n1"), NodeName("n2")
TEAM, OTHER = QuotaOwner("team"), QuotaOwner("other")
FIRST, SECOND = card_uuid("n1", 0), card_uuid("n1", 1)
T4 = ("", "T4")
TWO = Quota({"team": NamespaceQuota(limits=(QuotaLimit("T4", 200),))})


def small(index: int = 0, *, model: str = "T4", memory: int = 1000) -> Card:
    return card("n1", index, model=model, memory=memory)


@pytest.fixture
def usage() -> LedgerUsage:
    """Node n1 with two T4 of 1000 MiB."""
    found = LedgerUsage()
    for index in range(2):
        found.put_card(N1, small(index))
    return found


def hold(usage: LedgerUsage, placed: Placement, owner: QuotaOwner = TEAM, sign: int = 1) -> None:
    usage.charge(owner, placed, charges(placed), sign)


def part(memory: int, cores: int = 0, of: CardUUID = FIRST) -> Placement:
    return placement(given("main", piece(of, memory, cores)))


def rows(usage: LedgerUsage) -> dict[Key, int]:
    return dict(usage.rows())


def key(namespace: str = "team", *, device_class: str = "", model: str = "T4", label: str = "", pool: str = "") -> Key:
    return Key(namespace, device_class, model, label, pool)


# ── what is counted ──────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_hold_counts_the_larger_of_its_parts_rounded_up(usage: LedgerUsage) -> None:
    hold(usage, part(301, 20))
    assert rows(usage) == {key(): 31}
    hold(usage, part(1, 50), OTHER)
    assert rows(usage) == {key(): 31, key("other"): 50}
    assert (usage.held("team"), usage.held("other"), usage.held("nobody")) == ({T4: 31}, {T4: 50}, {})


def test_holds_of_one_namespace_add_up_and_are_taken_back(usage: LedgerUsage) -> None:
    hold(usage, part(300))
    hold(usage, part(200, of=SECOND))
    assert usage.held("team") == {T4: 50}
    hold(usage, part(300), sign=-1)
    assert usage.held("team") == {T4: 20}
    hold(usage, part(200, of=SECOND), sign=-1)
    assert (usage.held("team"), rows(usage)) == ({}, {})
    hold(usage, part(200, of=SECOND))
    assert usage.held("team") == {T4: 20}


def test_the_same_hold_twice_is_taken_back_one_at_a_time(usage: LedgerUsage) -> None:
    for _ in range(2):
        hold(usage, part(300))
    hold(usage, part(300), sign=-1)
    assert usage.held("team") == {T4: 30}


def test_other_devices_are_not_counted(usage: LedgerUsage) -> None:
    shared = Charge(FIRST, MiB(0), Percent(0), shares=1)
    memory = Charge(SECOND, MiB(500), Percent(0))
    usage.charge(TEAM, part(1), [shared, memory], 1)
    assert usage.held("team") == {T4: 50}
    usage.charge(TEAM, part(1), [shared, memory], -1)
    assert usage.held("team") == {}


def test_a_hold_of_a_card_that_is_not_known_counts_once_it_is_reported() -> None:
    usage = LedgerUsage()
    hold(usage, part(100))
    hold(usage, part(100), sign=-1)
    hold(usage, part(300))
    assert rows(usage) == {}
    usage.put_card(N1, small())
    assert rows(usage) == {key(): 30}


def test_a_card_that_is_gone_counts_as_it_was_until_nobody_holds_it(usage: LedgerUsage) -> None:
    hold(usage, part(300))
    usage.drop_card(FIRST)
    assert rows(usage) == {key(): 30}
    hold(usage, part(300), sign=-1)
    hold(usage, part(300))
    assert rows(usage) == {}, "the card is forgotten"


def test_a_card_that_nobody_holds_is_forgotten_when_it_is_gone(usage: LedgerUsage) -> None:
    usage.drop_card(FIRST)
    usage.drop_card(CardUUID("never seen"))
    hold(usage, part(300))
    assert rows(usage) == {}


def test_a_card_of_another_size_or_model_counts_as_it_is_now(usage: LedgerUsage) -> None:
    hold(usage, part(300))
    usage.put_card(N1, small(memory=2000))
    assert rows(usage) == {key(): 15}
    usage.put_card(N1, small(memory=2000, model="A10"))
    assert rows(usage) == {key(model="A10"): 15}
    assert usage.held("team") == {("", "A10"): 15}


def test_a_card_without_memory_counts_nothing(usage: LedgerUsage) -> None:
    hold(usage, part(300))
    usage.put_card(N1, small(memory=0))
    assert rows(usage) == {}


def test_cards_and_holds_that_are_gone_leave_nothing_behind(usage: LedgerUsage) -> None:
    hold(usage, part(300))
    usage.put_card(N2, small())
    hold(usage, part(300), sign=-1)
    for uuid in (FIRST, SECOND):
        usage.drop_card(uuid)
    assert (usage._on, usage._cards, usage._holds) == ({}, {}, {})  # pyright: ignore[reportPrivateUsage]  # a leak shows nowhere else


# ── places ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_what_is_held_is_counted_by_the_labels_of_its_node(usage: LedgerUsage) -> None:
    assert usage.place("n1") == NOWHERE
    hold(usage, part(300))
    usage.put_place(N1, NodePlace("red", "Tesla"))
    assert usage.place("n1") == NodePlace("red", "Tesla")
    assert rows(usage) == {key(label="Tesla", pool="red"): 30}
    assert usage.held("team") == {("Tesla", "T4"): 30}
    usage.put_place(N1, NodePlace("blue"))
    assert rows(usage) == {key(pool="blue"): 30}
    usage.put_place(N1, NOWHERE)
    assert rows(usage) == {key(): 30}
    assert usage.place("n1") == NOWHERE


def test_labels_of_a_node_count_for_its_cards_only(usage: LedgerUsage) -> None:
    usage.put_card(N2, card("n2", 0, model="T4", memory=1000))
    hold(usage, part(300))
    hold(usage, part(100, of=card_uuid("n2", 0)))
    usage.put_place(N2, NodePlace("red"))
    usage.put_place(NodeName("without cards"), NodePlace("blue"))
    assert rows(usage) == {key(): 30, key(pool="red"): 10}


def test_a_card_that_moved_is_counted_at_its_new_node(usage: LedgerUsage) -> None:
    usage.put_place(N2, NodePlace("red"))
    hold(usage, part(300))
    usage.put_card(N2, small())
    assert rows(usage) == {key(pool="red"): 30}
    usage.put_place(N1, NodePlace("blue"))
    assert rows(usage) == {key(pool="red"): 30}


def test_the_kinds_are_those_of_the_cards_that_are_there(usage: LedgerUsage) -> None:
    usage.put_card(N2, card("n2", 0, model="A10", memory=2000))
    t4, a10 = CardKind("", "T4", MiB(1000)), CardKind("", "A10", MiB(2000))
    assert set(usage.kinds()) == {t4, a10}
    usage.drop_card(FIRST)
    assert set(usage.kinds()) == {t4, a10}
    usage.drop_card(SECOND)
    assert set(usage.kinds()) == {a10}
    usage.put_place(N2, NodePlace("", "Ampere"))
    assert set(usage.kinds()) == {CardKind("Ampere", "A10", MiB(2000))}
    hold(usage, part(1, of=card_uuid("n2", 0)))
    usage.drop_card(card_uuid("n2", 0))
    assert set(usage.kinds()) == set(), "it is held, and not there"


def test_the_smallest_card_is_a_kind_and_one_without_memory_is_not() -> None:
    usage = LedgerUsage()
    usage.put_card(N1, small(memory=1))
    usage.put_card(N1, small(1, memory=0))
    assert set(usage.kinds()) == {CardKind("", "T4", MiB(1))}


def test_the_version_grows_when_cards_come_or_go_or_labels_change(usage: LedgerUsage) -> None:
    seen = [usage.version]
    for change in (
        lambda: usage.put_card(N1, small(2)),
        lambda: usage.put_place(N1, NodePlace("red")),
        lambda: usage.put_place(N1, NOWHERE),
        lambda: usage.drop_card(FIRST),
        lambda: usage.put_card(N1, small()),
    ):
        change()
        seen.append(usage.version)
    assert seen == sorted(set(seen))


def test_the_version_stays_when_nothing_is_new(usage: LedgerUsage) -> None:
    usage.put_place(N1, NodePlace("red"))
    before = usage.version
    usage.put_card(N1, small())
    usage.put_card(N1, structs.replace(small(), index=9))
    usage.put_place(N1, NodePlace("red"))
    usage.put_place(N2, NOWHERE)
    hold(usage, part(300))
    assert usage.version == before


# ── classes ──────────────────────────────────────────────────────────────────────────────────────────────────────────

BY_CLASS = QuotaOwner("team", ((ContainerName("one"), "small"), (ContainerName("two"), "large")))


def test_a_hold_counts_for_the_class_by_which_its_container_asked(usage: LedgerUsage) -> None:
    hold(usage, placement(given("one", piece(FIRST, 300))), BY_CLASS)
    hold(usage, placement(given("two", piece(FIRST, 200))), BY_CLASS)
    hold(usage, placement(given("three", piece(FIRST, 100))), BY_CLASS)
    assert rows(usage) == {key(device_class="small"): 30, key(device_class="large"): 20, key(): 10}
    assert usage.held("team") == {T4: 60}
    hold(usage, placement(given("two", piece(FIRST, 200))), BY_CLASS, -1)
    assert rows(usage) == {key(device_class="small"): 30, key(): 10}


@pytest.mark.parametrize(
    ("one", "two", "wanted"),
    [
        pytest.param(piece(FIRST, 300), piece(FIRST, 200), "small", id="memory"),
        pytest.param(piece(FIRST, 300, 1), piece(FIRST, 300, 2), "large", id="cores"),
        pytest.param(piece(FIRST, 300), piece(SECOND, 900), "small", id="another card"),
        pytest.param(piece(FIRST, 300), piece(FIRST, 300), "small", id="the later name"),
    ],
)
def test_of_several_classes_that_of_the_largest_part_of_the_card_counts(one: Slice, two: Slice, wanted: str) -> None:
    placed = placement(given("one", one), given("two", two))
    assert class_on(BY_CLASS, placed, FIRST) == wanted


def test_a_card_of_which_the_placement_says_nothing_is_of_no_class() -> None:
    assert class_on(BY_CLASS, part(1), SECOND) == ""
    assert class_on(TEAM, part(1), FIRST) == ""


# ── quotas ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def asked(count: int = 1) -> PodRequest:
    return structs.replace(request(by_card(count)), namespace="team")


def test_without_quotas_nothing_bounds_a_pod(usage: LedgerUsage) -> None:
    assert usage.quota == UNLIMITED
    assert usage.allowance(asked()) is None
    assert usage.refuses(TEAM, charges(part(1000, 100))) is None


def test_the_quota_leaves_what_is_not_held(usage: LedgerUsage) -> None:
    usage.limit(TWO)
    assert usage.quota == TWO
    assert usage.allowance(asked(2)) is None
    hold(usage, part(500))
    left = usage.allowance(asked(2))
    assert isinstance(left, Allowance)
    assert (left.tight, left.left) == (True, ((QuotaLimit("T4", 200), 150),))
    hold(usage, part(1000, of=SECOND), OTHER)
    assert usage.allowance(asked(2)) == left, "what others hold does not count"


def test_what_a_namespace_would_hold_besides_counts_too(usage: LedgerUsage) -> None:
    usage.limit(TWO)
    hold(usage, part(500))
    refused = usage.allowance(asked(), {T4: 100, ("", "A10"): 50})
    assert isinstance(refused, Refusal)
    assert refused.message == "namespace team may hold 2 T4, holds 1.5, and this pod takes 1"
    assert usage.allowance(asked(), {T4: 50}) is None
    assert usage.allowance(asked(), {("", "A10"): 500}) is None


@pytest.mark.parametrize(("more", "fits"), [(100, True), (101, False)])
def test_what_a_namespace_would_hold_counts_exactly(usage: LedgerUsage, more: int, *, fits: bool) -> None:
    usage.limit(TWO)
    assert (usage.allowance(asked(), {T4: more}) is None) is fits
    hold(usage, part(1000))
    usage.limit(Quota({"team": NamespaceQuota(limits=(QuotaLimit("T4", 200), QuotaLimit("A10", 100)))}))
    usage.put_card(N2, card("n2", 0, model="A10", memory=1000))
    assert usage.allowance(asked(), {("", "A10"): 0}) is None


def test_which_limits_name_a_model_is_found_out_once(usage: LedgerUsage) -> None:
    usage.limit(TWO)
    usage.allowance(asked())
    known = usage._named["team"]  # pyright: ignore[reportPrivateUsage]  # kept names are about time alone
    assert known == {T4: (0,)}
    usage.allowance(asked())
    assert usage._named["team"] is known  # pyright: ignore[reportPrivateUsage]  # kept names are about time alone
    usage.limit(TWO)
    assert usage._named == {}  # pyright: ignore[reportPrivateUsage]  # a leak shows nowhere else


def test_a_quota_is_what_it_was_told_last(usage: LedgerUsage) -> None:
    usage.limit(TWO)
    hold(usage, part(1000))
    assert usage.allowance(asked()) is None
    usage.limit(Quota({"team": NamespaceQuota(limits=(QuotaLimit("A10", 200),))}))
    refused = usage.allowance(asked())
    assert isinstance(refused, Refusal)
    assert refused.message == "namespace team may hold A10 only, but this card is T4"
    usage.limit(UNLIMITED)
    assert usage.allowance(asked()) is None


def test_a_namespace_without_limits_and_one_without_a_quota_are_not_bounded(usage: LedgerUsage) -> None:
    usage.limit(Quota({"team": NamespaceQuota(), "third": NamespaceQuota(limits=(QuotaLimit("T4", 1),))}))
    assert usage.allowance(asked()) is None
    assert usage.allowance(structs.replace(asked(), namespace="other")) is None
    assert isinstance(usage.allowance(structs.replace(asked(), namespace="third")), Refusal)


def test_a_hold_that_would_pass_the_quota_is_refused(usage: LedgerUsage) -> None:
    usage.limit(TWO)
    hold(usage, part(500))
    both = placement(given("main", piece(FIRST, 500), piece(SECOND, 1000)))
    assert usage.refuses(TEAM, charges(both)) is None
    more = placement(given("main", piece(FIRST, 501), piece(SECOND, 1000)))
    assert usage.refuses(TEAM, charges(more)) == Refusal(
        Code.QUOTA, "namespace team may hold 2 T4, holds 0.5, and this pod takes 1.51"
    )
    assert usage.refuses(OTHER, charges(more)) is None


def test_what_is_given_back_for_a_hold_is_not_refused_again(usage: LedgerUsage) -> None:
    usage.limit(Quota({"team": NamespaceQuota(limits=(QuotaLimit("T4", 50),))}))
    before, same, more = charges(part(900)), charges(part(900, of=SECOND)), charges(part(901))
    assert usage.refuses(TEAM, same, before=before) is None
    assert usage.refuses(TEAM, more, before=before) is not None
    assert usage.refuses(TEAM, same) is not None


def test_a_quota_may_name_the_label_of_a_node(usage: LedgerUsage) -> None:
    usage.put_place(N1, NodePlace("", "Turing"))
    usage.limit(Quota({"team": NamespaceQuota(limits=(QuotaLimit("Turing", 50),))}))
    assert usage.refuses(TEAM, charges(part(500))) is None
    assert usage.refuses(TEAM, charges(part(501))) is not None


def test_devices_and_cards_that_are_not_known_pass_no_quota(usage: LedgerUsage) -> None:
    usage.limit(Quota({"team": NamespaceQuota(limits=(QuotaLimit("T4", 0),))}))
    assert usage.refuses(TEAM, charges(part(1, of=CardUUID("unknown")))) is None
    assert usage.refuses(TEAM, [Charge(FIRST, MiB(0), Percent(0), shares=1)]) is None
    assert usage.refuses(TEAM, charges(part(1))) is not None


def test_a_request_for_a_part_is_bounded_as_a_whole_card_is(usage: LedgerUsage) -> None:
    usage.limit(Quota({"team": NamespaceQuota(limits=(QuotaLimit("T4", 50),))}))
    half = structs.replace(request(by_memory(500)), namespace="team")
    assert usage.allowance(half) is None
    hold(usage, part(10))
    assert isinstance(usage.allowance(half), Refusal)
