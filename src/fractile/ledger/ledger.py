"""The ledger: which pod holds what on which card, and what is left.

                      assume()                    confirm() / observe()                release()
      free ────────────────────────> assumed ─────────────────────────────> bound ─────────────────> free
       ^   filter and prioritize       │  charged; the Binding is on its way   │  seen in a watch       ^
       │   never leave this state      │                                       │                        │
       └───────────────────────────────┘ forget(): the Binding was refused     │ move(): kubelet chose   │
       ^                               │                                       └─── another card ────────┤
       │                               └ overdue(): no news for too long; the caller asks the API ───────┘
       └── observe() of a pod that was never assumed (restart, another replica) goes straight to bound

Assumptions, stated as in kube-scheduler's cache:
- A pod is identified by its UID; a pod recreated under the same name is another pod.
- Late or repeated transitions change nothing: confirm, forget and release of an unknown UID are no-ops, so a deletion
  that overtakes the answer of a Binding never leaves a charge behind.
- A bound pod's placement changes only through move(); later changes of its annotation are ignored.
- Charges belong to card UUIDs, not to nodes: a card that vanishes and returns still has its charges.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from itertools import chain
from types import MappingProxyType

import msgspec

from fractile.ledger.arrays import CardArrays
from fractile.ledger.bounds import CapacityBounds
from fractile.ledger.held import HeldOnDevice, check, size
from fractile.ledger.precedence import LAST, Rank, contested
from fractile.ledger.usage import LedgerUsage
from fractile.model.card import GPU, Card, DeviceKind
from fractile.model.placement import Charge, Placement, charges, larger
from fractile.model.quota import NOBODY, QuotaOwner
from fractile.model.refusal import Code, Refusal
from fractile.model.request import PodRequest
from fractile.model.sharing import FREE, SharingRule
from fractile.model.units import CardUUID, MiB, NodeName, Percent, PodUID
from fractile.policy.cards.effort import DeadEnds
from fractile.policy.cards.state import NO_LIMIT, CardState, NodeState

Rules = Callable[[NodeName, str], SharingRule]  # by node and model


def _free(node: NodeName, model: str) -> SharingRule:
    return FREE


class EntryState(StrEnum):
    ASSUMED = "assumed"
    BOUND = "bound"


class Entry(msgspec.Struct, frozen=True, gc=False):
    """One pod's hold. ``since``: the monotonic time, in seconds, of the assumption or of the start of a wait for an
    answer about it. ``sent``: a write that binds the pod to this node may be on its way, so the hold must not end on a
    guess. ``moving``: the API server may still show the previous placement, whose cards are charged too. ``rank``:
    which pod gives way if the cards were promised twice. ``decided``: the version of the pod that the write of its last
    move names (the one before the move); 0: not known.
    """

    state: EntryState
    placement: Placement
    charges: tuple[Charge, ...]
    since: float
    owner: QuotaOwner = NOBODY
    sent: bool = False
    moving: bool = False
    rank: Rank = LAST
    decided: int = 0


class _Conflict(msgspec.Struct, frozen=True, gc=False):
    """The claim of a pod whose cards cannot hold it."""

    placement: Placement
    owner: QuotaOwner
    rank: Rank


def _cards(placement: Placement) -> Iterable[CardUUID]:
    """Each card of the placement, once."""
    return {s.card: None for c in placement.containers for s in c.slices}


class Statistics(msgspec.Struct, frozen=True):
    """Counts for logs and metrics."""

    nodes: int
    cards: int
    assumed: int
    bound: int
    conflicts: int
    generation: int
    drifted: int = 0  # holds that differed from the API server when they were compared


class _Place(msgspec.Struct, frozen=True, gc=False):
    card: Card
    node: NodeName
    arrays: CardArrays
    slot: int
    column: int


class Ledger:
    """Single-threaded: every method runs to its end on the program's event loop. ``slots``: per card."""

    def __init__(self, clock: Callable[[], float], *, slots: int = NO_LIMIT) -> None:
        self._clock = clock
        self._slots = slots
        self._rules: Rules = _free
        self._sized = False
        self.reshared = 0  # how often the rules for a node changed
        self._arrays_of = {kind: CardArrays() for kind in DeviceKind}
        self._placed: list[Callable[[Card], None]] = []
        self._places: dict[CardUUID, _Place] = {}
        self._sick: dict[CardUUID, tuple[NodeName, Card]] = {}  # reported, but not available to new pods
        self._held: dict[CardUUID, HeldOnDevice] = {}
        self._withheld: dict[CardUUID, Charge] = {}
        self._entries: dict[PodUID, Entry] = {}
        self._conflicts: dict[PodUID, _Conflict] = {}
        self._sharing: dict[CardUUID, tuple[PodUID, ...]] = {}  # pods that claim a part: holds and conflicts
        self._stirred: dict[PodUID, None] = {}  # conflicts whose outcome may have changed since they were last checked
        self._displaced: list[PodUID] = []
        self._drifted = 0
        self._generation = 0
        self._stamps: dict[NodeName, int] = {}  # the generation of the last change of each node with cards
        self.usage = LedgerUsage()  # what each namespace holds, and the quotas
        self.bounds = CapacityBounds(self.arrays, self.usage)
        self.dead_ends = DeadEnds()  # searches that failed on nodes in their current state

    # ── inventory ────────────────────────────────────────────────────────────────────────────────────────────────

    def now(self) -> float:
        """The ledger's clock: monotonic, in seconds."""
        return self._clock()

    def put_card(self, node: NodeName, card: Card) -> None:
        """Record a card that a node reports, new or with other properties. Cards without memory are not counted."""
        place = self._places.get(card.uuid)
        if place is not None and place.card == card and place.node == node:
            return
        self.drop_card(card.uuid)
        self.usage.put_card(node, card)
        if size(card) <= 0:
            return
        if not card.healthy:
            self._sick[card.uuid] = node, card
            return
        arrays = self._arrays_of[card.kind]
        column = arrays.column(node)
        place = _Place(card, node, arrays, arrays.free_slot(column), column)
        self._places[card.uuid] = place
        arrays.put(place.slot, column, card.uuid, card.model)
        self._write(card.uuid)
        for tell in self._placed:
            tell(card)

    def drop_card(self, uuid: CardUUID) -> None:
        """Remove a card that is gone from its node; what pods hold of it stays recorded."""
        place = self._places.pop(uuid, None)
        self._sick.pop(uuid, None)
        self._stir(uuid)
        self.usage.drop_card(uuid)
        if place is not None:
            place.arrays.clear(place.slot, place.column)
            self._generation += 1
            self._card_left(place.node)

    def withhold(self, uuid: CardUUID, charge: Charge | None) -> None:
        """Set what the agent keeps from all pods on a card although no pod holds it; None: nothing."""
        before = self._withheld.pop(uuid, None)
        if charge is not None:
            self._withheld[uuid] = charge
        if charge == before:
            return
        held = self._held.setdefault(uuid, HeldOnDevice())
        for part, sign in ((before, -1), (charge, 1)):
            if part is not None:
                held.add(part, sign)
        if held.pods == 0:
            del self._held[uuid]
        self._write(uuid)

    def on_card(self, tell: Callable[[Card], None]) -> None:
        """Call ``tell`` from now on for every card that takes a place in the arrays, also when it returns."""
        self._placed.append(tell)

    def share_by(self, rules: Rules, *, sized: bool = True) -> list[NodeName]:
        """Apply these rules on how cards may be cut from now on; holds stay. Returns the nodes that have cards.

        ``sized``: the rules also limit sizes, not only the number of slices per card.
        """
        self._rules = rules
        self._sized = sized
        nodes = list(dict.fromkeys(place.node for place in self._places.values()))
        for node in nodes:
            self.reshare(node)
        return nodes

    def reshare(self, node: NodeName) -> None:
        """Apply changed rules to the node."""
        self.reshared += 1
        for place in self._cards_of(self.arrays, node):
            self._write(place.card.uuid)

    def rule_on(self, node: NodeName, model: str) -> SharingRule:
        """How a card of that model on that node may be cut."""
        return self._rules(node, model)

    @property
    def ruled(self) -> bool:
        """Whether there are rules about how cards may be cut."""
        return self._rules is not _free

    def judged_by_sums(self, request: PodRequest) -> bool:
        """Whether free amounts alone decide whether a pod that asks for such GPUs fits under the rules. A card that
        takes no more slices counts as one with nothing free, so only size limits and requests for several slices need
        a check of each card."""
        return not self.ruled or (not self._sized and len(request.containers) == 1)

    # ── transitions ──────────────────────────────────────────────────────────────────────────────────────────────

    def assume(self, uid: PodUID, placement: Placement, owner: QuotaOwner = NOBODY) -> Refusal | None:
        """Charge a placement whose Binding is about to be written; a refusal changes nothing."""
        if uid in self._entries:
            return Refusal(Code.ELSEWHERE, f"the pod already holds a placement on {self._entries[uid].placement.node}")
        refusal = (
            self._against_rules(placement)
            or self.usage.refuses(owner, charges(placement))
            or self.misplaced(placement)
            or self._enter(uid, placement, EntryState.ASSUMED, owner)
        )
        if refusal is None:
            self._settled(uid)
        return refusal

    def confirm(self, uid: PodUID) -> None:
        """Record that the Binding was accepted."""
        entry = self._entries.get(uid)
        if entry is not None:
            self._entries[uid] = msgspec.structs.replace(entry, state=EntryState.BOUND)
            if entry.state is not EntryState.BOUND:
                for charge in entry.charges:
                    self._stir(charge.card)

    def forget(self, uid: PodUID) -> Entry | None:
        """Undo an assumption whose Binding will not come; other holds stay. Returns what it held."""
        entry = self._entries.get(uid)
        return self._leave(uid) if entry is not None and entry.state is EntryState.ASSUMED else None

    def observe(
        self, uid: PodUID, placement: Placement, owner: QuotaOwner | None = None, rank: Rank | None = None
    ) -> Refusal | None:
        """Record that a watch shows the pod bound with this placement. ``owner`` and ``rank``: unchanged if not given.

        Refused without a charge, and kept as a conflict, when the cards cannot hold it in addition to the pods of
        higher precedence (``precedence``); pods of lower precedence give way. Refused without a change when the pod is
        known to be bound with another placement.
        """
        entry, before = self._entries.get(uid), self._conflicts.get(uid)
        known = entry or before
        who = owner or (known.owner if known else NOBODY)
        place = rank if rank is not None else known.rank if known else LAST
        if entry is not None and entry.placement == placement:
            self.confirm(uid)
            self.moved(uid)
            self._ranked(uid, place)
            return None
        if entry is not None and entry.state is EntryState.BOUND:
            return Refusal(Code.MALFORMED, "the placement was changed after the pod was bound; the change is ignored")
        if entry is not None:
            self._leave(uid)
        refusal = self._enter(uid, placement, EntryState.BOUND, who, place)
        if refusal is None:
            self._settled(uid)
            return None
        self._refused(uid, _Conflict(placement, who, place))
        return None if self._contest(uid) else refusal

    def stirred(self) -> dict[PodUID, Placement]:
        """The conflicts whose cards have changed since the last call: only these may be charged now."""
        found, self._stirred = self._stirred, {}
        return {uid: self._conflicts[uid].placement for uid in found if uid in self._conflicts}

    def displaced(self) -> list[PodUID]:
        """Pods that had to give way since the last call."""
        found, self._displaced = self._displaced, []
        return found

    def move(self, uid: PodUID, placement: Placement, *, version: int = 0) -> Refusal | None:
        """Put a known pod on other cards; a refusal leaves it where it was. Until ``moved``, the API server may show
        either placement, so the cards of both are charged. ``version``: of the pod, as the write will name it; 0: not
        known."""
        entry = self._entries.get(uid)
        if entry is None:
            return Refusal(Code.GONE, "the pod holds no placement")
        unknown = next((c.card for c in charges(placement) if self._reported(c.card) is None), None)
        if unknown is not None:  # what others hold of it cannot be compared with its size
            return Refusal(Code.NO_ROOM, f"card {unknown} is not reported by its node")
        self._leave(uid)
        cost = charges(placement)
        refusal = (
            self._against_rules(placement)
            or self.usage.refuses(entry.owner, cost, before=entry.charges)
            or self.misplaced(placement)
            or self._check(cost)
        )
        if refusal is None:
            both = larger(entry.charges, cost)
            entry = msgspec.structs.replace(
                entry, placement=placement, charges=both, since=self._clock(), moving=True, decided=version
            )
        self._restore(uid, entry)
        return refusal

    def moved(self, uid: PodUID, *, version: int = 0) -> bool:
        """Record that the API server shows the pod's move; returns whether the pod was moving. ``version``: the one
        that the write named, if later than the one on which the move was decided."""
        entry = self._entries.get(uid)
        if entry is None or not entry.moving:
            return False
        self._leave(uid)
        decided = max(entry.decided, version)
        kept = msgspec.structs.replace(entry, charges=charges(entry.placement), moving=False, decided=decided)
        self._restore(uid, kept)
        return True

    def before_move(self, uid: PodUID, placement: Placement, *, version: int) -> bool:
        """Whether this version of the pod may show this placement because of a move: it is the version before the move,
        or the move's write has not been stored yet."""
        entry = self._entries.get(uid)
        if entry is None:
            return False
        charged = larger(entry.charges, charges(placement)) == entry.charges
        return 0 < version <= entry.decided or (entry.moving and charged)

    def stayed(self, uid: PodUID, placement: Placement, *, version: int) -> bool:
        """Record that this version of the pod has this placement; returns whether that ends a move. A version later
        than the one that the move's write names means that the move can no longer be stored; without this, the card
        that the pod did not get would stay charged for as long as kubelet's next choice has no room. Only a placement
        that is already charged counts."""
        entry = self._entries.get(uid)
        if entry is None or not entry.moving or not 0 < entry.decided < version or placement == entry.placement:
            return False
        if not self.before_move(uid, placement, version=version):
            return False
        self._leave(uid)
        kept = msgspec.structs.replace(entry, placement=placement, charges=charges(placement), moving=False)
        self._restore(uid, kept)
        return True

    def misplaced(self, placement: Placement) -> Refusal | None:
        """A refusal if another node reports one of the cards. A pod that is already bound keeps its hold all the same:
        it had the card before the card moved, or before another node reported it."""
        for card in _cards(placement):
            found = self._reported(card)
            if found is not None and found[0] != placement.node:
                return Refusal(Code.MALFORMED, f"card {card} is on {found[0]}, not on {placement.node}")
        return None

    def release(self, uid: PodUID) -> Entry | None:
        """Free what the pod held, because it finished or was deleted. Returns what it held."""
        self._settled(uid)
        return self._leave(uid)

    # ── views ────────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def arrays(self) -> CardArrays:
        """The GPUs, for scans over many nodes; read only."""
        return self._arrays_of[DeviceKind.GPU]

    def arrays_of(self, kind: DeviceKind) -> CardArrays:
        """The devices of that kind; read only."""
        return self._arrays_of[kind]

    @property
    def generation(self) -> int:
        """Grows with every change of what is free."""
        return self._generation

    def stamp(self, node: str) -> int:
        """Changes with every change of the node's cards and of what is free on them; 0: it has no cards."""
        return self._stamps.get(NodeName(node), 0)

    def entry(self, uid: PodUID) -> Entry | None:
        return self._entries.get(uid)

    def entries(self) -> Iterator[tuple[PodUID, Entry]]:
        """All holds; the ledger must not change during the iteration."""
        return iter(self._entries.items())

    def conflicts(self) -> dict[PodUID, Placement]:
        """Pods that hold nothing because their recorded placement does not fit the cards."""
        return {uid: conflict.placement for uid, conflict in self._conflicts.items()}

    def node(self, name: str) -> NodeState | None:
        """The node's cards ordered by index, with what is free; None when it has reported no cards."""
        return self._node_state(NodeName(name))

    def imagine(
        self,
        name: str,
        *,
        gone: Iterable[PodUID] = (),
        come: Iterable[Placement] = (),
        taken: Iterable[Iterable[Charge]] = (),
    ) -> NodeState | None:
        """The node without the pods ``gone``, and with further placements and charges; nothing is checked."""
        seen: dict[CardUUID, HeldOnDevice] = {}
        left = (entry.charges for uid in gone if (entry := self._entries.get(uid)) is not None)
        for sign, group in ((-1, left), (1, map(charges, come)), (1, taken)):
            for charge in chain.from_iterable(group):
                if charge.card not in seen:
                    seen[charge.card] = msgspec.structs.replace(self._held.get(charge.card, HeldOnDevice()))
                seen[charge.card].add(charge, sign)
        return self._node_state(NodeName(name), seen)

    def node_at(self, column: int) -> NodeState:
        """The node with that column of ``arrays``."""
        node = self.arrays.names[column]
        state = None if node is None else self._node_state(node)
        assert state is not None, f"column {column} belongs to no node"
        return state

    def cards(self, node: str) -> tuple[Card, ...]:
        """The cards of a node as reported, ordered by index, GPUs first."""
        found = [p.card for arrays in self._arrays_of.values() for p in self._cards_of(arrays, node)]
        return tuple(sorted(found, key=lambda c: (c.type != GPU, c.index, c.uuid)))

    def all_cards(self) -> Iterator[Card]:
        """Every card in the arrays; the ledger must not change during the iteration."""
        return (place.card for place in self._places.values())

    def overdue(self, seconds: float) -> list[PodUID]:
        """Pods assumed longer ago than that; the caller asks the API server about them."""
        return [uid for uid in self._entries if self.is_overdue(uid, seconds)]

    def is_overdue(self, uid: PodUID, seconds: float) -> bool:
        entry = self._entries.get(uid)
        limit = self._clock() - seconds
        return entry is not None and entry.state is EntryState.ASSUMED and entry.since <= limit

    def renew(self, uid: PodUID) -> None:
        """Restart the period after which the pod is overdue, because the API server could not answer yet."""
        entry = self._entries.get(uid)
        if entry is not None:
            self._entries[uid] = msgspec.structs.replace(entry, since=self._clock())

    def sent(self, uid: PodUID) -> bool:
        """Record that the write that binds the pod goes out now; returns whether one was sent before."""
        entry = self._entries.get(uid)
        if entry is None:
            return False
        self._entries[uid] = msgspec.structs.replace(entry, sent=True, since=self._clock())
        return entry.sent

    @property
    def unsettled(self) -> bool:
        """Whether the outcome of a write is unknown."""
        return any(e.moving or (e.sent and e.state is EntryState.ASSUMED) for e in self._entries.values())

    def statistics(self) -> Statistics:
        states = [e.state for e in self._entries.values()]
        return Statistics(
            nodes=len({place.node for place in self._places.values()}),
            cards=len(self._places),
            assumed=states.count(EntryState.ASSUMED),
            bound=states.count(EntryState.BOUND),
            conflicts=len(self._conflicts),
            generation=self._generation,
            drifted=self._drifted,
        )

    def drifted(self, count: int) -> None:
        """Add to the count of holds that differed from what the API server shows."""
        self._drifted += count

    def audit(self) -> list[CardUUID]:
        """Cards whose running totals differ from the sum of the entries: always empty unless there is a bug."""
        sums: dict[CardUUID, HeldOnDevice] = {}
        for entry in self._entries.values():
            for charge in entry.charges:
                sums.setdefault(charge.card, HeldOnDevice()).add(charge, 1)
        for charge in self._withheld.values():
            sums.setdefault(charge.card, HeldOnDevice()).add(charge, 1)
        cards = sums.keys() | self._held.keys() | self._places.keys()
        return [uuid for uuid in sorted(cards) if not self._consistent(uuid, sums.get(uuid, HeldOnDevice()))]

    # ── the only code that changes capacity ──────────────────────────────────────────────────────────────────────

    def _ranked(self, uid: PodUID, rank: Rank) -> None:
        """Store a more exact rank of a pod; an older claim may have been refused because of the former one."""
        entry = self._entries[uid]
        if entry.rank == rank:
            return
        self._entries[uid] = msgspec.structs.replace(entry, rank=rank)
        for other in self._contested(uid, earlier=True) if self._conflicts else ():
            conflict = self._conflicts.get(other)
            if conflict is not None and (conflict.rank, other) < (rank, uid):
                self._contest(other)

    def _contest(self, uid: PodUID) -> bool:
        """Whether the pod gets its cards when pods of lower precedence give way; those then take what is left."""
        if self._conflicts[uid].rank == LAST:
            return False
        order = self._contested(uid)
        claims = {other: claim for other in order if (claim := self._claim(other)) is not None}
        held = {other for other in order if self._leave(other) is not None}
        for other in order:
            claim = claims[other]
            if self._enter(other, claim.placement, EntryState.BOUND, claim.owner, claim.rank) is None:
                self._settled(other)
            else:
                self._refused(other, _Conflict(claim.placement, claim.owner, claim.rank))
                self._displaced += [other] if other in held else []
        return uid in self._entries

    def _contested(self, uid: PodUID, *, earlier: bool = False) -> list[PodUID]:
        return contested(uid, self._claim, lambda card: self._sharing[card], earlier=earlier)

    def _claim(self, uid: PodUID) -> Entry | _Conflict | None:
        """What the pod claims where cards were promised twice; None while a write about it is under way."""
        entry = self._entries.get(uid)
        settled = entry is not None and entry.state is EntryState.BOUND and not entry.moving
        return self._conflicts.get(uid) or (entry if settled else None)

    def _refused(self, uid: PodUID, conflict: _Conflict) -> None:
        self._settled(uid)
        self._conflicts[uid] = conflict
        self._share(uid, _cards(conflict.placement))

    def _settled(self, uid: PodUID) -> None:
        """Drop the pod's conflict, if it has one."""
        conflict = self._conflicts.pop(uid, None)
        if conflict is not None:
            self._unshare(uid, _cards(conflict.placement))

    def _share(self, uid: PodUID, cards: Iterable[CardUUID]) -> None:
        """Note that the pod claims a part of each card: few pods share a card, but the cluster has many."""
        for card in cards:
            self._sharing[card] = (*self._sharing.get(card, ()), uid)

    def _unshare(self, uid: PodUID, cards: Iterable[CardUUID]) -> None:
        for card in cards:
            claimed = self._sharing[card]
            at = claimed.index(uid)
            self._sharing[card] = claimed[:at] + claimed[at + 1 :]
            if not self._sharing[card]:
                del self._sharing[card]

    def _enter(
        self, uid: PodUID, placement: Placement, state: EntryState, owner: QuotaOwner, rank: Rank = LAST
    ) -> Refusal | None:
        cost = charges(placement)
        refusal = self._check(cost)
        if refusal is None:
            self._restore(uid, Entry(state, placement, cost, self._clock(), owner, rank=rank))
        return refusal

    def _restore(self, uid: PodUID, entry: Entry) -> None:
        self._entries[uid] = entry
        self._share(uid, [c.card for c in entry.charges])
        self._charge(entry, 1)

    def _leave(self, uid: PodUID) -> Entry | None:
        entry = self._entries.pop(uid, None)
        if entry is not None:
            self._unshare(uid, [c.card for c in entry.charges])
            self._charge(entry, -1)
        return entry

    def _charge(self, entry: Entry, sign: int) -> None:
        self.usage.charge(entry.owner, entry.placement, entry.charges, sign)
        for charge in entry.charges:
            held = self._held.setdefault(charge.card, HeldOnDevice())
            held.add(charge, sign)
            if held.pods == 0:
                del self._held[charge.card]
            self._write(charge.card)

    def _check(self, cost: Sequence[Charge]) -> Refusal | None:
        for charge in cost:
            found = self._reported(charge.card)
            if found is None:
                continue  # reported later or never; if never, the agent refuses the container
            refusal = check(found[1], self._held.get(charge.card, HeldOnDevice()), charge, slots=self._slots)
            if refusal is not None:
                return refusal
        return None

    def _reported(self, uuid: CardUUID) -> tuple[NodeName, Card] | None:
        """The card, healthy or not, and its node."""
        place = self._places.get(uuid)
        return self._sick.get(uuid) if place is None else (place.node, place.card)

    def _against_rules(self, placement: Placement) -> Refusal | None:
        """The refusal, under the sharing rules, of a placement that is still to be made."""
        if not self.ruled:
            return None
        for charge in charges(placement):
            place = self._places.get(charge.card)
            if place is None or place.card.type != GPU:
                continue
            rule, held = self._rules(place.node, place.card.model), self._held.get(charge.card, HeldOnDevice())
            if not rule.has_place(held.slices, charge.slices):
                return Refusal(Code.NO_ROOM, f"card {place.card.index} is already cut into {rule.max_slices}")
            for part in (s for c in placement.containers for s in c.slices if s.card == charge.card):
                if not rule.admits(place.card.memory, memory=part.memory, cores=part.cores):
                    return Refusal(Code.TOO_LARGE, f"card {place.card.index} may not be cut into {part.memory} MiB")
        return None

    def _stir(self, uuid: CardUUID) -> None:
        if self._conflicts:
            self._stirred |= {uid: None for uid in self._sharing.get(uuid, ()) if uid in self._conflicts}

    def _write(self, uuid: CardUUID) -> None:
        self._generation += 1
        self._stir(uuid)
        place = self._places.get(uuid)
        if place is None:
            return
        self._stamps[place.node] = self._generation
        held = self._held.get(uuid, HeldOnDevice())
        place.arrays.write(
            place.slot,
            place.column,
            memory=size(place.card),
            free=size(place.card) - held.size,
            free_cores=self._free_cores(place, held),
            idle=held.pods == 0,
            coreless=held.coreless > 0,
            free_slots=self._slots - held.slots,
            slices=held.slices,
        )

    def _card_left(self, node: NodeName) -> None:
        """Update the node's stamp after one of its cards has gone."""
        if all(arrays.find(node) < 0 for arrays in self._arrays_of.values()):
            self._stamps.pop(node, None)
        else:
            self._stamps[node] = self._generation

    def _free_cores(self, place: _Place, held: HeldOnDevice) -> int:
        """For the arrays: a card that takes no more slices has no cores left, like one whose cores are all promised."""
        closed = not self._rule(place).has_place(held.slices, 1)
        return min(100 - held.cores, 0) if closed else 100 - held.cores

    def _rule(self, place: _Place) -> SharingRule:
        return self._rules(place.node, place.card.model) if self.ruled and place.card.type == GPU else FREE

    def _cards_of(self, arrays: CardArrays, node: str) -> list[_Place]:
        column = arrays.find(node)
        return [] if column < 0 else [self._places[uuid] for uuid in arrays.in_column(column)]

    def _node_state(
        self, node: NodeName, imagined: Mapping[CardUUID, HeldOnDevice] = MappingProxyType({})
    ) -> NodeState | None:
        devices = [self._states(arrays, node, imagined) for arrays in self._arrays_of.values()]
        return NodeState(node, *devices) if any(devices) else None

    def _states(
        self, arrays: CardArrays, node: str, imagined: Mapping[CardUUID, HeldOnDevice]
    ) -> tuple[CardState, ...]:
        cards = (self._card_state(place, imagined.get(place.card.uuid)) for place in self._cards_of(arrays, node))
        return tuple(sorted(cards, key=lambda c: (c.index, c.uuid)))

    def _card_state(self, place: _Place, held: HeldOnDevice | None = None) -> CardState:
        held = held or self._held.get(place.card.uuid, HeldOnDevice())
        return CardState(
            uuid=place.card.uuid,
            index=place.card.index,
            model=place.card.model,
            memory=MiB(size(place.card)),
            free_memory=MiB(size(place.card) - held.size),
            free_cores=Percent(100 - held.cores),
            idle=held.pods == 0,
            coreless=held.coreless > 0,
            slots=self._slots,
            free_slots=self._slots - held.slots,
            interconnect=place.card.interconnect,
            slices=held.slices,
            rule=self._rule(place),
            properties=place.card.properties,
        )

    def _consistent(self, uuid: CardUUID, wanted: HeldOnDevice) -> bool:
        if self._held.get(uuid, HeldOnDevice()) != wanted:
            return False
        place = self._places.get(uuid)
        return place is None or place.arrays.agrees(
            place.slot,
            place.column,
            memory=size(place.card),
            free=size(place.card) - wanted.size,
            free_cores=self._free_cores(place, wanted),
            idle=wanted.pods == 0,
            coreless=wanted.coreless > 0,
            free_slots=self._slots - wanted.slots,
            slices=wanted.slices,
        )
