"""The ledger against a naive model: dictionaries, and sums from scratch at every question.

What a pod takes of a card is worked out here too, moment by moment, and not with the product's own arithmetic.
"""

import random
from collections.abc import Iterable
from typing import TypeVar

import msgspec
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from fractile.ledger.ledger import EntryState, Ledger
from fractile.model.card import Card
from fractile.model.placement import Placement
from fractile.model.refusal import Code, Refusal
from fractile.model.request import Role
from fractile.model.units import CardUUID, MiB, NodeName, PodUID
from tests.builders import Clock, given, piece, placement

NODES = [NodeName("n1"), NodeName("n2")]
CARDS = [CardUUID(f"GPU-{i}") for i in range(4)]  # the first two are at home on n1
UIDS = [PodUID(f"u{i}") for i in range(6)]
EXPIRY = 34.0
SLOTS = 3
T = TypeVar("T")


class Use(msgspec.Struct):
    """What a pod takes of one card at its worst moments."""

    memory: int = 0
    cores: int = 0
    hungry: bool = False  # with somebody who was promised no cores, while the most cores are promised
    slots: int = 0


class Hold(msgspec.Struct):
    """One pod in the model. ``before``: where it was, as long as it is not known to have moved."""

    state: EntryState
    placement: Placement
    since: float
    before: list[Placement] = msgspec.field(default_factory=list[Placement])


def use(placement: Placement, card: CardUUID) -> Use | None:
    """Init containers run one after the other beside the sidecars before them, then all others together."""
    moments: list[list[int]] = []
    stays: list[int] = []
    for index, container in enumerate(placement.containers):
        moments.append([*stays, index])
        if container.role is not Role.INIT:
            stays.append(index)
    most, found = Use(), False
    for moment in moments:
        now, touched = Use(), False
        for container in (placement.containers[i] for i in moment):
            own = [s for s in container.slices if s.card == card]
            if own:
                touched = True
                now.memory += sum(s.memory for s in own)
                now.cores += sum(s.cores for s in own)
                now.slots += sum(s.slots for s in own)
                now.hungry |= not any(s.cores for s in own)
        found |= touched
        if touched:
            cores = max((most.cores, most.hungry), (now.cores, now.hungry))
            most = Use(max(most.memory, now.memory), *cores, max(most.slots, now.slots))
    return most if found else None


