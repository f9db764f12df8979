"""Which connection is dropped when there are too many: never the newest, so a new one always gets in.

A connection is a stranger until its protocol says that the caller has shown a certificate. Strangers are dropped before
known callers, in this order:

1. of an address that has more connections than its share, the one that has been silent longest: a peer that opens
   thousands competes only with itself. The share is 1/``_FEW`` of all places, or 1/``_SOME`` for an address from which
   a whole request has come lately: the API server has many connections at the same time.
2. the oldest one over which no whole request has come, preferably of an address from which none has come lately: many
   peers that send half a request each compete with one another. 1/``_SOME`` of all places are exempt, as every
   newcomer looks like this.
3. the one that has been silent longest, of the address that has most.

Addresses from which a known caller came lately are last in every step.
"""

import ipaddress

import msgspec

_REMEMBERED = 64  # addresses of known callers; as many again from which a whole request has come
_FEW = 32  # an address's usual share is all places divided by this
_SOME = 4  # the share of one proven address, and the part kept for newcomers, is all places divided by this
_SUBNET = 64  # bits of an IPv6 address: one machine has all addresses of its /64


class PlaceLimits(msgspec.Struct, frozen=True):
    """Limits on simultaneous connections. ``each``: strangers of one peer address."""

    strangers: int = 128
    known: int = 512
    each: int = 128


class ConnectionPlace:
    """One connection's place. ``drop`` ends the connection; it may be called in any state."""

    __slots__ = ("is_known", "peer")

    def __init__(self, peer: str) -> None:
        self.peer = peer
        self.is_known = False

    def drop(self) -> None:
        raise NotImplementedError  # each kind of connection closes in its own way


class Places:
    """All places. Methods return the places to be dropped; the caller drops them."""

    def __init__(self, rules: PlaceLimits) -> None:
        self._rules = rules
        self._strangers: dict[
            str, dict[ConnectionPlace, None]
        ] = {}  # by peer, the one that has been silent longest first
        self._known: dict[ConnectionPlace, None] = {}
        self._homes: dict[str, None] = {}  # addresses of known callers, the latest last
        self._asked: dict[str, None] = {}  # addresses from which a whole request has come, the latest last
        self._fresh: dict[ConnectionPlace, None] = {}  # strangers without a whole request yet, the oldest first
        self._count = 0

    @property
    def strangers(self) -> int:
        return self._count

    @property
    def known(self) -> int:
        return len(self._known)

    def come(self, place: ConnectionPlace) -> list[ConnectionPlace]:
        """Take a place as a stranger."""
        group = self._strangers.setdefault(place.peer, {})
        group[place] = None
        self._fresh[place] = None
        self._count += 1
        if len(group) > self._rules.each:
            return [self._gone(next(iter(group)))]
        return [self._gone(self._next(place))] if self._count > self._rules.strangers else []

    def is_home(self, peer: str) -> bool:
        """Whether a known caller came from ``peer`` lately."""
        return peer in self._homes

    def introduce(self, place: ConnectionPlace) -> list[ConnectionPlace]:
        """Mark it as known: the caller has shown who it is."""
        if place.is_known or not self._remove_stranger(place):
            return []
        place.is_known = True
        self._known[place] = None
        _remember(self._homes, place.peer)
        if len(self._known) <= self._rules.known:
            return []
        first = next(iter(self._known))
        self.leave(first)
        return [first]

    def touch(self, place: ConnectionPlace) -> None:
        """Note that a whole request has come over it."""
        group = self._known if place.is_known else self._strangers.get(place.peer, {})
        if place not in group:
            return
        del group[place]
        group[place] = None
        if not place.is_known:
            self._fresh.pop(place, None)
            _remember(self._asked, place.peer)

    def leave(self, place: ConnectionPlace) -> None:
        """Give the place back: the connection is closed. May be called twice."""
        if self._known.pop(place, self) is self:
            self._remove_stranger(place)

    def all(self) -> list[ConnectionPlace]:
        return [*self._known, *(place for group in self._strangers.values() for place in group)]

    def oldest(self) -> ConnectionPlace | None:
        """The stranger that is next to be dropped; its place is already given back."""
        return self._gone(self._next()) if self._strangers else None

    def _next(self, newest: ConnectionPlace | None = None) -> ConnectionPlace:
        """The next one to drop; never the newest. Runs for every connection of a flood."""
        if (crowd := self._crowd()) is not None:
            return next(iter(crowd))
        if len(self._fresh) > self._rules.strangers // _SOME and (fresh := self._unproven(newest)) is not None:
            return fresh
        others = [(peer, group) for peer, group in self._strangers.items() if len(group) > 1 or newest not in group]
        _, group = max(others, key=lambda one: (one[0] not in self._homes, len(one[1])))
        return next(iter(group))

    def _crowd(self) -> dict[ConnectionPlace, None] | None:
        """Connections of the address that is furthest over its share; the newest of two or more is never the first."""
        few, many = (max(1, self._rules.strangers // part) for part in (_FEW, _SOME))
        crowds = [peer for peer, group in self._strangers.items() if len(group) > few and peer not in self._homes]
        beyond = {peer: len(self._strangers[peer]) - (many if peer in self._asked else few) for peer in crowds}
        most = max(beyond, key=beyond.__getitem__, default=None)
        return self._strangers[most] if most is not None and beyond[most] > 0 else None

    def _unproven(self, newest: ConnectionPlace | None) -> ConnectionPlace | None:
        first = None
        for place in self._fresh:
            if place is newest or place.peer in self._homes:
                continue
            if place.peer not in self._asked:
                return place
            first = first or place
        return first

    def _gone(self, place: ConnectionPlace) -> ConnectionPlace:
        self._remove_stranger(place)
        return place

    def _remove_stranger(self, place: ConnectionPlace) -> bool:
        group = self._strangers.get(place.peer, {})
        if place not in group:
            return False
        del group[place]
        self._fresh.pop(place, None)
        self._count -= 1
        if not group:
            del self._strangers[place.peer]
        return True


def _remember(addresses: dict[str, None], peer: str) -> None:
    addresses.pop(peer, None)
    addresses[peer] = None
    if len(addresses) > _REMEMBERED:
        del addresses[next(iter(addresses))]


def peer_of(address: object) -> str:
    """The key that counts as one peer; "" for a socket without addresses."""
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
