"""All devices of the cluster as columns, so that a class is found among 40,000 with a few array operations.

Devices with equal properties are one *kind* (a few dozen in a cluster): a selector is judged once per kind, and
conditions on a device's place, its node or its index, once per node or index. What is free is read from the ledger, its
only source. The kinds with changes are remembered until they are taken. Only numbers and the name of a device are kept.
"""

from collections.abc import Callable, Sequence

import msgspec
import numpy as np

from fractile.ledger.arrays import Bools, Ints
from fractile.ledger.ledger import Ledger
from fractile.model.card import Card, DeviceKind
from fractile.model.device_class import DeviceClass, PropertyRequirement
from fractile.model.properties import Properties
from fractile.model.sharing import SharingRule
from fractile.model.units import CardUUID, NodeName
from fractile.policy.classes import holds
from fractile.wire.fractile.extended_resource import (
    AVAILABLE,
    BOUND,
    HEALTHY,
    LOST,
    NODE_LOST,
    PARTLY_BOUND,
    PENDING,
    UNHEALTHY,
)

# NODE_LOST is the reason of devices that are Lost because of their node; it is kept as a phase of its own.
PHASES = (AVAILABLE, PARTLY_BOUND, BOUND, PENDING, UNHEALTHY, LOST, NODE_LOST)
_WELL = np.array([phase in HEALTHY for phase in PHASES])
_NOWHERE = -1
_ROWS = 64
_JUDGED = 256  # conditions on places whose result is cached

_Kind = tuple[str, str, int, int, Properties]
_COLUMNS = (
    "kind",
    "node",
    "index",
    "phase",
    "other",
    "slot",
    "column",
    "free",
    "free_cores",
    "idle",
    "coreless",
    "slices",
)


def about_place(requirement: PropertyRequirement) -> bool:
    """Whether the condition is about where the device is, not what it is."""
    return requirement.key in ("nodeName", "index")


class SeenDevice(msgspec.Struct, frozen=True):
    """One device as the table knows it."""

    name: str
    node: NodeName
    phase: str
    card: Card


