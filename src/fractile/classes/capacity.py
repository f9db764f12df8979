"""The units of each class in a node's capacity, so that kube-scheduler's sums and ResourceQuota can count them.

Every class counts all that the node's healthy devices could give if they were empty: classes overlap, and the ledger
decides which pod gets a card. Pure, and level-triggered: wanted against seen.
"""

from collections.abc import Callable, Mapping

import msgspec

from fractile.classes.book import ClassBook
from fractile.classes.count import MOST, most_units
from fractile.classes.held import Units
from fractile.classes.nodes import KnownNode
from fractile.classes.table import Table, about_place
from fractile.model.device_class import DeviceClass
from fractile.model.units import NodeName
from fractile.policy.classes import matches, units_of, units_on
from fractile.wire.fractile.resource_class import resource_name


class ClassCapacity:
    """``held`` returns what the pods of a node hold; ``forget`` is called when the meaning of a class changes."""

    def __init__(self, table: Table, book: ClassBook, held: Callable[[NodeName], Units]) -> None:
        self._table = table
        self._book = book
        self._held = held
        self._known: dict[tuple[int, ...], dict[str, int]] = {}  # by make-up: classes without conditions on a place
        self._slices: dict[str, dict[int, int]] = {}  # by class and kind: slices of an empty device
        self._unplaced: list[DeviceClass] | None = None
        self._placed: list[DeviceClass] = []
        self.first_unsaid = ""  # the first class by name for which some node had no room; "" for none

    def forget(self, name: str) -> None:
        self._slices.pop(name, None)
        self._unplaced = None
        self._known.clear()
        self.first_unsaid = ""

    def wanted(self, node: NodeName) -> dict[str, int]:
        """The units of each class that the node's capacity should show."""
        found = dict(self._alike(self._table.make_up(node)))
        if self._placed:
            cards = [s.card for s in self._table.on_node(node)]
            found |= _positive(self._placed, lambda cls: units_on(cls, cards))
        for name, units in self._held(node).items():
            entry = self._book.find(name)
            if entry is not None and isinstance(entry.meaning, DeviceClass):
                found[name] = max(units, found.get(name, 0))
        if len(found) > MOST:
            first = sorted(found)
            self.first_unsaid = min(self.first_unsaid or first[MOST], first[MOST])
            found = {name: found[name] for name in first[:MOST]}
        return found

    def _alike(self, make_up: tuple[int, ...]) -> dict[str, int]:
        if self._unplaced is None:
            self._unplaced, self._placed = [], []
            for cls in self._book.classes():
                (self._placed if any(map(about_place, cls.requirements)) else self._unplaced).append(cls)
        found = self._known.get(make_up)
        if found is None:
            found = self._known[make_up] = _positive(self._unplaced, lambda cls: self._units(cls, make_up))
        return found

    def _units(self, cls: DeviceClass, make_up: tuple[int, ...]) -> int:
        """``policy.classes.units_on`` for equal devices: thousands of classes are judged once for each kind."""
        known = self._slices.setdefault(cls.name, {})
        for kind in set(make_up) - known.keys():
            card = self._table.kinds[kind]
            known[kind] = units_of(cls, card) if card is not None and matches(cls, card) else 0
        return most_units(tuple(known[kind] for kind in make_up), cls.count)


def _positive(classes: list[DeviceClass], units: Callable[[DeviceClass], int]) -> dict[str, int]:
    """The units of each class that has any; stops as soon as there are too many classes."""
    found: dict[str, int] = {}
    for cls in classes:
        number = units(cls)
        if number:
            found[cls.name] = number
            if len(found) > MOST:
                break
    return found


class CapacityChange(msgspec.Struct, frozen=True):
    """What to write into a node's capacity and allocatable; None removes the resource."""

    capacity: Mapping[str, str | None]
    allocatable: Mapping[str, str | None]

    def body(self) -> dict[str, object]:
        return {"status": {"capacity": dict(self.capacity), "allocatable": dict(self.allocatable)}}


def difference(wanted: Units, seen: KnownNode) -> CapacityChange | None:
    """None when the node already shows what it should."""
    if wanted == seen.capacity and wanted == seen.allocatable:
        return None
    return CapacityChange(_changes(wanted, seen.capacity), _changes(wanted, seen.allocatable))


def _changes(wanted: Units, seen: Units) -> dict[str, str | None]:
    written: dict[str, str | None] = {
        resource_name(name): str(units) for name, units in wanted.items() if seen.get(name) != units
    }
    return written | {resource_name(name): None for name in seen if name not in wanted}
