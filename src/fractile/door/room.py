"""Bytes that requests may hold together while they are not answered."""


class Room:
    """``take`` before the bytes come, ``give`` when they are gone."""

    def __init__(self, size: int) -> None:
        self._left = size

    @property
    def left(self) -> int:
        return self._left

    def take(self, size: int) -> bool:
        """False when so many would be too many."""
        if size > self._left:
            return False
        self._left -= size
        return True

    def give(self, size: int) -> None:
        self._left += size
