"""The cards of the cluster as arrays: row = slot of a card on its node, column = node; and a digest of each node.

The extender needs to know which of all nodes have a card with so much free, or so many unused cards, so each node
has a digest (``ledger.digest``): a scan of 5,000 nodes is then a few passes over one short array each, 3 us instead of
20 for a pass over all cards. A slot without a card has memory 0 and free -1. The digest counts no free memory on cards
whose cores are all promised, since nothing more is placed there.

Non-GPU devices have their own arrays, in which "memory" counts their shares.
"""

from collections.abc import Iterable
from itertools import repeat

import numpy as np

from fractile.ledger.digest import Bools, Digest, Ints
from fractile.model.units import CardUUID, NodeName

__all__ = ["Bools", "CardArrays", "CardLayer", "Ints"]

_SLOTS = 8
_COLUMNS = 64
_FEW = 64  # the most changes that are tracked individually


class CardLayer:
    """A subset of the cards. Layers compare by identity, so that a result for one is never used for another."""

    def __init__(self, arrays: "CardArrays") -> None:
        self._arrays = arrays
        self.mask: Bools = np.zeros(arrays.memory.shape, np.bool_)

    def __contains__(self, card: CardUUID, /) -> bool:
        cell = self._arrays.cells.get(card)
        return cell is not None and bool(self.mask[cell])


