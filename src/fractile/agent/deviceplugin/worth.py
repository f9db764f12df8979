"""Whether two lists of slices mean the same. Pure; the dialects define what ids are worth."""

from collections.abc import Sequence

from fractile.model.placement import Slice


def same(a: Sequence[Slice], b: Sequence[Slice]) -> bool:
    """Whether both name the same cards with the same amounts, in any order."""
    return sorted(map(_key, a)) == sorted(map(_key, b))


def _key(s: Slice) -> tuple[str, int, int, int]:
    return s.card, s.memory, s.cores, s.shares
