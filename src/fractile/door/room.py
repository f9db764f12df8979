"""Bytes that unanswered requests may hold in total.

``Room`` is for callers who have shown who they are: when it is full the next request is refused. ``Contested`` is for
unknown callers: there is always room for the next claim, at the expense of the oldest claim of the peer that holds
most. So peers that announce much and send nothing compete with each other, and a caller that sends what it announces is
done before its claim would be dropped.
"""

from collections.abc import Callable

from fractile.door.places import ConnectionPlace


class Room:
    """``hold`` reserves bytes before they arrive; the function that it returns gives them back."""

    def __init__(self, size: int) -> None:
        self._left = size

    @property
    def left(self) -> int:
        return self._left

    def hold(self, size: int, _place: ConnectionPlace) -> Callable[[], None] | None:
        """None when ``size`` exceeds what is left."""
        if size > self._left:
            return None
        self._left -= size
        return lambda: self._give(size)

    def _give(self, size: int) -> None:
        self._left += size


class RoomClaim:
    """What one request holds. ``drop`` ends the request; it is called at most once, after the claim was given back."""

    __slots__ = ("drop", "peer", "size")

    def __init__(self, peer: str, size: int, drop: Callable[[], None]) -> None:
        self.peer = peer
        self.size = size
        self.drop = drop


class Contested:
    """``claim`` before the bytes arrive, ``grow`` when there are more, ``give`` when the request is over."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._held = 0
        self._claims: dict[str, dict[RoomClaim, None]] = {}  # by peer, the oldest first
        self._sums: dict[str, int] = {}

    @property
    def held(self) -> int:
        return self._held

    def claim(self, peer: str, size: int, drop: Callable[[], None]) -> RoomClaim | None:
        """None when ``size`` exceeds the whole room."""
        if size > self._size:
            return None
        self._make_room(size)
        made = RoomClaim(peer, size, drop)
        self._claims.setdefault(peer, {})[made] = None
        self._add(peer, size)
        return made

    def grow(self, claim: RoomClaim, size: int) -> bool:
        """Raise the claim to at least ``size``; False when the claim itself had to go, or went before."""
        more = size - claim.size
        if self._is_held(claim) and more > 0:
            self._make_room(more)
            if self._is_held(claim):
                claim.size = size
                self._add(claim.peer, more)
        return self._is_held(claim)

    def give(self, claim: RoomClaim) -> None:
        """Give the claim back. May be called twice."""
        if not self._is_held(claim):
            return
        of_peer = self._claims[claim.peer]
        del of_peer[claim]
        self._add(claim.peer, -claim.size)
        if not of_peer:
            del self._claims[claim.peer], self._sums[claim.peer]

    def _is_held(self, claim: RoomClaim) -> bool:
        return claim in self._claims.get(claim.peer, ())

    def _make_room(self, size: int) -> None:
        while self._held + size > self._size and self._sums:
            peer = max(self._sums, key=self._sums.__getitem__)
            oldest = next(iter(self._claims[peer]))
            self.give(oldest)
            oldest.drop()

    def _add(self, peer: str, size: int) -> None:
        self._held += size
        self._sums[peer] = self._sums.get(peer, 0) + size
