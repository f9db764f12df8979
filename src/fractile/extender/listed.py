"""The nodes of a request as columns of the ledger, found without building their names.

This pays only for lists of many names, and only while nodes neither come nor go: the search table is built when a
second such request arrives for the same nodes, which takes some milliseconds.
"""

from collections.abc import Iterator, Sequence
from typing import overload

import numpy as np

from fractile.ledger.arrays import CardArrays, Ints
from fractile.wire.known_names import FoundNames, KnownNames
from fractile.wire.kubernetes import extender as wire
from fractile.wire.kubernetes.extender import HostPriority, ListedArgs

_MANY = 16_384  # bytes of names: about 500


class Listed(Sequence[str]):
    """Names of nodes, all known to the ledger. Valid until the ledger changes."""

    def __init__(self, arrays: CardArrays, known: KnownNames, found: FoundNames) -> None:
        self.arrays = arrays
        self.columns: Ints = found.places
        self._known, self._found = known, found

    def __len__(self) -> int:
        return len(self.columns)

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [self._name(c) for c in self.columns[index].tolist()]
        return self._name(int(self.columns[index]))

    def __iter__(self) -> Iterator[str]:
        return map(self._name, self.columns.tolist())

    def __contains__(self, node: object) -> bool:
        return isinstance(node, str) and bool((self.columns == self.arrays.find(node)).any())

    def scored(self, scores: Ints) -> bytes:
        """The answer of prioritize."""
        return self._known.scored(self._found, scores)

    def _name(self, column: int) -> str:
        name = self.arrays.names[column]
        assert name is not None  # it was found by its name
        return name


class Lists:
    """Reads the names of requests. ``arrays`` are those of the ledger."""

    def __init__(self, arrays: CardArrays) -> None:
        self._arrays = arrays
        self._known: KnownNames | None = None
        self._moves = self._met = -1  # the arrays' ``moves`` for which ``_known`` is right, and of the last request

    def names_of(self, args: ListedArgs) -> Sequence[str]:
        """The nodes that the request names, in either form. Raises WireError when they are not names."""
        text = args.node_names
        known = self._current() if len(text) >= _MANY else None
        if known is not None:
            found = known.find(text)
            if found is not None:
                return Listed(self._arrays, known, found)
        return wire.listed_names(args)

    def _current(self) -> KnownNames | None:
        moves = self._arrays.moves
        if moves != self._moves:
            if moves != self._met:
                self._met = moves
                return None
            if self._known is None or not self._known.holds(self._arrays.names):
                self._known = KnownNames(self._arrays.names)
            self._moves = moves
        return self._known


def columns_of(names: Sequence[str], arrays: CardArrays) -> Ints:
    """The column of each name, -1 for nodes without such devices."""
    if isinstance(names, Listed) and names.arrays is arrays:
        return names.columns
    return arrays.find_all(names, len(names))


def scored(names: Sequence[str], scores: Ints) -> bytes:
    """The answer of prioritize."""
    if isinstance(names, Listed):
        return names.scored(scores)
    return wire.encode(list(map(HostPriority, names, scores.tolist())))


def nothing(names: Sequence[str]) -> Ints:
    """A score of 0 for every name."""
    return np.zeros(len(names), np.int64)
