"""Counters that only rise, built from sources that come and go. Pure: no clock, no files.

A process's own counters end with it, and the arbiter's with the arbiter; what each has added since the last poll is
added to its container. What was there at the very first poll is not counted: the counters begin with the agent.
"""

from collections import deque
from collections.abc import Iterable, Sequence

import msgspec

from fractile.model.units import CardUUID
from fractile.region.counters import Counters
from fractile.region.page import CardLimits
from fractile.wire.fractile.arbiter_status import ArbiterCard, ArbiterStatus, Seat

Key = tuple[str, CardUUID]  # token, card

_WINDOW_NS = 10_000_000_000  # of the share that is shown
_SANE_NS = 100_000_000_000  # more GPU time in one poll is invalid: a container can write any number


class ComputeTotals(msgspec.Struct, frozen=True):
    """Of one container on one card, in nanoseconds. The arbiter's values are None if it never named the container."""

    gpu_ns: int = 0
    launches: int = 0
    held_ns: int | None = None
    waited_ns: int | None = None
    throttled_ns: int | None = None
    share_percent: float | None = None


class _Own(msgspec.Struct):
    gpu_ns: int = 0
    launches: int = 0


class _Turns(msgspec.Struct):
    """``last``: held, waited, throttled, as last reported by the arbiter; ``sums`` the same since the agent began."""

    last: tuple[int, int, int]
    sums: tuple[int, int, int]


_Incarnation = tuple[int, int, int]  # slot, its generation, start time
_Done = tuple[int, int]  # GPU time, launches


class _Container(msgspec.Struct):
    """The last counters, and what each live process had done by then, by card."""

    last: Counters | None = None
    seen: dict[_Incarnation, tuple[_Done, ...]] = {}


class UsageTally:
    """In each poll: ``counted`` for every container, then ``arbitrated``, then ``keep``."""

    def __init__(self) -> None:
        self._own: dict[Key, _Own] = {}
        self._containers: dict[str, _Container] = {}
        self._turns: dict[Key, _Turns] = {}
        self._cards: tuple[ArbiterCard, ...] = ()  # as last reported by the arbiter
        self._track: deque[tuple[int, dict[Key, int]]] = deque()  # its clock, and the total held by each, oldest first
        self._began = False
        self._arbiter_began = False

    def counted(self, token: str, cards: Sequence[CardLimits], counters: Counters) -> None:
        """Add what the container's live processes did since the last poll."""
        container = self._containers.get(token)
        if container is None:
            container = self._containers[token] = _Container()
        if container.last is counters:
            return  # unchanged
        container.last = counters
        before, container.seen = container.seen, {}
        for member in counters.members:
            who = member.slot, member.generation, member.start_time
            now = tuple((a.gpu_ns, a.launches) for a in member.accounts)
            last = before.get(who, ((0, 0),) * len(now) if self._began else now)
            container.seen[who] = now
            for card, new, old in zip(cards, now, last, strict=True):
                self._add((token, card.uuid), new, old)

    def arbitrated(self, status: ArbiterStatus) -> None:
        """Take over the arbiter's report. While it is unchanged, only time has passed."""
        if status.cards != self._cards or not self._track:
            self._cards = status.cards
            for card in status.cards:
                for seat in card.slices:
                    self._seat((seat.slice, CardUUID(card.card)), seat)
            held = {key: turns.sums[0] for key, turns in self._turns.items()}
        else:
            held = self._track[-1][1]
        self._arbiter_began = True
        if self._track and status.now_ns <= self._track[-1][0]:
            self._track.clear()  # another arbiter, or another clock
        self._track.append((status.now_ns, held))
        while len(self._track) > 2 and status.now_ns - self._track[1][0] >= _WINDOW_NS:
            self._track.popleft()

    def keep(self, tokens: Iterable[str]) -> None:
        """Forget all others: their containers have ended."""
        alive = set(tokens)
        if not alive.issuperset(self._containers) or not all(token in alive for token, _ in self._turns):
            self._own = {key: own for key, own in self._own.items() if key[0] in alive}
            self._turns = {key: turns for key, turns in self._turns.items() if key[0] in alive}
            self._containers = {token: c for token, c in self._containers.items() if token in alive}
            self._cards = ()  # the next report is processed in full
        self._began = True

    def totals(self, key: Key) -> ComputeTotals:
        own = self._own.get(key, _Own())
        turns = self._turns.get(key)
        if turns is None:
            return ComputeTotals(own.gpu_ns, own.launches)
        held, waited, throttled = turns.sums
        return ComputeTotals(own.gpu_ns, own.launches, held, waited, throttled, self._share(key))

    def _add(self, key: Key, now: _Done, last: _Done) -> None:
        own = self._own.setdefault(key, _Own())
        gpu = now[0] - last[0]
        if 0 <= gpu <= _SANE_NS:
            own.gpu_ns += gpu
            own.launches += max(0, min(now[1] - last[1], 2**32))

    def _seat(self, key: Key, seat: Seat) -> None:
        said = seat.held_ns, seat.waited_ns, seat.throttled_ns
        turns = self._turns.get(key)
        if turns is None:
            begin = (0, 0, 0) if self._arbiter_began else said
            turns = self._turns[key] = _Turns(begin, (0, 0, 0))
        held, waited, throttled = (_rise(last, new) for last, new in zip(turns.last, said, strict=True))
        turns.sums = turns.sums[0] + held, turns.sums[1] + waited, turns.sums[2] + throttled
        turns.last = said

    def _share(self, key: Key) -> float | None:
        """Percent of the window, or of the part of it in which the container is known."""
        known = [(at, held[key]) for at, held in self._track if key in held]
        if len(known) < 2:
            return None
        (begin, before), (end, after) = known[0], known[-1]
        return min(100.0, 100.0 * (after - before) / (end - begin))


def _rise(last: int, new: int) -> int:
    """What was added; a number that fell was restarted by a new arbiter."""
    return new - last if new >= last else new
