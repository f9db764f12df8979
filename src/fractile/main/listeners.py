"""One callback that calls several: objects that need each other are built first, and connected afterwards."""

from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Listeners(Generic[T]):
    """Calls each callback, in the order in which they were added."""

    def __init__(self, *tell: Callable[[T], object]) -> None:
        self._tell = list(tell)

    def add(self, *tell: Callable[[T], object]) -> None:
        self._tell += tell

    def __call__(self, about: T) -> None:
        for each in self._tell:
            each(about)
