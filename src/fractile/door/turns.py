"""Whose handshake begins next: peers take turns, and each peer's newest connection comes first.

More connections may come than handshakes may begin. The oldest are dropped anyway, so the newest has the best chance;
and a peer that opens thousands delays only itself.
"""

from typing import Generic, TypeVar

from fractile.door.places import ConnectionPlace

P = TypeVar("P", bound=ConnectionPlace)


class WaitingLine(Generic[P]):
    """Connections that wait. ``leave`` accepts connections that do not."""

    def __init__(self) -> None:
        self._peers: dict[str, dict[P, None]] = {}  # the peer whose turn it is comes first

    def __bool__(self) -> bool:
        return bool(self._peers)

    def __len__(self) -> int:
        return sum(map(len, self._peers.values()))

    def wait(self, place: P) -> None:
        self._peers.setdefault(place.peer, {})[place] = None

    def leave(self, place: P) -> None:
        group = self._peers.get(place.peer, {})
        group.pop(place, None)
        if not group:
            self._peers.pop(place.peer, None)

    def next(self) -> P:
        """Remove and return the next connection; KeyError when none waits."""
        peer = next(iter(self._peers), "")
        group = self._peers.pop(peer)
        place, _ = group.popitem()
        if group:
            self._peers[peer] = group  # behind the others
        return place
