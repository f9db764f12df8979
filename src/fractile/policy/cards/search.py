"""Search cards for the parts of a pod that no single card can hold: one card for each part, or for several.

Largest part first, best card first, with backtracking. Parts that share a card are charged one peak each, which is
slightly too much where init containers of two families meet.

    impossible by its sums (``packing``) ──> no
    a known dead end (``effort``) ──> no
    looks, until there is an answer or no look is left ──> yes, no, or given up

Of cards with the same room only the first is tried, and equal parts keep the order of their cards: neither changes
which answer is found first.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from hashlib import blake2b
from itertools import repeat
from typing import cast

import msgspec

from fractile.model.request import ANY, Request
from fractile.model.sharing import FREE
from fractile.model.units import CardUUID, MiB, Percent
from fractile.policy.cards.effort import DECIDED, Effort
from fractile.policy.cards.packing import Least, impossible, least_of, leaves_too_much, sums_of
from fractile.policy.cards.parts import Peak, SharedCard, has_room, peak
from fractile.policy.cards.state import CardState

_WORTH = 16  # least looks of a dead end that is remembered
_FIRST = 256  # looks after which the costlier conditions are compared

_Room = tuple[object, ...]
Key = Callable[[CardState], tuple[int, ...]]


def search(
    parts: Sequence[SharedCard], cards: Sequence[CardState], key: Callable[[SharedCard], Key], effort: Effort
) -> dict[int, CardState] | None:
    """A card for each part, by number; two parts of one container get two cards. ``key``: the order in which cards are
    tried for a part. None: there is no solution, or the search was given up (``effort``)."""
    if not parts or not cards:
        return None if parts else {}
    if not effort.spend(1):
        return None
    asked = _asked(parts, sorted({c.memory for c in cards}), effort)
    if impossible(asked.least, cards):
        return None
    return _Search(asked, cards, key, effort).found()


class _Asked(msgspec.Struct):
    """What does not depend on the node. ``parts``: the largest first; ``needs``: of each part, by the card's memory;
    ``twins``: whether a part is interchangeable with the previous one; ``digest``: None if dead ends are not
    remembered."""

    parts: list[SharedCard]
    needs: list[dict[MiB, Peak]]
    least: Least
    twins: list[bool]
    several: frozenset[int]  # containers of more than one part
    selective: bool
    digest: bytes | None
    sums: int | None = None


def _asked(parts: Sequence[SharedCard], memories: Sequence[MiB], effort: Effort) -> _Asked:
    key = id(parts[0]), len(parts), tuple(memories)  # the parts belong to ``effort`` and live as long
    known = effort.prepared.get(key)
    if known is None:
        effort.spend(len(parts) * len(memories))
        known = effort.prepared[key] = parts, _prepare(parts, memories)
    return cast(tuple[Sequence[SharedCard], _Asked], known)[1]


def _prepare(parts: Sequence[SharedCard], memories: Sequence[MiB]) -> _Asked:
    needs = {p.number: {m: peak(p.containers, m) for m in memories} for p in parts}

    def largest_first(part: SharedCard) -> tuple[int, int, tuple[int, ...], int]:
        mine = needs[part.number].values()
        memory, cores = max((n.memory for n in mine), default=0), max((n.cores for n in mine), default=0)
        return -memory, -cores, part.places, part.number

    order = sorted(parts, key=largest_first)
    ordered = [needs[p.number] for p in order]
    counts = Counter(place for p in parts for place in p.places)
    several = frozenset(place for place, count in counts.items() if count > 1)
    shapes = [_shape(p, several) for p in order]
    selectors = {c.request.selector for p in parts for c in p.containers}
    twins = [n > 0 and shapes[n] == shapes[n - 1] and ordered[n] == ordered[n - 1] for n in range(len(order))]
    return _Asked(
        parts=order,
        needs=ordered,
        least=least_of(order, [list(mine.values()) for mine in ordered]),
        twins=twins,
        several=several,
        selective=selectors != {ANY},
        digest=_digest(order, ordered, several) if all(s.members is None for s in selectors) else None,
    )


def _shape(part: SharedCard, several: frozenset[int]) -> tuple[list[Request], list[int]]:
    """The shape of a part: its requests, and the containers with which it may not share a card. Equal shapes are
    interchangeable."""
    return [c.request for c in part.containers], [p for p in part.places if p in several]


def _digest(parts: Sequence[SharedCard], needs: Sequence[dict[MiB, Peak]], several: frozenset[int]) -> bytes:
    asked = [
        (
            [(m, msgspec.structs.astuple(n)) for m, n in mine.items()],
            [place for place in part.places if place in several],
            [(c.request.memory, c.request.memory_percent, c.request.cores) for c in part.containers],
            [repr(c.request.selector) for c in part.containers if c.request.selector != ANY],
        )
        for part, mine in zip(parts, needs, strict=True)
    ]
    return _hashed(asked)


def _hashed(what: object) -> bytes:
    return blake2b(msgspec.msgpack.encode(what), digest_size=16).digest()


class _Search:
    """The search on one node. Cards are identified by their position in ``cards``."""

    def __init__(
        self, asked: _Asked, cards: Sequence[CardState], key: Callable[[SharedCard], Key], effort: Effort
    ) -> None:
        self._asked = asked
        self._cards = cards
        self._key = key
        self._effort = effort
        self._free = list(cards)
        self._held: list[frozenset[int]] = [frozenset()] * len(cards)  # containers of several parts on each card
        self._kinds: list[int] = []
        self._orders: list[list[int]] = []
        self._most = min(effort.search, effort.left)
        self._looks = 0
        self._digest: bytes | None = None
        self._compared = False

    def found(self) -> dict[int, CardState] | None:
        if self._effort.hard and self._known():
            self._effort.spend(self._looks)
            return None
        kinds: dict[object, int] = {}
        self._kinds = [kinds.setdefault(self._kind(c), len(kinds)) for c in self._cards]
        self._orders = self._in_order(self._key)
        taken = self._run()
        self._effort.spend(self._looks)
        if taken is None:
            return None
        return {p.number: self._cards[n] for p, n in zip(self._asked.parts, taken, strict=True)}

    def _run(self) -> list[int] | None:
        """The cards of all parts: one step forward when a card is found, one back when none is."""
        parts = self._asked.parts
        taken: list[int] = []  # the card of each part that has one
        at = [0] * (len(parts) + 1)  # for each part, where to continue in its order of cards
        before: list[tuple[CardState, frozenset[int]]] = []  # the earlier states of the cards taken
        seen: list[set[_Room]] = [set()]
        while len(taken) < len(parts):
            now = len(taken)
            place = self._next(now, at[now], seen[now])
            if self._looks > self._most:
                return self._give_up()
            if self._looks > _FIRST and not self._worth_going_on():
                return None
            if place is not None:
                at[now] = place + 1
                card = self._orders[now][place]
                before.append((self._free[card], self._held[card]))
                self._take(now, card)
                taken.append(card)
                seen.append(set())
                follows = now + 1 < len(parts) and self._asked.twins[now + 1]
                at[now + 1] = place if follows and self._orders[now + 1] is self._orders[now] else 0
            elif taken:
                card = taken.pop()
                self._free[card], self._held[card] = before.pop()
                seen.pop()
            else:
                self._remember(DECIDED)
                return None
        return taken

    def _worth_going_on(self) -> bool:
        """Check, once, the conditions that are too costly for a search that ends soon."""
        if self._compared:
            return True
        self._compared = True
        if self._known():
            return False
        asked = self._asked
        if any(len({n.memory for n in mine.values()}) > 1 for mine in asked.needs):
            return True
        if asked.sums is None:
            asked.sums = sums_of(asked.least.memory)
            self._looks += len(asked.parts)
        if leaves_too_much(asked.sums, sum(asked.least.memory), self._cards):
            self._remember(DECIDED)
            return False
        return True

    def _known(self) -> bool:
        """Whether this is a known dead end for as many looks as this search may spend."""
        self._looks += len(self._asked.parts) // 2 + len(self._cards)  # what it costs in addition to the looks
        digest = self._digest_of_all()
        looks = 0 if digest is None else self._effort.dead_ends.looks(digest)
        if looks < self._most:
            return False
        self._effort.given_up += looks < DECIDED
        return True

    def _give_up(self) -> None:
        self._effort.given_up += 1
        self._remember(self._looks)

    def _remember(self, looks: int) -> None:
        if self._looks >= _WORTH and (digest := self._digest_of_all()) is not None:
            self._effort.dead_ends.put(digest, looks)

    def _digest_of_all(self) -> bytes | None:
        """The digest of what is requested and what is free; independent of the order of the cards."""
        if self._digest is None and self._asked.digest is not None:
            self._digest = _hashed((self._asked.digest, sorted(map(_free, self._cards, repeat(self._asked.selective)))))
        return self._digest

    def _next(self, now: int, start: int, seen: set[_Room]) -> int | None:
        """The next position in the part's order of cards with room for it, skipping cards equal to one that failed."""
        part, needs, order = self._asked.parts[now], self._asked.needs[now], self._orders[now]
        mine = self._asked.several.intersection(part.places)
        for place in range(start, len(order)):
            self._looks += 1
            if self._looks > self._most:
                return None
            card = self._free[order[place]]
            if not has_room(card, needs[card.memory]) or self._held[order[place]] & mine or not part.admits(card):
                continue
            room = self._room(order[place])
            if room not in seen:
                seen.add(room)  # a card with the same room would lead to the same dead end
                return place
        return None

    def _take(self, now: int, card: int) -> None:
        free = self._free[card]
        self._free[card] = _with(free, self._asked.needs[now][free.memory])
        self._held[card] |= self._asked.several.intersection(self._asked.parts[now].places)

    def _room(self, n: int) -> _Room:
        c = self._free[n]
        return c.free_memory, c.free_cores, c.coreless, c.free_slots, c.slices, self._kinds[n], self._held[n]

    def _kind(self, card: CardState) -> tuple[object, ...]:
        """What distinguishes cards with the same room."""
        return card.memory, card.rule, card.uuid if self._asked.selective else CardUUID("")

    def _in_order(self, key: Callable[[SharedCard], Key]) -> list[list[int]]:
        """The cards in the order of each part; parts with equal order share one list."""
        orders: dict[int, tuple[Key, list[int]]] = {}
        found: list[list[int]] = []
        for part in self._asked.parts:
            mine = key(part)
            if id(mine) not in orders:
                orders[id(mine)] = mine, sorted(range(len(self._cards)), key=lambda n, k=mine: k(self._cards[n]))
            found.append(orders[id(mine)][1])
        return found


def _free(c: CardState, selective: bool) -> tuple[object, ...]:
    who = (c.uuid, c.model) if selective else ("", "")
    rule = "" if c.rule == FREE else repr(c.rule)
    return c.memory, c.free_memory, c.free_cores, c.coreless, c.free_slots, c.slices, rule, *who


def _with(card: CardState, need: Peak) -> CardState:
    return msgspec.structs.replace(
        card,
        free_memory=MiB(card.free_memory - need.memory),
        free_cores=Percent(card.free_cores - need.cores),
        coreless=card.coreless or need.coreless,
        free_slots=card.free_slots - need.slots,
        slices=card.slices + need.slices,
    )