class Table:
    """One row per ExtendedResource. A row number is kept until its device is removed, then reused."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._rows: dict[str, int] = {}
        self._names: list[str] = []
        self._unused: list[int] = []
        self._kinds: list[Card | None] = [None]  # a card of each kind; 0 is the kind of no device
        self._kind_of: dict[_Kind, int] = {}
        self._nodes: list[NodeName] = []
        self._node_of: dict[NodeName, int] = {}
        self._on_node: list[list[int]] = []
        self._judged: dict[PropertyRequirement, Bools] = {}
        self._changed: set[int] = set()
        self._reshared = 0
        self.kind: Ints = np.zeros(_ROWS, np.int64)
        self.node: Ints = np.zeros(_ROWS, np.int64)
        self.index: Ints = np.zeros(_ROWS, np.int64)
        self.phase: Ints = np.zeros(_ROWS, np.int64)
        self.other: Bools = np.zeros(_ROWS, np.bool_)  # not a GPU: the ledger has separate arrays for those
        self.slot: Ints = np.zeros(_ROWS, np.int64)  # with ``column``: the cell in the ledger's arrays
        self.column: Ints = np.full(_ROWS, _NOWHERE, np.int64)
        self.free: Ints = np.zeros(_ROWS, np.int64)
        self.free_cores: Ints = np.zeros(_ROWS, np.int64)
        self.idle: Bools = np.zeros(_ROWS, np.bool_)
        self.coreless: Bools = np.zeros(_ROWS, np.bool_)
        self.slices: Ints = np.zeros(_ROWS, np.int64)

    def __len__(self) -> int:
        return len(self._rows)

    # ── devices ──────────────────────────────────────────────────────────────────────────────────────────────────

    def put(self, name: str, card: Card, phase: str) -> bool:
        """Set a device as its object shows it now, after the ledger; returns whether anything changed."""
        kind, node = self._kind(card), self._node(card.node)
        code = PHASES.index(phase) if phase in PHASES else PHASES.index(UNHEALTHY)
        row = self._rows.get(name)
        if row is None:
            row = self._new(name)
        else:
            was = (self.kind[row], self.node[row], self.index[row], self.phase[row])
            self._find(row, card)
            if was == (kind, node, card.index, code):
                return False
            self._on_node[int(self.node[row])].remove(row)
            self._changed.add(int(self.kind[row]))
        self._changed.add(kind)
        self.kind[row], self.node[row], self.index[row], self.phase[row] = kind, node, card.index, code
        self._on_node[node].append(row)
        self._find(row, card)
        return True

    def remove(self, name: str) -> NodeName | None:
        """Remove a device whose object is gone; returns its node."""
        row = self._rows.pop(name, None)
        if row is None:
            return None
        node = int(self.node[row])
        self._on_node[node].remove(row)
        self._changed.add(int(self.kind[row]))
        self.kind[row], self.column[row] = 0, _NOWHERE
        self._names[row] = ""
        self._unused.append(row)
        return self._nodes[node]

    def take_changed(self) -> set[int]:
        """The kinds of all devices that came, went or changed since the last call."""
        found, self._changed = self._changed, set()
        return found

    def refresh(self) -> bool:
        """Read what is free from the ledger; returns whether that changed for any device."""
        count = len(self._names)
        there, other = self.column[:count] >= 0, self.other[:count]
        changed = np.zeros(count, np.bool_)
        for rows, arrays in (
            (np.flatnonzero(there & ~other), self._ledger.arrays),
            (np.flatnonzero(there & other), self._ledger.arrays_of(DeviceKind.OTHER)),
        ):
            at = self.slot[rows], self.column[rows]
            for mine, theirs in (
                (self.free, arrays.free),
                (self.free_cores, arrays.free_cores),
                (self.idle, arrays.idle),
                (self.coreless, arrays.coreless),
                (self.slices, arrays.slices),
            ):
                now = theirs[at]
                changed[rows] |= mine[rows] != now
                mine[rows] = now
        if self._reshared != self._ledger.reshared:
            self._reshared = self._ledger.reshared
            changed[:] = True
        kinds = set(np.unique(self.kind[:count][changed]).tolist()) - {0}
        self._changed |= kinds
        return bool(kinds)

    def on_node(self, node: NodeName) -> list[SeenDevice]:
        """The node's devices by index."""
        found = self._node_of.get(node)
        rows = [] if found is None else self._on_node[found]
        return sorted((self._seen(row) for row in rows), key=lambda s: (s.card.index, s.name))

    def make_up(self, node: NodeName) -> tuple[int, ...]:
        """The kinds of the node's healthy devices: nodes with the same make-up can give the same."""
        found = self._node_of.get(node)
        rows = [] if found is None else self._on_node[found]
        return tuple(sorted(int(self.kind[row]) for row in rows if _WELL[self.phase[row]]))

    def node_named(self, number: int) -> NodeName:
        """The node that has this number in ``node``."""
        return self._nodes[number]

    def nodes(self) -> list[NodeName]:
        """The nodes that have devices."""
        return [node for node, rows in zip(self._nodes, self._on_node, strict=True) if rows]

    # ── kinds and classes ────────────────────────────────────────────────────────────────────────────────────────

    @property
    def kinds(self) -> Sequence[Card | None]:
        """A card of each kind, without a place. Kind 0 means no device."""
        return self._kinds

    def population(self) -> Ints:
        """Number of devices of each kind."""
        found: Ints = np.bincount(self.kind[: len(self._names)], minlength=len(self._kinds))
        found[0] = 0
        return found

    def members(self, cls: DeviceClass) -> Ints:
        """The rows of the devices of the class, healthy or not."""
        kinds = [c is not None and self.is_of(cls, c) for c in self._kinds]
        found = np.array(kinds)[self.kind[: len(self._names)]]
        for requirement in filter(about_place, cls.requirements):
            values, of_row = (self._nodes, self.node) if requirement.key == "nodeName" else (_INDEXES, self.index)
            found &= self._judge(requirement, values)[of_row[: len(self._names)]]
        return np.flatnonzero(found)

    def somewhere(self, requirement: PropertyRequirement) -> bool:
        """Whether any device is at a place that meets the condition."""
        values, of_row = (self._nodes, self.node) if requirement.key == "nodeName" else (_INDEXES, self.index)
        there = self.kind[: len(self._names)] != 0
        return bool(self._judge(requirement, values)[of_row[: len(self._names)][there]].any())

    def well(self, rows: Ints) -> Bools:
        """Which of the rows may be given to pods."""
        return _WELL[self.phase[rows]]

    def numbers(self, rows: Ints, of: Callable[[Card], int]) -> Ints:
        """A number for each device that is the same for all of its kind."""
        return np.array([0 if c is None else of(c) for c in self._kinds], np.int64)[self.kind[rows]]

    @property
    def ruled(self) -> bool:
        """Whether there are rules about how cards may be cut."""
        return self._ledger.ruled

    def by_rule(self, rows: Ints, of: Callable[[Card, SharingRule], int]) -> Ints:
        """A number for each device that is the same for all of its kind under the same rule."""
        width = len(self._nodes)
        places, which = np.unique(self.kind[rows] * width + self.node[rows], return_inverse=True)
        pairs: list[int] = places.tolist()
        known: dict[tuple[int, SharingRule], int] = {}
        found: list[int] = []
        for kind, node in (divmod(pair, width) for pair in pairs):
            card = self._kinds[kind]
            assert card is not None, "a device has a kind"
            key = kind, self._ledger.rule_on(self._nodes[node], card.model)
            if key not in known:
                known[key] = of(card, key[1])
            found.append(known[key])
        return np.array(found, np.int64)[which]

    def is_of(self, cls: DeviceClass, card: Card) -> bool:
        """Whether a device of that kind belongs to the class, apart from conditions on its place."""
        return card.type == cls.device_type and all(
            holds(r, card.property(r.key)) for r in cls.requirements if not about_place(r)
        )

    def _judge(self, requirement: PropertyRequirement, values: Sequence[str]) -> Bools:
        found = self._judged.get(requirement)
        if found is None or found.size != len(values):
            if len(self._judged) >= _JUDGED:
                self._judged.clear()
            found = self._judged[requirement] = np.array([holds(requirement, v or None) for v in values], np.bool_)
        return found

    # ── rows ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def _seen(self, row: int) -> SeenDevice:
        kind, node = self._kinds[int(self.kind[row])], self._nodes[int(self.node[row])]
        assert kind is not None, f"row {row} is not in use"
        phase = PHASES[int(self.phase[row])]
        card = msgspec.structs.replace(kind, index=int(self.index[row]), node=node, healthy=phase in HEALTHY)
        return SeenDevice(self._names[row], node, phase, card)

    def _find(self, row: int, card: Card) -> None:
        """Set the ledger's cell of the card; none if nothing is placed on it for now."""
        self.other[row] = card.kind is not DeviceKind.GPU
        arrays = self._ledger.arrays_of(card.kind)
        self.slot[row], self.column[row] = arrays.cells.get(card.uuid, (0, _NOWHERE))
        if self.column[row] == _NOWHERE:
            self.free[row] = self.free_cores[row] = self.slices[row] = 0
            self.idle[row] = self.coreless[row] = False

    def _new(self, name: str) -> int:
        if self._unused:
            row = self._unused.pop()
            self._names[row] = name
        else:
            row = len(self._names)
            self._names.append(name)
            if row == self.kind.size:
                self._grow()
        self._rows[name] = row
        return row

    def _grow(self) -> None:
        width = self.kind.size
        for column in _COLUMNS:
            setattr(self, column, np.pad(getattr(self, column), (0, width)))
        self.column[width:] = _NOWHERE

    def _kind(self, card: Card) -> int:
        key = (card.type, card.model, card.memory, card.shares, card.properties)
        found = self._kind_of.get(key)
        if found is None:
            found = self._kind_of[key] = len(self._kinds)
            bare = Card(
                uuid=CardUUID(""),
                index=0,
                model=card.model,
                memory=card.memory,
                type=card.type,
                shares=card.shares,
                properties=card.properties,
            )
            self._kinds.append(bare)
        return found

    def _node(self, node: NodeName) -> int:
        found = self._node_of.get(node)
        if found is None:
            found = self._node_of[node] = len(self._nodes)
            self._nodes.append(node)
            self._on_node.append([])
        return found


_INDEXES = [str(index) for index in range(4096)]  # all that ``wire.fractile.extended_resource`` admits
