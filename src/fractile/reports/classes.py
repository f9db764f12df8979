"""Reports on classes and their devices, from the API server's objects. Pure: objects in, report out.

The control plane need not run: the same code that feeds its ledger and table feeds a ledger and a table here, so both
count the same.
"""

from collections.abc import Hashable, Mapping, Sequence

import msgspec

from fractile.classes.book import ClassBook
from fractile.classes.count import CountedDevices, Remark, count, count_by_node, remark
from fractile.classes.table import Table, about_place
from fractile.dialects.agents import memory_unit, served
from fractile.ledger.ledger import Ledger
from fractile.model.card import GPU, Card
from fractile.model.device_class import DeviceClass, Operator, PropertyRequirement
from fractile.model.placement import Charge
from fractile.model.units import CardUUID, NodeName, PodUID
from fractile.policy.classes import matches
from fractile.watch.event_handlers import CardHandlers, PodHandlers
from fractile.watch.waiting_pods import WaitingPods
from fractile.wire.fractile.departed import DepartedContainer, departed
from fractile.wire.fractile.extended_resource import ExtendedResource
from fractile.wire.fractile.resource_class import Invalid, ResourceClass, resource_name
from fractile.wire.kubernetes.objects import Node, Pod
from fractile.wire.output.class_report import (
    ClassEntry,
    ClassReport,
    DeviceEntry,
    DeviceHolder,
    DeviceReport,
    DeviceSums,
    NodeShare,
    UnitSums,
)


class ClassObjects(msgspec.Struct, frozen=True, kw_only=True):
    """What was read from the API server."""

    cards: Sequence[ExtendedResource]
    classes: Sequence[ResourceClass]
    nodes: Sequence[Node]
    pods: Sequence[Pod]


class Picture:
    """The cluster as the objects show it."""

    def __init__(self, objects: ClassObjects) -> None:
        self._objects = objects
        self.ledger = Ledger(lambda: 0.0)
        self.table = Table(self.ledger)
        self.book = ClassBook()
        self.cards: list[tuple[ExtendedResource, Card]] = []
        self._alike: dict[Hashable, list[DeviceClass]] = {}  # the classes that devices of one kind may belong to
        self._feed_cards()
        self._feed_pods()
        self.table.refresh()
        for each in objects.classes:
            self.book.put(each)

    def classes(self, only: str = "") -> ClassReport:
        """All classes by name, or only ``only``."""
        return ClassReport(classes=tuple(self._class(name) for name in self.book.names() if only in ("", name)))

    def devices(self, wish: "DeviceFilter") -> DeviceReport:
        """The devices that ``wish`` selects, by node, type and index."""
        holders = self._holders()
        found = (self._device(resource, card, holders) for resource, card in self.cards if wish.about(card))
        shown = sorted(
            (d for d in found if wish.admits(d)), key=lambda d: (d.node, d.type != GPU, d.type, d.index, d.id)
        )
        return DeviceReport(devices=tuple(shown))

    # ── classes ──────────────────────────────────────────────────────────────────────────────────────────────────

    def _class(self, name: str) -> ClassEntry:
        meaning = self.book.entries[name].meaning
        if isinstance(meaning, Invalid):
            return _entry(DeviceClass(name), CountedDevices(), Remark(meaning.reason, meaning.message), {})
        figures = count(meaning, self.table)
        return _entry(meaning, figures, remark(meaning, self.table, figures), count_by_node(meaning, self.table))

    # ── devices ──────────────────────────────────────────────────────────────────────────────────────────────────

    def _device(
        self,
        resource: ExtendedResource,
        card: Card,
        holders: Mapping[CardUUID, list[tuple[DeviceHolder, Charge]]],
    ) -> DeviceEntry:
        held = holders.get(card.uuid, [])
        charges = {id(charge): charge for _, charge in held}.values()
        gone = departed(resource)
        status = resource.status
        return DeviceEntry(
            name=resource.metadata.name,
            id=card.uuid,
            type=card.type,
            node=card.node,
            index=card.index,
            model=card.model,
            phase=status.phase,
            reason=status.reason,
            message=status.message,
            healthy=card.healthy,
            memory_mib=card.memory,
            held_memory_mib=sum(c.memory for c in (*charges, *gone)),
            held_cores_percent=sum(c.cores for c in (*charges, *gone)),
            shares=card.shares,
            held_shares=sum(c.shares for c in charges),
            properties={key: str(value) for key, value in sorted((resource.spec.properties or {}).items())},
            classes=self._classes_of(card),
            holders=tuple(
                sorted(
                    (*(holder for holder, _ in held), *map(_deleted, gone)),
                    key=lambda h: (h.deleted, h.namespace, h.pod, h.container),
                )
            ),
        )

    def _classes_of(self, card: Card) -> tuple[str, ...]:
        """The device's classes by name. Equal devices are judged once, except for conditions on their place."""
        kind = (card.type, card.model, card.memory, card.shares, card.properties)
        alike = self._alike.get(kind)
        if alike is None:
            alike = self._alike[kind] = [c for c in self.book.classes() if self.table.is_of(c, card)]
        return tuple(c.name for c in alike if not any(map(about_place, c.requirements)) or matches(c, card))

    def _holders(self) -> dict[CardUUID, list[tuple[DeviceHolder, Charge]]]:
        """For each device, the containers that hold a part of it, each with its pod's charge on that device."""
        found: dict[CardUUID, list[tuple[DeviceHolder, Charge]]] = {}
        for pod in self._objects.pods:
            entry = self.ledger.entry(PodUID(pod.metadata.uid))
            if entry is None:
                continue
            charges = {charge.card: charge for charge in entry.charges}
            for container in entry.placement.containers:
                for part in container.slices:
                    holder = DeviceHolder(
                        namespace=pod.metadata.namespace,
                        pod=pod.metadata.name,
                        container=container.container,
                        memory_mib=part.memory,
                        cores_percent=part.cores,
                        shares=part.shares,
                    )
                    found.setdefault(part.card, []).append((holder, charges[part.card]))
        return found

    # ── objects ──────────────────────────────────────────────────────────────────────────────────────────────────

    def _feed_cards(self) -> None:
        # Malformed ones are left out; ``fractile inspect`` lists them among its problems.
        handlers = CardHandlers(self.ledger, freed=lambda node: None, shown=self._shown)
        for resource in self._objects.cards:
            handlers.changed(resource)

    def _shown(self, resource: ExtendedResource, card: Card) -> None:
        self.table.put(resource.metadata.name, card, resource.status.phase)
        self.cards.append((resource, card))

    def _feed_pods(self) -> None:
        handlers = PodHandlers(
            ledger=self.ledger,
            waiting=WaitingPods(),
            unit=memory_unit(self._objects.nodes, ((c.node, c) for _, c in self.cards)),
            warn=lambda pod, reason, message: None,
            freed=lambda node: None,
            needs_repair=lambda pod: None,
            dialects=served(self._objects.cards),
        )
        for pod in self._objects.pods:
            handlers.changed(pod)


