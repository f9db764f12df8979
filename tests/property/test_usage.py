"""What namespaces hold, kept in step, against a count from scratch at every step."""

import msgspec
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from fractile.ledger.usage import Key, LedgerUsage
from fractile.model.card import Card
from fractile.model.placement import Placement, Slice, charges
from fractile.model.quota import NOWHERE, NamespaceQuota, NodePlace, Quota, QuotaLimit, QuotaOwner
from fractile.model.units import CardUUID, ContainerName, MiB, NodeName
from fractile.policy.quota import CardKind
from tests.builders import given, piece, placement

NODES = [NodeName("n1"), NodeName("n2")]
CARDS = [CardUUID(f"GPU-{i}") for i in range(4)]
MODELS = ["Tesla M40", "Tesla P100"]
OWNERS = [
    QuotaOwner("a"),
    QuotaOwner("b"),
    QuotaOwner("a", ((ContainerName("one"), "small"), (ContainerName("two"), "large"))),
]
PLACES = [NOWHERE, NodePlace("public"), NodePlace("wx", "M40"), NodePlace("", "P100")]

pieces = st.builds(piece, st.sampled_from(CARDS), memory=st.integers(1, 4000), cores=st.sampled_from([0, 1, 33, 100]))


def _of_two(one: list[Slice], two: list[Slice]) -> Placement:
    return placement(given("one", *one), given("two", *two))


placements = st.builds(_of_two, st.lists(pieces, min_size=1, max_size=2), st.lists(pieces, max_size=2))


class _Known(msgspec.Struct):
    node: NodeName
    card: Card
    there: bool = True


class UsageMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.usage = LedgerUsage()
        self.usage.limit(Quota({"a": NamespaceQuota(limits=(QuotaLimit("M40", 150), QuotaLimit("*", 300)))}))
        self.cards: dict[CardUUID, _Known] = {}
        self.places: dict[NodeName, NodePlace] = {}
        self.holds: list[tuple[QuotaOwner, Placement]] = []

    @rule(
        node=st.sampled_from(NODES),
        uuid=st.sampled_from(CARDS),
        model=st.sampled_from(MODELS),
        memory=st.sampled_from([0, 1000, 4000]),
    )
    def report(self, node: NodeName, uuid: CardUUID, model: str, memory: int) -> None:
        card = Card(uuid, 0, model, MiB(memory))
        self.usage.put_card(node, card)
        self.cards[uuid] = _Known(node, card)

    @rule(uuid=st.sampled_from(CARDS))
    def lose(self, uuid: CardUUID) -> None:
        self.usage.drop_card(uuid)
        if uuid in self.cards:
            self.cards[uuid].there = False
        self.forget()

    @rule(node=st.sampled_from(NODES), place=st.sampled_from(PLACES))
    def label(self, node: NodeName, place: NodePlace) -> None:
        self.usage.put_place(node, place)
        self.places[node] = place

    @rule(owner=st.sampled_from(OWNERS), placed=placements)
    def hold(self, owner: QuotaOwner, placed: Placement) -> None:
        refused = self.usage.refuses(owner, charges(placed)) is not None
        assert refused is self.would_pass(owner, placed)
        self.usage.charge(owner, placed, charges(placed), 1)
        self.holds.append((owner, placed))

    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        if self.holds:
            owner, placed = self.holds.pop(data.draw(st.integers(0, len(self.holds) - 1)))
            self.usage.charge(owner, placed, charges(placed), -1)
            self.forget()

    def forget(self) -> None:
        """A card that is gone is remembered as long as somebody holds a part of it."""
        held = {c.card for _, placed in self.holds for c in charges(placed)}
        self.cards = {uuid: known for uuid, known in self.cards.items() if known.there or uuid in held}

    def would_pass(self, owner: QuotaOwner, placed: Placement) -> bool:
        """Whether the namespace's quota, worked out by hand: 1.5 of M40, 3 in all."""
        if owner.namespace != "a":
            return False
        before, more = self.of_a(self.holds), self.of_a([(owner, placed)])
        return any(more[name] > 0 and before[name] + more[name] > most for name, most in (("M40", 150), ("all", 300)))

    def of_a(self, holds: list[tuple[QuotaOwner, Placement]]) -> dict[str, int]:
        found = {"M40": 0, "all": 0}
        for owner, placed in holds:
            for charge in charges(placed) if owner.namespace == "a" else ():
                known = self.cards.get(charge.card)
                if known is None:
                    continue
                percent = self.percent(known.card, charge.memory, charge.cores)
                found["all"] += percent
                if "M40" in known.card.model or self.places.get(known.node, NOWHERE).model == "M40":
                    found["M40"] += percent
        return found

    def percent(self, card: Card, memory: int, cores: int) -> int:
        if not card.memory:
            return 0
        whole, rest = divmod(memory * 100, card.memory)
        return max(cores, whole + (1 if rest else 0))

    @invariant()
    def what_is_held_is_the_sum_of_all_holds(self) -> None:
        wanted: dict[Key, int] = {}
        for owner, placed in self.holds:
            for charge in charges(placed):
                known = self.cards.get(charge.card)
                if known is None:
                    continue
                place = self.places.get(known.node, NOWHERE)
                cls = self.class_of(owner, placed, charge.card)
                key = Key(owner.namespace, cls, known.card.model, place.model, place.pool)
                wanted[key] = wanted.get(key, 0) + self.percent(known.card, charge.memory, charge.cores)
        assert dict(self.usage.rows()) == {key: percent for key, percent in wanted.items() if percent}

    @invariant()
    def the_models_of_a_namespace_are_the_sum_over_classes_and_pools(self) -> None:
        for namespace in ("a", "b", "nobody"):
            wanted: dict[tuple[str, str], int] = {}
            for key, percent in self.usage.rows():
                if key.namespace == namespace:
                    wanted[key.label, key.model] = wanted.get((key.label, key.model), 0) + percent
            assert self.usage.held(namespace) == wanted

    @invariant()
    def the_kinds_are_those_of_the_cards_that_are_there(self) -> None:
        wanted = {
            CardKind(self.places.get(known.node, NOWHERE).model, known.card.model, known.card.memory)
            for known in self.cards.values()
            if known.there and known.card.memory
        }
        assert set(self.usage.kinds()) == wanted

    def class_of(self, owner: QuotaOwner, placed: Placement, card: CardUUID) -> str:
        largest = max((s.memory, s.cores, c.container) for c in placed.containers for s in c.slices if s.card == card)
        classes = dict(owner.classes)
        tied = [
            classes.get(c.container, "")
            for c in placed.containers
            for s in c.slices
            if s.card == card and (s.memory, s.cores) == largest[:2]
        ]
        return max(tied)


TestUsage = UsageMachine.TestCase
TestUsage.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
