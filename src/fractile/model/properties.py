"""The properties of a device beyond what the core counts: an immutable mapping that equal devices share.

A cluster of 40,000 cards has a few dozen different mappings, so each card holds a pointer instead of two dozen strings.
What differs for every card (its index, its node) is therefore a field of the card, not a property.
"""

from collections.abc import Iterator, Mapping
from functools import lru_cache


class Properties(Mapping[str, str]):
    """An immutable, hashable mapping; equal to every other one with the same pairs."""

    __slots__ = ("_hash", "_values")

    def __init__(self, values: Mapping[str, str] | None = None) -> None:
        self._values = dict(values or {})
        self._hash = hash(frozenset(self._values.items()))

    def __getitem__(self, key: str) -> str:
        return self._values[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Properties) and self._values == other._values)

    def __repr__(self) -> str:
        return f"Properties({self._values!r})"


NONE = Properties()


def shared(values: Mapping[str, str]) -> Properties:
    """The shared mapping of those pairs."""
    return _shared(tuple(sorted(values.items()))) if values else NONE


@lru_cache(maxsize=4096)
def _shared(pairs: tuple[tuple[str, str], ...]) -> Properties:
    return Properties(dict(pairs))
