"""Per node: sums over its cards, the largest value of one card, and the number of cards; one number per column.

The digest follows the cards when it is read, not with every write: the 90,000 writes of a rebuild are then worked out
in one pass, and a few writes between two filters cost no more than they would one by one.
"""

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

_FEW = 4  # columns of 8 cards for which plain Python is faster than numpy's calls


class Digest:
    """For ``width`` columns, initially without cards."""

    def __init__(self, width: int) -> None:
        self.memory: Ints = np.zeros(width, np.int64)
        self.free: Ints = np.zeros(width, np.int64)
        self.largest: Ints = np.zeros(width, np.int64)
        self.most_free: Ints = np.full(width, -1, np.int64)
        self.cards: Ints = np.zeros(width, np.int64)
        self.unused: Ints = np.zeros(width, np.int64)
        self.fullness: Ints = np.zeros(width, np.int64)  # of the node's memory, in 1/1000

    def grow(self, more: int) -> None:
        """Append ``more`` columns without cards."""
        self.memory = np.pad(self.memory, (0, more))
        self.free = np.pad(self.free, (0, more))
        self.largest = np.pad(self.largest, (0, more))
        self.most_free = np.pad(self.most_free, (0, more), constant_values=-1)
        self.cards = np.pad(self.cards, (0, more))
        self.unused = np.pad(self.unused, (0, more))
        self.fullness = np.pad(self.fullness, (0, more))

    def follow(self, columns: list[int], *, memory: Ints, usable: Ints, idle: Bools) -> None:
        """Work out the columns that were written; the arrays hold all cards, (slots, columns)."""
        if len(columns) <= _FEW:
            for column in columns:
                self._one(column, memory=memory, usable=usable, idle=idle)
        else:
            self._many(np.array(columns), memory=memory, usable=usable, idle=idle)

    def _one(self, column: int, *, memory: Ints, usable: Ints, idle: Bools) -> None:
        sizes: list[int] = memory[:, column].tolist()
        free: list[int] = usable[:, column].tolist()
        total, left = sum(sizes), sum(f for f in free if f > 0)
        self.memory[column] = total
        self.free[column] = left
        self.largest[column] = max(sizes)
        self.most_free[column] = max(free)
        self.cards[column] = len(sizes) - sizes.count(0)
        self.unused[column] = idle[:, column].tolist().count(True)
        self.fullness[column] = 1000 * (total - left) // max(1, total)

    def _many(self, columns: Ints, *, memory: Ints, usable: Ints, idle: Bools) -> None:
        sizes, free = memory[:, columns], usable[:, columns]
        total, left = sizes.sum(axis=0), np.maximum(free, 0).sum(axis=0)
        self.memory[columns] = total
        self.free[columns] = left
        self.largest[columns] = sizes.max(axis=0)
        self.most_free[columns] = free.max(axis=0)
        self.cards[columns] = (sizes != 0).sum(axis=0)
        self.unused[columns] = idle[:, columns].sum(axis=0)
        self.fullness[columns] = 1000 * (total - left) // np.maximum(1, total)