def _home(card: CardUUID) -> NodeName:
    return NODES[CARDS.index(card) // 2]


def _placement(code: tuple[int, int, int]) -> Placement:
    """A few shapes: memory on one card, on two, a whole card, an init container, a card of the wrong node."""
    shape, card, amount = code
    first, second = CARDS[card], CARDS[card ^ 1]
    match shape:
        case 0:
            containers = [given("main", piece(second, amount)), given("more", piece(first, amount + 1))]
        case 1:
            containers = [given("main", piece(first, 20, 100))]
        case 2:
            containers = [given("warm", piece(first, amount + 2), role=Role.INIT), given("main", piece(first, amount))]
        case 10:
            containers = [given("main", piece(first, 1, (30, 50, 70, 100)[amount % 4]))]
        case 12:  # slots: two containers, one of them beside an init container
            containers = [
                given("warm", piece(first, 1, 0, 1), piece(second, 1, 0, 1), role=Role.INIT),
                given("main", piece(first, 1, 0, 1)),
                given("more", piece(first, 1, 0, 1)),
            ]
        case 13:
            containers = [given("main", piece(first, 1, 10, 1 + amount % SLOTS))]
        case 11:  # after the init container at most 99 % beside the sidecar that was promised nothing
            containers = [
                given("log", piece(first, 1), role=Role.SIDECAR),
                given("warm", piece(first, amount, 40), role=Role.INIT),
                given("main", piece(first, 1, 11 * amount)),
            ]
        case 3:
            return placement(given("main", piece(first, amount)), node=NODES[1])
        case _:
            containers = [given("main", piece(first, amount, 0, shape % 3))]
    return placement(*containers, node=_home(first))


cards = st.sampled_from(CARDS)
uids = st.sampled_from(UIDS)
placements = st.tuples(st.integers(0, 13), st.integers(0, 3), st.integers(1, 9)).map(_placement)


class LedgerMachine(RuleBasedStateMachine):
    """Every public transition, in any order, with late and repeated ones among them."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = Clock()
        self.ledger = Ledger(self.clock, slots=SLOTS)
        self.cards: dict[CardUUID, tuple[NodeName, Card]] = {}  # that take pods
        self.reported: dict[CardUUID, tuple[NodeName, Card]] = {}  # those that are sick too
        self.holds: dict[PodUID, Hold] = {}
        self.conflicts: dict[PodUID, Placement] = {}
        self.in_debt: set[CardUUID] = set()  # cards that came, or shrank, under pods that were charged already

    # ── the model ────────────────────────────────────────────────────────────────────────────────────────────────

    def held(self, card: CardUUID, *, without: PodUID | None = None) -> list[Use]:
        return [u for uid, h in self.holds.items() if uid != without and (u := self.of(h, card)) is not None]

    def of(self, hold: Hold, card: CardUUID) -> Use | None:
        """The larger, where it is not known which of two placements the pod has."""
        found = [u for p in (hold.placement, *hold.before) if (u := use(p, card)) is not None]
        if not found:
            return None
        memory, cores, slots = (max(getattr(u, name) for u in found) for name in ("memory", "cores", "slots"))
        return Use(memory, cores, any(u.hungry for u in found), slots)

    def used(self, card: CardUUID, *, without: PodUID | None = None) -> tuple[int, int, int]:
        found = self.held(card, without=without)
        return sum(u.memory for u in found), sum(u.cores for u in found), len(found)

    def slots(self, card: CardUUID, *, without: PodUID | None = None) -> int:
        return sum(u.slots for u in self.held(card, without=without))

    def starving(self, card: CardUUID, *more: Use, without: PodUID | None = None) -> bool:
        """Whether somebody who was promised no cores is where all of them are promised."""
        all_of_them = [*self.held(card, without=without), *more]
        return any(u.hungry for u in all_of_them) and sum(u.cores for u in all_of_them) >= 100

    def overfull(self, card: CardUUID) -> bool:
        """Whether more of it is promised than it has."""
        memory, cores, _ = self.used(card)
        too_much = memory > self.reported[card][1].memory or cores > 100 or self.slots(card) > SLOTS
        return too_much or self.starving(card)

    def misplaced(self, wanted: Placement) -> bool:
        return any(c in self.reported and self.reported[c][0] != wanted.node for c in self.touched(wanted))

    def touched(self, wanted: Placement) -> set[CardUUID]:
        return {s.card for c in wanted.containers for s in c.slices}

    def verdict(self, wanted: Placement, *, without: PodUID | None = None) -> Code | None:
        for card in CARDS:
            asked = use(wanted, card)
            if card not in self.reported or asked is None:
                continue
            memory, cores, _ = self.used(card, without=without)
            if memory + asked.memory > self.reported[card][1].memory or cores + asked.cores > 100:
                return Code.NO_ROOM
            if self.starving(card, asked, without=without):
                return Code.NO_ROOM
            if self.slots(card, without=without) + asked.slots > SLOTS:
                return Code.NO_ROOM
        return None

    # ── inventory ────────────────────────────────────────────────────────────────────────────────────────────────

    @initialize()
    def all_cards(self) -> None:
        for card in CARDS:
            self.put_card(card, 20, healthy=True)

    @rule(card=cards, memory=st.sampled_from([0, 12, 20, 20]), healthy=st.sampled_from([True, True, True, False]))
    def put_card(self, card: CardUUID, memory: int, *, healthy: bool) -> None:
        node = _home(card)
        reported = Card(uuid=card, index=CARDS.index(card) % 2, model="m", memory=MiB(memory), healthy=healthy)
        self.ledger.put_card(node, reported)
        self.cards.pop(card, None)
        self.reported.pop(card, None)
        if memory:
            self.reported[card] = node, reported
        if memory and healthy:
            self.cards[card] = node, reported
            if self.overfull(card):
                self.in_debt.add(card)

    @rule(card=cards)
    def drop_card(self, card: CardUUID) -> None:
        self.ledger.drop_card(card)
        self.cards.pop(card, None)
        self.reported.pop(card, None)

    # ── transitions ──────────────────────────────────────────────────────────────────────────────────────────────

    @rule(uid=uids, wanted=placements)
    def assume(self, uid: PodUID, wanted: Placement) -> None:
        wrong = Code.MALFORMED if self.misplaced(wanted) else self.verdict(wanted)
        expected = Code.ELSEWHERE if uid in self.holds else wrong
        assert code_of(self.ledger.assume(uid, wanted)) == expected
        if expected is None:
            self.holds[uid] = Hold(EntryState.ASSUMED, wanted, self.clock.now)
            self.conflicts.pop(uid, None)

    @rule(uid=uids)
    def confirm(self, uid: PodUID) -> None:
        self.ledger.confirm(uid)
        if uid in self.holds:
            self.holds[uid].state = EntryState.BOUND

    @rule(uid=uids)
    def forget(self, uid: PodUID) -> None:
        self.ledger.forget(uid)
        if uid in self.holds and self.holds[uid].state is EntryState.ASSUMED:
            del self.holds[uid]

    @rule(uid=uids, seen=placements)
    def observe(self, uid: PodUID, seen: Placement) -> None:
        hold = self.holds.get(uid)
        refusal = self.ledger.observe(uid, seen)
        if hold is not None and hold.placement == seen:
            assert refusal is None
            hold.state = EntryState.BOUND
            hold.before = []
        elif hold is not None and hold.state is EntryState.BOUND:
            assert code_of(refusal) is Code.MALFORMED
        else:
            self.holds.pop(uid, None)
            assert code_of(refusal) == self.verdict(seen)
            if refusal is None:
                self.holds[uid] = Hold(EntryState.BOUND, seen, self.clock.now)
                self.conflicts.pop(uid, None)
            else:
                self.conflicts[uid] = seen

    @rule(uid=uids)
    def observe_again(self, uid: PodUID) -> None:
        if uid in self.holds:
            self.observe(uid, self.holds[uid].placement)

    @rule(uid=uids, wanted=placements)
    def move(self, uid: PodUID, wanted: Placement) -> None:
        expected = Code.GONE
        if uid in self.holds:
            expected = self.verdict(wanted, without=uid)
            if self.misplaced(wanted):
                expected = Code.MALFORMED
            if self.touched(wanted) - self.reported.keys():
                expected = Code.NO_ROOM
        assert code_of(self.ledger.move(uid, wanted)) == expected
        if expected is None:
            hold = self.holds[uid]
            hold.before.append(hold.placement)
            hold.placement, hold.since = wanted, self.clock.now
            self.in_debt |= {card for card in self.cards if self.overfull(card)}  # where two shapes meet on one card

    @rule(uid=uids)
    def moved(self, uid: PodUID) -> None:
        hold = self.holds.get(uid)
        assert self.ledger.moved(uid) == bool(hold and hold.before)
        if hold is not None:
            hold.before = []

    @rule(uid=uids)
    def release(self, uid: PodUID) -> None:
        entry = self.ledger.release(uid)
        hold = self.holds.pop(uid, None)
        self.conflicts.pop(uid, None)
        assert (entry and entry.placement) == (hold and hold.placement)

    @rule(seconds=st.sampled_from([1.0, 10.0, 40.0]))
    def time_passes(self, seconds: float) -> None:
        self.clock.now += seconds

    @rule()
    def ask_for_the_overdue(self) -> None:
        limit = self.clock.now - EXPIRY
        old = {uid for uid, h in self.holds.items() if h.state is EntryState.ASSUMED and h.since <= limit}
        assert set(self.ledger.overdue(EXPIRY)) == old
        for uid in old:
            self.ledger.renew(uid)
            self.holds[uid].since = self.clock.now
        assert self.ledger.overdue(EXPIRY) == []

    # ── what must hold after every step ──────────────────────────────────────────────────────────────────────────

    @invariant()
    def the_running_totals_are_the_sum_of_the_entries(self) -> None:
        assert self.ledger.audit() == []

    @invariant()
    def nothing_is_promised_twice(self) -> None:
        for card in CARDS:
            if card in self.cards and not self.overfull(card):
                self.in_debt.discard(card)
        states = [c for n in NODES for s in [self.ledger.node(n)] if s is not None for c in s.cards]
        assert {c.uuid for c in states} == set(self.cards)
        for state in states:
            memory, cores, pods = self.used(state.uuid)
            assert state.free_memory == self.cards[state.uuid][1].memory - memory
            assert (state.free_cores, state.idle) == (100 - cores, pods == 0)
            assert (state.slots, state.free_slots) == (SLOTS, SLOTS - self.slots(state.uuid))
            assert state.coreless == any(u.hungry for u in self.held(state.uuid))
            assert not self.overfull(state.uuid) or state.uuid in self.in_debt

    @invariant()
    def the_statistics_agree(self) -> None:
        found = self.ledger.statistics()
        states = [h.state for h in self.holds.values()]
        assert (found.cards, found.nodes) == (len(self.cards), len({n for n, _ in self.cards.values()}))
        assert (found.assumed, found.bound) == (states.count(EntryState.ASSUMED), states.count(EntryState.BOUND))
        assert self.ledger.conflicts() == self.conflicts
        assert {uid: e.placement for uid, e in self.ledger.entries()} == {u: h.placement for u, h in self.holds.items()}

    @invariant()
    def late_transitions_of_unknown_pods_change_nothing(self) -> None:
        before = self.ledger.statistics()
        unknown = PodUID("never-seen")
        self.ledger.confirm(unknown)
        self.ledger.forget(unknown)
        self.ledger.release(unknown)
        assert self.ledger.statistics() == before

    @rule(seed=st.integers(0, 9))
    def a_restart_rebuilds_the_same_state(self, seed: int) -> None:
        """Observing the surviving pods in any order into a fresh ledger gives what the live one shows."""
        if self.in_debt & self.cards.keys() or any(self.verdict(h.placement, without=u) for u, h in self.holds.items()):
            return  # cards changed under the pods: then the order decides who keeps a hold
        if any(h.before for h in self.holds.values()):
            return
        fresh = Ledger(self.clock, slots=SLOTS)
        order = random.Random(seed)
        for node, card in shuffled(self.cards.values(), order):
            fresh.put_card(node, card)
        for uid, hold in shuffled(self.holds.items(), order):
            assert fresh.observe(uid, hold.placement) is None
        assert [fresh.node(n) for n in NODES] == [self.ledger.node(n) for n in NODES]
        assert fresh.statistics().bound == len(self.holds)
        assert fresh.audit() == []


def code_of(refusal: Refusal | None) -> Code | None:
    return None if refusal is None else refusal.code


def shuffled(items: Iterable[T], order: random.Random) -> list[T]:
    found = list(items)
    order.shuffle(found)
    return found


LedgerMachine.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestLedgerAgainstItsModel = LedgerMachine.TestCase
