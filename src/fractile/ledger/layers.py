"""Long-lived selections of cards: a layer of the arrays with a digest of each node, like that of the arrays.

"Which nodes have a card of the class with so much free" is then one pass over 5,000 numbers and not over 40,000 cells,
which would also evict other data from the processor's caches. The digest follows the arrays lazily: writes since the
last read are worked out at the next read.
"""

import numpy as np

from fractile.ledger.arrays import CardArrays, CardLayer, Ints
from fractile.model.request import Selector
from fractile.model.units import CardUUID

_NEVER = -1


class KeptLayer(CardLayer):
    """A layer registered with ``CardArrays``: cards that leave their place leave it, and it grows with them."""

    _usable: Ints
    _unused: Ints
    _models: frozenset[str]

    def __init__(self, arrays: CardArrays) -> None:
        super().__init__(arrays)
        self.selector = Selector(members=self)  # these cards, without further conditions
        self._seen = _NEVER  # the arrays' ``changes`` as of the digest
        self._moves = _NEVER  # the arrays' ``moves`` as of the models
        arrays.keep(self)

    def mark(self, card: CardUUID) -> None:
        """Add a card; one that has no place in the arrays is ignored."""
        cell = self._arrays.cells.get(card)
        if cell is not None:
            self.mask[cell] = True
            self._seen = self._moves = _NEVER

    def drop(self) -> None:
        """Remove all cards, and stop following the arrays."""
        self._arrays.drop(self)
        self.mask = np.zeros(self._arrays.memory.shape, np.bool_)
        self._seen = self._moves = _NEVER

    @property
    def usable(self) -> Ints:
        """By column: the most free memory on one of the node's cards that also has free cores; -1 without any."""
        self._follow()
        return self._usable

    @property
    def unused(self) -> Ints:
        """By column: number of the node's cards that no pod holds a part of."""
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
