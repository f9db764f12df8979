"""How much each namespace holds, by class, model and pool, in percent of a card; and the quotas that bound it.

Updated with every charge, whatever the size of the cluster. A pod's charge is stored with its card, since what it
counts depends on the card's memory, its model and the pool of its node, and each of them may change or become known
later. A charge on an unknown card counts nothing until the card is reported; one on a vanished card counts as before.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import TypeVar

import msgspec

from fractile.model.card import Card
from fractile.model.placement import Charge, Placement
from fractile.model.quota import NOWHERE, UNLIMITED, NodePlace, Quota, QuotaOwner
from fractile.model.refusal import Refusal
from fractile.model.request import PodRequest
from fractile.model.units import CardUUID, MiB, NodeName
from fractile.policy import quota as rules
from fractile.policy.quota import Allowance, CardKind, Model, ModelMatches

K = TypeVar("K")

NOTHING: Mapping[Model, int] = {}


class Key(msgspec.Struct, frozen=True, order=True, gc=False):
    """The key of a separate count. ``model``: the driver's name; ``label``: the node label's model; "" if missing."""

    namespace: str
    device_class: str
    model: str
    label: str
    pool: str


class _Where(msgspec.Struct, frozen=True, gc=False):
    node: NodeName
    model: str
    memory: MiB
    there: bool  # reported and still present


class _Hold(msgspec.Struct, frozen=True, gc=False):
    namespace: str
    device_class: str
    charge: Charge


class LedgerUsage:
    """Written by the ledger only."""

    def __init__(self) -> None:
        self._quota = UNLIMITED
        self._named: dict[str, ModelMatches] = {}  # by namespace
        self._places: dict[NodeName, NodePlace] = {}
        self._cards: dict[CardUUID, _Where] = {}
        self._on: dict[NodeName, set[CardUUID]] = {}
        self._kinds: Counter[CardKind] = Counter()
        self._holds: dict[CardUUID, list[_Hold]] = {}
        self._sums: dict[Key, int] = {}
        self._models: dict[str, dict[Model, int]] = {}  # by namespace
        self.version = 0  # grows whenever cards come or go, or node labels change

        # ── queries ──────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def quota(self) -> Quota:
        return self._quota

    def allowance(self, request: PodRequest, besides: Mapping[Model, int] = NOTHING) -> Allowance | Refusal | None:
        """What the quota leaves to a pod: None when nothing bounds it, a refusal when it leaves nothing. ``besides``:
        what its namespace would hold in addition by then."""
        if self._quota.limits_nobody:
            return None
        held = self.held(request.namespace)
        if besides:
            held = {model: held.get(model, 0) + besides.get(model, 0) for model in held.keys() | besides.keys()}
        return rules.allowance(self._quota, request, self._kinds, held, self._named_by(request.namespace))

    def refuses(self, owner: QuotaOwner, cost: Iterable[Charge], before: Iterable[Charge] = ()) -> Refusal | None:
        """The refusal if a hold would exceed the quota. ``before``: what the owner gives back for it, which is not
        counted; as much of a model as before is never refused."""
        if self._quota.limits_nobody:
            return None
        more, less = self._of(cost), self._of(before)
        grown = {model: percent for model, percent in more.items() if percent > less.get(model, 0)}
        return rules.passed(self._quota, owner.namespace, self.held(owner.namespace), grown)

    def held(self, namespace: str) -> Mapping[Model, int]:
        """Percent of a card by model."""
        return self._models.get(namespace, {})

    def place(self, node: str) -> NodePlace:
        return self._places.get(NodeName(node), NOWHERE)

    def kinds(self) -> Iterable[CardKind]:
        """The kinds of the present cards."""
        return self._kinds.keys()

    def rows(self) -> Iterator[tuple[Key, int]]:
        """Everything that is held, in no order; nothing may change during the iteration."""
        return iter(self._sums.items())

    def _named_by(self, namespace: str) -> ModelMatches | None:
        named = self._named.get(namespace)
        if named is None and namespace in self._quota.namespaces:
            named = self._named[namespace] = ModelMatches(self._quota.namespaces[namespace].limits or ())
        return named

    # ── updates ──────────────────────────────────────────────────────────────────────────────────────────────────

    def limit(self, quota: Quota) -> None:
        """Set the quotas from now on; holds stay."""
        self._quota = quota
        self._named.clear()

    def put_place(self, node: NodeName, place: NodePlace) -> None:
        """Set what the node's labels say."""
        if self.place(node) == place:
            return
        self.version += 1
        cards = self._on.get(node, set())
        for uuid in cards:
            self._count_card(uuid, -1)
        if place == NOWHERE:
            del self._places[node]
        else:
            self._places[node] = place
        for uuid in cards:
            self._count_card(uuid, 1)

    def put_card(self, node: NodeName, card: Card) -> None:
        """Record a reported card, even if it takes no pods for now."""
        self._put(card.uuid, _Where(node, card.model, card.memory, there=True))

    def drop_card(self, uuid: CardUUID) -> None:
        """Record that the card is gone; what is held of it still counts."""
        where = self._cards.get(uuid)
        if where is not None:
            self._put(uuid, msgspec.structs.replace(where, there=False))
            self._forget(uuid)

    def charge(self, owner: QuotaOwner, placement: Placement, cost: Iterable[Charge], sign: int) -> None:
        """Begin (1) or end (-1) a hold."""
        for charge in cost:
            if charge.shares:
                continue
            hold = _Hold(owner.namespace, class_on(owner, placement, charge.card), charge)
            holds = self._holds.setdefault(charge.card, [])
            if sign > 0:
                holds.append(hold)
            else:
                holds.remove(hold)
            self._count(hold, sign)
            if not holds:
                del self._holds[charge.card]
                self._forget(charge.card)

    # ── counting ─────────────────────────────────────────────────────────────────────────────────────────────────

    def _put(self, uuid: CardUUID, where: _Where) -> None:
        before = self._cards.get(uuid)
        if before == where:
            return
        if before is not None:
            self._count_card(uuid, -1)
            self._leave(before.node, uuid)
        self.version += 1
        self._cards[uuid] = where
        self._on.setdefault(where.node, set()).add(uuid)
        self._count_card(uuid, 1)

    def _forget(self, uuid: CardUUID) -> None:
        """Drop a card that is neither present nor held."""
        where = self._cards.get(uuid)
        if where is None or where.there or uuid in self._holds:
            return
        del self._cards[uuid]
        self._leave(where.node, uuid)

    def _leave(self, node: NodeName, uuid: CardUUID) -> None:
        cards = self._on[node]
        cards.remove(uuid)
        if not cards:
            del self._on[node]

    def _count_card(self, uuid: CardUUID, sign: int) -> None:
        where = self._cards[uuid]
        if where.there and where.memory > 0:
            kind = CardKind(self.place(where.node).model, where.model, where.memory)
            self._kinds[kind] += sign
            if not self._kinds[kind]:
                del self._kinds[kind]
        for hold in self._holds.get(uuid, ()):
            self._count(hold, sign)

    def _count(self, hold: _Hold, sign: int) -> None:
        where = self._cards.get(hold.charge.card)
        if where is None:
            return
        place = self.place(where.node)
        percent = sign * rules.cost(hold.charge.memory, hold.charge.cores, where.memory)
        key = Key(hold.namespace, hold.device_class, where.model, place.model, place.pool)
        _add(self._sums, key, percent)
        models = self._models.setdefault(hold.namespace, {})
        _add(models, (place.model, where.model), percent)
        if not models:
            del self._models[hold.namespace]

    def _of(self, cost: Iterable[Charge]) -> dict[Model, int]:
        found: dict[Model, int] = {}
        for charge in cost:
            where = self._cards.get(charge.card)
            if where is not None and not charge.shares:
                model = self.place(where.node).model, where.model
                found[model] = found.get(model, 0) + rules.cost(charge.memory, charge.cores, where.memory)
        return found


def class_on(owner: QuotaOwner, placement: Placement, card: CardUUID) -> str:
    """The class by which the pod holds the card; if several, that of the container with the largest part."""
    if not owner.classes:
        return ""
    classes = dict(owner.classes)
    parts = (
        (s.memory, s.cores, classes.get(c.container, ""))
        for c in placement.containers
        for s in c.slices
        if s.card == card
    )
    return max(parts, default=(0, 0, ""))[2]


def _add(sums: dict[K, int], key: K, percent: int) -> None:
    now = sums.get(key, 0) + percent
    if now:
        sums[key] = now
    else:
        sums.pop(key, None)