class DeviceFilter(msgspec.Struct, frozen=True):
    """Which devices to show; "" means any. ``free``: only healthy devices of which no part is held."""

    node: str = ""
    type: str = ""
    device_class: str = ""
    free: bool = False

    def about(self, card: Card) -> bool:
        return self.node in ("", card.node) and self.type in ("", card.type)

    def admits(self, device: DeviceEntry) -> bool:
        return (not self.device_class or self.device_class in device.classes) and (
            not self.free or (device.healthy and not device.holders)
        )


def _deleted(gone: DepartedContainer) -> DeviceHolder:
    return DeviceHolder(
        namespace=gone.namespace,
        pod=gone.pod,
        container=gone.container,
        memory_mib=gone.memory,
        cores_percent=gone.cores,
        shares=0,
        deleted=True,
    )


def describe(requirement: PropertyRequirement) -> str:
    """One condition in words: "model = Tesla V100", "memory > 10GiB", "ecc exists"."""
    values = ", ".join(requirement.values)
    match requirement.operator:
        case Operator.IN:
            return f"{requirement.key} = {values}" if len(requirement.values) == 1 else f"{requirement.key} in {values}"
        case Operator.NOT_IN:
            return f"{requirement.key} not in {values}"
        case Operator.EXISTS:
            return f"{requirement.key} exists"
        case Operator.DOES_NOT_EXIST:
            return f"{requirement.key} does not exist"
        case ordered:
            return f"{requirement.key} {_SIGNS[ordered]} {values}"


_SIGNS = {Operator.GT: ">", Operator.LT: "<", Operator.GE: ">=", Operator.LE: "<="}


def _entry(
    cls: DeviceClass, figures: CountedDevices, said: Remark, nodes: Mapping[NodeName, CountedDevices]
) -> ClassEntry:
    return ClassEntry(
        name=cls.name,
        resource=resource_name(cls.name),
        device_type=cls.device_type,
        selector=tuple(map(describe, cls.requirements)),
        memory_mib=cls.memory,
        cores_percent=cls.cores,
        count=cls.count,
        shared=cls.shared,
        devices=_devices(figures),
        units=_units(figures),
        nodes=tuple(NodeShare(node, _devices(own), _units(own)) for node, own in nodes.items()),
        reason=said.reason,
        message=said.message,
    )


def _devices(figures: CountedDevices) -> DeviceSums:
    return DeviceSums(figures.total, figures.free, figures.unhealthy)


def _units(figures: CountedDevices) -> UnitSums:
    return UnitSums(figures.units, figures.free_units)
