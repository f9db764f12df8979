"""The device classes, and which cards match each of them now.

Thousands of classes may exist, of which few are requested. The members of a class are found when it is first requested,
as a layer of the arrays (one byte per cell), and kept up to date from then on. Only the most recently requested layers
are kept. A class selects devices by their properties, and many cards have equal properties, so each distinct set of
properties is matched only once.

    put(), drop(), spoil() ──> classes          resolve(request) ──> layer of the class ──> Selector.members
    Ledger.on_card()       ──> layers in use    members(name)    ──┘
"""

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator

import msgspec

from fractile.ledger.layers import KeptLayer
from fractile.ledger.ledger import Ledger
from fractile.model.card import GPU, Card, DeviceKind
from fractile.model.device_class import DeviceClass
from fractile.model.refusal import Code, Refusal
from fractile.model.request import ContainerRequest, PodRequest, Request, Selector
from fractile.model.units import WHOLE, Percent
from fractile.policy.classes import matches
from fractile.wire.fractile.resource_class import DEVICE_SLOT, GPU_SLOT, RESOURCE_PREFIX

LAYERS = 256  # the most that are kept; 40 KB each with 40,000 cards
_OWN = frozenset({"index", "nodeName"})  # properties that differ from card to card

_Said = Callable[[Card], Hashable]


class ClassIndex:
    """Classes by name. One writer, on the loop of its ledger."""

    def __init__(self, ledger: Ledger, *, layers: int = LAYERS) -> None:
        self._ledger = ledger
        self._most = layers
        self._classes: dict[str, DeviceClass] = {}
        self._spoiled: dict[str, str] = {}
        self.changes = 0  # how often a class was added, changed or removed
        self._layers: OrderedDict[str, KeptLayer] = OrderedDict()  # the most recently requested at the end
        ledger.on_card(self._placed)

    def put(self, cls: DeviceClass) -> bool:
        """Add or change a class; returns whether anything changed."""
        self._spoiled.pop(cls.name, None)
        if self._classes.get(cls.name) == cls:
            return False
        self._forget(cls.name)
        self.changes += 1
        self._classes[cls.name] = cls
        return True

    def spoil(self, name: str, reason: str) -> None:
        """Record that the object of that name is invalid; refusals quote the reason."""
        self.drop(name)
        self._spoiled[name] = reason

    def drop(self, name: str) -> None:
        """Remove the class. Running pods stay; new ones wait."""
        self._forget(name)
        self.changes += 1
        self._classes.pop(name, None)
        self._spoiled.pop(name, None)

    def find(self, name: str) -> DeviceClass | None:
        return self._classes.get(name)

    def spoiled(self, name: str) -> str | None:
        """Why the object of that name is invalid; None if it is not."""
        return self._spoiled.get(name)

    def __iter__(self) -> Iterator[DeviceClass]:
        return iter(list(self._classes.values()))

    def __len__(self) -> int:
        return len(self._classes)

    def members(self, cls: DeviceClass) -> KeptLayer:
        """The healthy cards of the class, kept up to date."""
        layer = self._layers.get(cls.name)
        if layer is not None:
            self._layers.move_to_end(cls.name)
            return layer
        if len(self._layers) >= self._most:
            self._layers.popitem(last=False)[1].drop()
        kind = DeviceKind.GPU if cls.device_type == GPU else DeviceKind.OTHER
        layer = self._layers[cls.name] = KeptLayer(self._ledger.arrays_of(kind))
        _fill(layer, cls, self._ledger.all_cards())
        return layer

    def _placed(self, card: Card) -> None:
        for name, layer in self._layers.items():
            if matches(self._classes[name], card):
                layer.mark(card.uuid)

    def _forget(self, name: str) -> None:
        layer = self._layers.pop(name, None)
        if layer is not None:
            layer.drop()


def _fill(layer: KeptLayer, cls: DeviceClass, cards: Iterator[Card]) -> None:
    said = _said(cls)
    known: dict[Hashable, bool] = {}
    for card in cards:
        saying = said(card)
        member = known.get(saying)
        if member is None:
            member = known[saying] = matches(cls, card)
        if member:
            layer.mark(card.uuid)


def _said(cls: DeviceClass) -> _Said:
    """The properties of a card that decide whether the class matches it."""
    if any(r.key in _OWN for r in cls.requirements):
        return lambda card: card.uuid
    return lambda card: (card.type, card.model, card.memory, card.shares, card.properties)


# ── resolving a pod's request ────────────────────────────────────────────────────────────────────────────────────────


