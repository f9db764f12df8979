"""Cards that are picked out for long: a layer of the arrays that keeps a digest of each node, as the arrays do.

So "which nodes have a card of the class with so much free" is one pass over 5,000 numbers and not over 40,000 cells,
which would also push out of the processor's caches what comes next. The digest follows the arrays lazily: what was
written since it was last asked for is worked out when it is asked for again.
"""

import numpy as np

from fractile.ledger.arrays import CardArrays, CardLayer, Ints
from fractile.model.request import Selector
from fractile.model.units import CardUUID

_NEVER = -1


class KeptLayer(CardLayer):
    """A layer that ``CardArrays`` knows: cards that leave their place leave it, and it grows with the arrays."""

    _usable: Ints
    _unused: Ints
    _models: frozenset[str]

    def __init__(self, arrays: CardArrays) -> None:
        super().__init__(arrays)
        self.selector = Selector(members=self)  # these cards, whatever else they are
        self._seen = _NEVER  # changes of the arrays that the digest knows
        self._moves = _NEVER  # of the arrays that the models know
        arrays.keep(self)

    def mark(self, card: CardUUID) -> None:
        """Take a card in; one that has no place here is passed over."""
        cell = self._arrays.cells.get(card)
        if cell is not None:
            self.mask[cell] = True
            self._seen = self._moves = _NEVER

    def drop(self) -> None:
        """Be a layer without cards, that nobody keeps any more."""
        self._arrays.drop(self)
        self.mask = np.zeros(self._arrays.memory.shape, np.bool_)
        self._seen = self._moves = _NEVER

    @property
    def usable(self) -> Ints:
        """By column: the most memory that is free, with cores beside it, on one of the node's cards; -1 without any."""
        self._follow()
        return self._usable

    @property
    def unused(self) -> Ints:
        """By column: how many of the node's cards nobody holds any part of."""
        self._follow()
        return self._unused

    @property
    def models(self) -> frozenset[str]:
        """The models of these cards."""
        arrays = self._arrays
        if self._moves != arrays.moves:
            self._moves = arrays.moves
            numbers: list[int] = np.unique(arrays.model[self.mask]).tolist()
            self._models = frozenset(arrays.models[number] for number in numbers)
        return self._models

    def _follow(self) -> None:
        arrays = self._arrays
        changes = arrays.changes
        if changes == self._seen:
            return
        grown = self._seen == _NEVER or len(self._usable) != len(arrays.names)
        columns = None if grown else arrays.changed_since(self._seen)
        if columns is None:
            self._usable = np.where(self.mask, arrays.usable, -1).max(axis=0)
            self._unused = (self.mask & arrays.idle).sum(axis=0)
        else:
            mask = self.mask[:, columns]
            self._usable[columns] = np.where(mask, arrays.usable[:, columns], -1).max(axis=0)
            self._unused[columns] = (mask & arrays.idle[:, columns]).sum(axis=0)
        self._seen = changes
