"""Cards for the parts of a pod that no single card can hold: each part its own, or several on one, with a search.

Largest part first, best card first, going back where that leads nowhere. Parts that come to share a card are charged
one peak each, which is a little much where init containers of two families meet.
"""

from collections.abc import Callable, Sequence

import msgspec

from fractile.model.request import ANY
from fractile.model.sharing import Rule
from fractile.model.units import CardUUID, MiB, Percent
from fractile.policy.parts import Part, Peak, has_room, peak
from fractile.policy.state import CardState

_LIMIT = 20_000  # cards tried; far beyond what any real pod needs

_Room = tuple[int, int, bool, int, int, int, Rule, str]


Key = Callable[[CardState], tuple[int, ...]]


def search(
    parts: Sequence[Part], cards: Sequence[CardState], key: Callable[[Part], Key]
) -> dict[int, CardState] | None:
    """A card for each part by its number; two parts of one container get two cards. ``key``: in which order cards are
    tried for a part."""
    found = _Search(parts, cards, key)
    return found.taken if found.place(0) else None


class _Search:
    def __init__(self, parts: Sequence[Part], cards: Sequence[CardState], key: Callable[[Part], Key]) -> None:
        self._orders = {p.number: sorted(cards, key=key(p)) for p in parts}
        self._free = {card.uuid: card for card in cards}
        self._users: dict[int, set[CardUUID]] = {place: set() for p in parts for place in p.places}
        self._selective = any(c.request.selector != ANY for p in parts for c in p.containers)
        self._needs = {p.number: {c.memory: peak(p.containers, c.memory) for c in cards} for p in parts}
        self._parts = sorted(parts, key=self._largest_first)
        self._tries = 0
        self.taken: dict[int, CardState] = {}

    def place(self, position: int) -> bool:
        """Whether all parts from that position on found a card."""
        if position == len(self._parts):
            return True
        part = self._parts[position]
        needs = self._needs[part.number]
        seen: set[_Room] = set()
        for original in self._orders[part.number]:
            card = self._free[original.uuid]
            if self._room(card) in seen or not self._may(part, card, needs[card.memory]):
                continue
            seen.add(self._room(card))  # a card with the same room would lead to the same dead end
            self._take(part, original, _with(card, needs[card.memory]))
            if self.place(position + 1):
                return True
            self._give_back(part, card)
        return False

    def _may(self, part: Part, card: CardState, need: Peak) -> bool:
        if self._tries >= _LIMIT or not has_room(card, need):
            return False
        return part.admits(card) and not any(card.uuid in self._users[place] for place in part.places)

    def _take(self, part: Part, original: CardState, left: CardState) -> None:
        self._tries += 1
        self._free[original.uuid] = left
        self.taken[part.number] = original
        for place in part.places:
            self._users[place].add(original.uuid)

    def _give_back(self, part: Part, card: CardState) -> None:
        self._free[card.uuid] = card
        for place in part.places:
            self._users[place].discard(card.uuid)

    def _room(self, card: CardState) -> _Room:
        who = card.uuid if self._selective else ""
        return (
            card.free_memory,
            card.free_cores,
            card.coreless,
            card.free_slots,
            card.slices,
            card.memory,
            card.rule,
            who,
        )

    def _largest_first(self, part: Part) -> tuple[int, int, tuple[int, ...], int]:
        needs = self._needs[part.number].values()
        memory, cores = max((n.memory for n in needs), default=0), max((n.cores for n in needs), default=0)
        return -memory, -cores, part.places, part.number


def _with(card: CardState, need: Peak) -> CardState:
    return msgspec.structs.replace(
        card,
        free_memory=MiB(card.free_memory - need.memory),
        free_cores=Percent(card.free_cores - need.cores),
        coreless=card.coreless or need.coreless,
        free_slots=card.free_slots - need.slots,
        slices=card.slices + need.slices,
    )