def resolved(request: PodRequest | Refusal | None, index: ClassIndex) -> PodRequest | Refusal | None:
    """``resolve`` for the result of a dialect."""
    return resolve(request, index) if isinstance(request, PodRequest) else request


def resolve(request: PodRequest, index: ClassIndex) -> PodRequest | Refusal:
    """The request with its classes replaced by what they stand for now; a Refusal of the whole pod if a class is
    unusable.

    Requests that name no class are returned unchanged.
    """
    if not any(c.request.device_class for c in request.containers):
        return request
    slots = {(c.container, c.resource) for c in request.containers}
    found: list[ContainerRequest] = []
    for asked in request.containers:
        beside = (asked.container, DEVICE_SLOT if asked.resource == GPU_SLOT else GPU_SLOT) in slots
        known = _resolve(asked, index, beside=beside) if asked.request.device_class else asked
        if isinstance(known, Refusal):
            return Refusal(known.code, f"container {asked.container} {known.message}")
        found.append(known)
    return msgspec.structs.replace(request, containers=tuple(found))


def _resolve(asked: ContainerRequest, index: ClassIndex, *, beside: bool) -> ContainerRequest | Refusal:
    """``beside``: the container also has slots of the other kind, for the classes of that kind."""
    classes: list[DeviceClass] = []
    names = asked.request.device_class.split(",")
    for name in names:
        cls = index.find(name)
        if cls is None:
            return _unknown(name, index)
        classes.append(cls)
    mine = [c for c in classes if (c.device_type == GPU) is (asked.resource == GPU_SLOT)]
    others = [c for c in classes if c not in mine and asked.amount_of(RESOURCE_PREFIX + c.name)]
    if others and not beside:
        return Refusal(Code.MALFORMED, _wrong_slot(asked, others[0]))
    if len(mine) > 1:
        return Refusal(Code.MALFORMED, f"asks for the classes {' and '.join(c.name for c in mine)}; ask for one")
    if mine:
        return _of_class(asked, mine[0], index)
    if asked.resource == GPU_SLOT and beside:
        amounts = ((asked.resource, asked.amount),)
        return msgspec.structs.replace(asked, request=_whole(asked.request.count), amounts=amounts)
    return Refusal(Code.MALFORMED, _wrong_slot(asked, classes[0]))


def _of_class(asked: ContainerRequest, cls: DeviceClass, index: ClassIndex) -> ContainerRequest | Refusal:
    name = RESOURCE_PREFIX + cls.name
    units = asked.amount_of(name)
    if asked.amount != units * cls.count:
        right = f"{asked.resource}: {units * cls.count}"
        return Refusal(Code.MALFORMED, f"asks for {name}: {units} and {asked.resource}: {asked.amount}; write {right}")
    members = index.members(cls)
    if not members.mask.any():
        return Refusal(Code.NO_CLASS, f"asks for class {cls.name}, and no healthy device of the cluster matches it")
    request = _request(asked.request.count, cls, members.selector)
    return msgspec.structs.replace(asked, request=request, amounts=((asked.resource, asked.amount), (name, units)))


def _request(count: int, cls: DeviceClass, selector: Selector) -> Request:
    if cls.device_type != GPU:
        return Request(count=count, selector=selector, device_class=cls.name, shares=1)
    if not cls.shared:
        return msgspec.structs.replace(_whole(count), selector=selector, device_class=cls.name)
    return Request(
        count=count,
        memory=cls.memory,
        cores=cls.cores,
        # Compute time without memory would be useless: the same percentage applies to memory.
        memory_percent=Percent(0) if cls.memory else cls.cores,
        cores_limit=cls.cores,
        selector=selector,
        device_class=cls.name,
    )


def _whole(count: int) -> Request:
    return Request(count=count, cores=WHOLE, exclusive=True)


def _unknown(name: str, index: ClassIndex) -> Refusal:
    reason = index.spoiled(name)
    if reason is not None:
        return Refusal(Code.NO_CLASS, f"asks for class {name}, which is invalid: {reason}")
    return Refusal(Code.NO_CLASS, f"asks for class {name}, which does not exist")


def _wrong_slot(asked: ContainerRequest, cls: DeviceClass) -> str:
    right = GPU_SLOT if cls.device_type == GPU else DEVICE_SLOT
    kind = "GPUs" if cls.device_type == GPU else f"devices of type {cls.device_type}"
    return f"asks for {asked.resource} by class {cls.name}, which is of {kind}; use {right}"
