"""What a container's ledger and its live processes count, read once a second: a part of the region, not all of it.

Failure rule: as in ``usage``: a container can write any nonsense, which gives Unreadable or meaningless numbers, never
an exception. Which slots are alive, the kernel's locks say; all else is the container's own word.
"""

from pathlib import Path

import msgspec

from fractile.region import layout, sums
from fractile.region.layout import ACCOUNT, REGION_CARD, SLOT
from fractile.region.shared import Glance, RegionWindow
from fractile.region.usage import Unreadable


class CardCount(msgspec.Struct, frozen=True):
    """All processes of the container on one card, in bytes. ``used`` leaves out what dead processes held."""

    used: int
    peak: int
    refusals: int


class Account(msgspec.Struct, frozen=True):
    """One process on one card; ``bytes`` that it holds, the other numbers since it started."""

    bytes: int
    contexts: int
    gpu_ns: int
    launches: int


class Member(msgspec.Struct, frozen=True):
    """A live process. ``pid`` and ``start_time`` as it sees itself, in the pid namespace of that inode; ``accounts`` in
    the order of the limits page."""

    slot: int
    generation: int
    pid: int
    start_time: int
    pid_namespace: int
    accounts: tuple[Account, ...]


class Counters(msgspec.Struct, frozen=True):
    """Cards in the order of the limits page."""

    cards: tuple[CardCount, ...]
    members: tuple[Member, ...]


class CountersReader:
    """One region, read every second. Decodes only what has changed: an idle region costs a few system calls.

    ``generation`` is that of the limits page next to it.
    """

    def __init__(self, path: Path, *, cards: int, generation: int) -> None:
        self._window = RegionWindow(path, cards=cards)
        self._cards = cards
        self._generation = generation
        self._last: tuple[Glance, Counters] | None = None

    def read(self, *, fresh: bool = False) -> Counters | Unreadable:
        """The current counters. The death of a process shows up a few reads later, unless the read is ``fresh``."""
        found = self._window.glance(fresh=fresh)
        if isinstance(found, str):
            return Unreadable(found)
        if found.generation != self._generation:
            return Unreadable("it belongs to other limits")
        if self._last is None or (self._last[0] is not found and self._last[0] != found):
            self._last = found, _decoded(found, self._cards)
        return self._last[1]

    def close(self) -> None:
        self._window.close()


def counters(path: Path, *, cards: int, generation: int) -> Counters | Unreadable:
    """A single read of the counters."""
    reader = CountersReader(path, cards=cards, generation=generation)
    try:
        return reader.read()
    finally:
        reader.close()


def _decoded(found: Glance, cards: int) -> Counters:
    members = tuple(_member(slot, data, cards) for slot, data in sorted(found.slots.items()))
    return Counters(tuple(_card(found, members, index) for index in range(cards)), members)


def _card(found: Glance, members: tuple[Member, ...], index: int) -> CardCount:
    head, at = found.head, found.shape.card_at(index)
    live = [m.accounts[index].bytes for m in members]
    return CardCount(
        used=sums.of_the_living(sums.on_card(head, at), found.dead[index], live),
        peak=REGION_CARD.get(head, at, "peak") * layout.UNIT_BYTES,
        refusals=REGION_CARD.get(head, at, "refusals"),
    )


def _member(slot: int, data: bytes, cards: int) -> Member:
    return Member(
        slot=slot,
        generation=SLOT.get(data, 0, "generation"),
        pid=SLOT.get(data, 0, "pid"),
        start_time=SLOT.get(data, 0, "start_time"),
        pid_namespace=SLOT.get(data, 0, "pid_namespace"),
        accounts=tuple(_account(data, SLOT.size + index * ACCOUNT.size) for index in range(cards)),
    )


def _account(data: bytes, at: int) -> Account:
    return Account(
        bytes=sums.in_account(data, at),
        contexts=ACCOUNT.get(data, at, "contexts"),
        gpu_ns=ACCOUNT.get(data, at, "gpu_ns"),
        launches=ACCOUNT.get(data, at, "launches"),
    )
