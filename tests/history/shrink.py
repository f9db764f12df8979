"""Makes a failing history shorter: parts of it are left out for as long as what is left fails in the same way."""

import time
from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")


def shrink(
    steps: Sequence[T],
    fails: Callable[[Sequence[T]], bool],
    *,
    seconds: float,
    clock: Callable[[], float] = time.monotonic,
) -> list[T]:
    """The shortest that was found within that time (delta debugging: halves, quarters, ... single steps)."""
    left, size = list(steps), max(1, len(steps) // 2)
    end = clock() + seconds
    while True:
        before = len(left)
        start = 0
        while start < len(left) and clock() < end:
            shorter = left[:start] + left[start + size :]
            if fails(shorter):
                left = shorter
            else:
                start += size
        if clock() >= end or (size == 1 and len(left) == before):
            return left
        size = max(1, size // 2)