class CardArrays:
    """Columns are assigned to nodes and returned; arrays grow by doubling. Shapes (slots, columns), int64 MiB."""

    def __init__(self) -> None:
        self.memory: Ints = np.zeros((_SLOTS, _COLUMNS), np.int64)
        self.free: Ints = np.full((_SLOTS, _COLUMNS), -1, np.int64)
        self.free_cores: Ints = np.zeros((_SLOTS, _COLUMNS), np.int64)
        self.coreless: Bools = np.zeros((_SLOTS, _COLUMNS), np.bool_)
        self.free_slots: Ints = np.zeros((_SLOTS, _COLUMNS), np.int64)  # device ids, where a card has few
        self.slices: Ints = np.zeros((_SLOTS, _COLUMNS), np.int64)  # containers that hold a part
        self.model: Ints = np.zeros((_SLOTS, _COLUMNS), np.int64)  # index into ``models``
        self.models: list[str] = []  # of the present cards; their order may change
        self._of_model: list[int] = []  # number of cards of each model
        self.cells: dict[CardUUID, tuple[int, int]] = {}
        self._cards: dict[tuple[int, int], CardUUID] = {}
        self.idle: Bools = np.zeros((_SLOTS, _COLUMNS), np.bool_)
        self.usable: Ints = np.full((_SLOTS, _COLUMNS), -1, np.int64)  # free memory on cards that also have free cores
        self.spare_cores: Ints = np.zeros((_SLOTS, _COLUMNS), np.int64)  # that can be promised
        self.moves = 0  # cards that came or went
        self.width = 0  # columns that were ever in use: all later ones are empty
        self._layers: list[CardLayer] = []
        self._written: list[int] = []  # the columns of the latest writes
        self._forgotten = 0  # number of earlier writes
        self._digest = Digest(_COLUMNS)
        self._stale: set[int] = set()  # columns written since the digest was last read
        self.names: list[NodeName | None] = [None] * _COLUMNS
        self._column: dict[str, int] = {}  # by NodeName; plain str so that names from the wire need no cast
        self._unused = list(range(_COLUMNS - 1, -1, -1))

    def __len__(self) -> int:
        """How many nodes have a column."""
        return len(self._column)

    @property
    def digest(self) -> Digest:
        """The digest of each node, from its cards as they are now."""
        if self._stale:
            self._digest.follow(list(self._stale), memory=self.memory, usable=self.usable, idle=self.idle)
            self._stale.clear()
        return self._digest

    @property
    def node_memory(self) -> Ints:
        """By column: MiB of all cards together."""
        return self.digest.memory

    @property
    def node_free(self) -> Ints:
        """By column: MiB free on all cards that also have free cores."""
        return self.digest.free

    @property
    def largest(self) -> Ints:
        """By column: MiB of the largest card."""
        return self.digest.largest

    @property
    def most_free(self) -> Ints:
        """By column: the most free MiB on one card, -1 without cards."""
        return self.digest.most_free

    @property
    def cards(self) -> Ints:
        """By column: number of cards."""
        return self.digest.cards

    @property
    def unused(self) -> Ints:
        """By column: number of cards that no pod holds a part of."""
        return self.digest.unused

    @property
    def fullness(self) -> Ints:
        """By column: used part of the memory of all cards, in 1/1000."""
        return self.digest.fullness

    def column(self, node: NodeName) -> int:
        """The node's column; a new one for a node not seen before."""
        found = self._column.get(node)
        if found is not None:
            return found
        if not self._unused:
            self._grow_columns()
        column = self._unused.pop()
        self.width = max(self.width, column + 1)
        self._column[node] = column
        self.names[column] = node
        return column

    def find(self, node: str) -> int:
        """The node's column, -1 when it has no cards."""
        return self._column.get(node, -1)

    def find_all(self, nodes: Iterable[str], count: int) -> Ints:
        """The columns of ``count`` node names, -1 for those without cards."""
        return np.fromiter(map(self._column.get, nodes, repeat(-1)), np.int64, count)

    def in_column(self, column: int) -> list[CardUUID]:
        """The cards of a node, by slot."""
        slots: Ints = self.memory[:, column].nonzero()[0]
        return [self._cards[slot, column] for slot in slots.tolist()]

    def card_at(self, slot: int, column: int) -> CardUUID | None:
        """The card in that slot."""
        return self._cards.get((slot, column))

    def free_slot(self, column: int) -> int:
        """A slot of the column that holds no card."""
        for slot in range(self.memory.shape[0]):
            if (slot, column) not in self._cards:
                return slot
        self._grow_slots()
        return self.free_slot(column)

    def keep(self, layer: CardLayer) -> None:
        """Keep the layer up to date: cards that leave their place also leave it; its owner marks new ones."""
        self._layers.append(layer)

    def drop(self, layer: CardLayer) -> None:
        """Stop keeping the layer up to date."""
        self._layers.remove(layer)

    @property
    def changes(self) -> int:
        """Number of writes so far."""
        return self._forgotten + len(self._written)

    def changed_since(self, changes: int) -> list[int] | None:
        """The columns written since there were ``changes`` writes; None when they are many or no longer known."""
        if changes < self._forgotten or self.changes - changes > _FEW:
            return None
        return list(dict.fromkeys(self._written[changes - self._forgotten :]))

    def put(self, slot: int, column: int, uuid: CardUUID, model: str) -> None:
        """Put a card into a free slot."""
        self.moves += 1
        self.cells[uuid] = slot, column
        self._cards[slot, column] = uuid
        if model not in self.models:
            self.models.append(model)
            self._of_model.append(0)
        number = self.models.index(model)
        self.model[slot, column] = number
        self._of_model[number] += 1

    def write(
        self,
        slot: int,
        column: int,
        *,
        memory: int,
        free: int,
        free_cores: int,
        idle: bool,
        coreless: bool = False,
        free_slots: int = 0,
        slices: int = 0,
    ) -> None:
        """Set what is free on one card."""
        self.memory[slot, column] = memory
        self.free[slot, column] = free
        self.free_cores[slot, column] = free_cores
        self.idle[slot, column] = idle
        self.coreless[slot, column] = coreless
        self.free_slots[slot, column] = free_slots
        self.slices[slot, column] = slices
        self.usable[slot, column] = _usable(free, free_cores)
        self.spare_cores[slot, column] = free_cores - coreless
        self._stale.add(column)
        self._written.append(column)
        if len(self._written) > 2 * _FEW:
            del self._written[:_FEW]
            self._forgotten += _FEW

    def agrees(
        self,
        slot: int,
        column: int,
        *,
        memory: int,
        free: int,
        free_cores: int,
        idle: bool,
        coreless: bool,
        free_slots: int,
        slices: int,
    ) -> bool:
        """Whether a card's values, and its node's digest, equal the given ones."""
        usable: list[int] = self.usable[:, column].tolist()
        return (
            self.memory[slot, column] == memory
            and self.free[slot, column] == free
            and self.free_cores[slot, column] == free_cores
            and bool(self.idle[slot, column]) is idle
            and bool(self.coreless[slot, column]) is coreless
            and self.free_slots[slot, column] == free_slots
            and self.slices[slot, column] == slices
            and self.usable[slot, column] == _usable(free, free_cores)
            and self.spare_cores[slot, column] == free_cores - coreless
            and self.node_free[column] == sum(max(0, f) for f in usable)
            and self.most_free[column] == max(usable)
            and self.unused[column] == sum(self.idle[:, column].tolist())
        )

    def clear(self, slot: int, column: int) -> None:
        """Take a card out; a node without cards returns its column."""
        self.moves += 1
        self.write(slot, column, memory=0, free=-1, free_cores=0, idle=False)
        self._leave_model(slot, column)
        del self.cells[self._cards.pop((slot, column))]
        for layer in self._layers:
            layer.mask[slot, column] = False
        node = self.names[column]
        if node is not None and not self.memory[:, column].any():
            del self._column[node]
            self.names[column] = None
            self._unused.append(column)

    def _leave_model(self, slot: int, column: int) -> None:
        """Uncount the card's model, and drop a model without cards: an agent may report any number of models, one after
        the other. The last model of the list takes the dropped one's index."""
        number = int(self.model[slot, column])
        self.model[slot, column] = 0
        self._of_model[number] -= 1
        if self._of_model[number]:
            return
        last, count = self.models.pop(), self._of_model.pop()
        if number < len(self.models):
            self.models[number], self._of_model[number] = last, count
            self.model[self.model == len(self.models)] = number

    def _grow_columns(self) -> None:
        width = self.memory.shape[1]
        self._pad(((0, 0), (0, width)))
        self._digest.grow(width)
        self.names += [None] * width
        self._unused = list(range(2 * width - 1, width - 1, -1))

    def _grow_slots(self) -> None:
        self._pad(((0, self.memory.shape[0]), (0, 0)))

    def _pad(self, widths: tuple[tuple[int, int], tuple[int, int]]) -> None:
        self.memory = np.pad(self.memory, widths)
        self.free = np.pad(self.free, widths, constant_values=-1)
        self.free_cores = np.pad(self.free_cores, widths)
        self.usable = np.pad(self.usable, widths, constant_values=-1)
        self.spare_cores = np.pad(self.spare_cores, widths)
        self.idle = np.pad(self.idle, widths)
        self.coreless = np.pad(self.coreless, widths)
        self.free_slots = np.pad(self.free_slots, widths)
        self.slices = np.pad(self.slices, widths)
        self.model = np.pad(self.model, widths)
        for layer in self._layers:
            layer.mask = np.pad(layer.mask, widths)


def _usable(free: int, free_cores: int) -> int:
    return free if free_cores > 0 or free < 0 else 0
