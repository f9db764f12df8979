"""Who is dropped when too many are connected: never the one that has just come, so there is always a way in.

A connection is a stranger until its protocol says that the caller has shown a certificate. Strangers are dropped before
known callers, and among them the one that has been silent longest, of the address that has most connections: a peer
that opens thousands competes with nobody but itself. Addresses from which a known caller came lately come last of all.
Every request that arrives whole makes its connection the youngest again.
"""

import ipaddress

import msgspec

_REMEMBERED = 64  # addresses of known callers
_SUBNET = 64  # bits of an IPv6 address: one machine has all addresses of such a network


class Rules(msgspec.Struct, frozen=True):
    """Connections at the same time. ``each``: strangers of one peer address."""

    strangers: int = 128
    known: int = 512
    each: int = 128


class Place:
    """One connection's place. ``drop`` ends the connection; it may be called in any state."""

    __slots__ = ("is_known", "peer")

    def __init__(self, peer: str) -> None:
        self.peer = peer
        self.is_known = False

    def drop(self) -> None:
        raise NotImplementedError  # each kind of connection closes in its own way


class Places:
    """All places. Those that have to go are returned; the caller drops them."""

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._strangers: dict[str, dict[Place, None]] = {}  # by peer, the one that has been silent longest first
        self._known: dict[Place, None] = {}
        self._homes: dict[str, None] = {}  # addresses of known callers, the latest last
        self._count = 0

    @property
    def strangers(self) -> int:
        return self._count

    @property
    def known(self) -> int:
        return len(self._known)

    def come(self, place: Place) -> list[Place]:
        """Take a place as a stranger."""
        group = self._strangers.setdefault(place.peer, {})
        group[place] = None
        self._count += 1
        if len(group) > self._rules.each:
            return [self._oldest(group)]
        return [self._next()] if self._count > self._rules.strangers else []

    def is_home(self, peer: str) -> bool:
        """Whether a known caller came from there lately."""
        return peer in self._homes

    def introduce(self, place: Place) -> list[Place]:
        """The caller has shown who it is."""
        if place.is_known or not self._remove_stranger(place):
            return []
        place.is_known = True
        self._known[place] = None
        self._remember(place.peer)
        if len(self._known) <= self._rules.known:
            return []
        first = next(iter(self._known))
        self.leave(first)
        return [first]

    def touch(self, place: Place) -> None:
        """A whole request has come over it."""
        group = self._known if place.is_known else self._strangers.get(place.peer, {})
        if place in group:
            del group[place]
            group[place] = None

    def leave(self, place: Place) -> None:
        """It is closed; may be said again."""
        if self._known.pop(place, self) is self:
            self._remove_stranger(place)

    def all(self) -> list[Place]:
        return [*self._known, *(place for group in self._strangers.values() for place in group)]

    def oldest(self) -> Place | None:
        """The stranger that would have to go next; it has left already."""
        return self._next() if self._strangers else None

    def _next(self) -> Place:
        peer = max(self._strangers, key=lambda peer: (peer not in self._homes, len(self._strangers[peer])))
        return self._oldest(self._strangers[peer])

    def _remember(self, peer: str) -> None:
        self._homes.pop(peer, None)
        self._homes[peer] = None
        if len(self._homes) > _REMEMBERED:
            del self._homes[next(iter(self._homes))]

    def _oldest(self, group: dict[Place, None]) -> Place:
        first = next(iter(group))
        self._remove_stranger(first)
        return first

    def _remove_stranger(self, place: Place) -> bool:
        group = self._strangers.get(place.peer, {})
        if place not in group:
            return False
        del group[place]
        self._count -= 1
        if not group:
            del self._strangers[place.peer]
        return True


def peer_of(address: object) -> str:
    """What counts as one peer; "" for a socket without addresses."""
    if not (isinstance(address, tuple) and address):
        return ""
    host = str(address[0]).partition("%")[0]  # pyright: ignore[reportUnknownArgumentType]  # asyncio types an address as Any
    try:
        found = ipaddress.ip_address(host)
    except ValueError:
        return host
    if isinstance(found, ipaddress.IPv4Address):
        return host
    return str(found.ipv4_mapped or ipaddress.ip_network((found, _SUBNET), strict=False).network_address)
