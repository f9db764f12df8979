"""Whether a card may take new pods: events and readings in, a verdict out. Pure; times are seconds of one clock.

    healthy ──── trouble seen ────> sick ──── all troubles over ────> watched ──── quiet long enough ────> healthy
                                     ^  │                               │
                                     └──┴──── trouble seen (again) ─────┘

A trouble is over when it has not been seen for its hold time, or when the card was visibly reset and a reset cures it.
A trouble that the driver shows as a condition (lost, hot, no spare row) lasts until a reading of the card no longer
shows it; its hold time begins then. So every card returns without help: each hold is finite, and conditions end with
their causes. Damping: a card that falls sick again within the window is watched longer each time before it returns. The
state of one card does not depend on other cards.
"""

from collections.abc import Iterator

import msgspec

from fractile.model.health import HEALTHY, CardEvent, EventKind, HealthReading, HealthVerdict, Silence
from fractile.policy.xids import Xid, XidKind, lookup

_MINUTE = 60.0
_HOUR = 3600.0
_COOLER = 5  # degrees below the threshold at which a card that was hot counts as cool
_COUNTED = frozenset({"UncorrectableECC", "Xid48", "Xid95"})  # what NVML's counter of uncorrected errors counts
_REMEMBERED = 16  # sicknesses
_ERRORS = 3  # failed readings in a row before they count


class HealthRules(msgspec.Struct, frozen=True, kw_only=True):
    """What a site may change; durations are in seconds."""

    ignored_xids: frozenset[int] = frozenset()
    added_xids: frozenset[int] = frozenset()
    passes: float = 5 * _MINUTE  # without a further error, for errors that pass by themselves
    reset: float = 30 * _MINUTE  # for errors that need a reset, when no reset is seen
    replace: float = 24 * _HOUR  # for hardware errors
    hot: float = 30.0  # above the threshold before it counts
    cool: float = 5 * _MINUTE  # below the threshold before the card returns
    watched: float = _MINUTE  # after the first relapse; doubles with each further one
    watched_most: float = _HOUR
    window: float = 6 * _HOUR  # in which relapses count
    forgotten: float = 10 * _MINUTE  # for a card that the driver no longer lists


class Trouble(msgspec.Struct, frozen=True):
    """One thing that is wrong with a card. ``cured``: a reset ends it."""

    reason: str
    message: str
    since: float
    seen: float
    hold: float
    cured: bool = False
    condition: bool = False  # lasts until a reading no longer shows it

    @property
    def over(self) -> float:
        return self.seen + self.hold


class CardHealth(msgspec.Struct, frozen=True):
    """All that is remembered of one card."""

    troubles: tuple[Trouble, ...] = ()
    last: Trouble | None = None  # the worst trouble of the current or latest sickness
    since: float | None = None  # when it began; None while healthy
    quiet: float | None = None  # when watching ends; None unless watched
    sicknesses: tuple[float, ...] = ()  # when each began, within the window
    failures: int = 0  # readings in a row without an answer
    hot: float | None = None  # since when it has been above its threshold
    absent: float | None = None  # since when the driver has not listed it
    reading: HealthReading | None = None  # the last one with an answer


WELL = CardHealth()


def observe(state: CardHealth, reading: HealthReading | None, *, now: float, rules: HealthRules) -> CardHealth:
    """The state after a reading; ``reading`` is None when the driver no longer lists the card."""
    state = msgspec.structs.replace(
        state,
        failures=state.failures + 1 if reading is None or reading.card is None else 0,
        absent=None if reading is not None else (now if state.absent is None else state.absent),
        hot=_hot_since(state, reading, now),
    )
    if _was_reset(state, reading):
        state = msgspec.structs.replace(state, troubles=tuple(t for t in state.troubles if not t.cured))
    found = tuple(_found(state, reading, now=now, rules=rules))
    if reading is not None and reading.card is not None:
        shown = {t.reason for t in found}
        state = msgspec.structs.replace(
            state, reading=reading, troubles=tuple(_lapsed(t) if t.reason not in shown else t for t in state.troubles)
        )
    for trouble in found:
        state = _with(state, trouble)
    return _settled(state, now=now, rules=rules)


def notice(state: CardHealth, event: CardEvent, *, now: float, rules: HealthRules) -> CardHealth:
    """The state after an event."""
    found = _from_event(event, now=now, rules=rules)
    return _settled(state if found is None else _with(state, found), now=now, rules=rules)


def hung(state: CardHealth, *, now: float, rules: HealthRules) -> CardHealth:
    """The state when a driver call about this card has not returned for a long time."""
    return _settled(
        _with(state, _condition("DriverHangs", "driver calls about it do not return", now)),
        now=now,
        rules=rules,
    )


def restored(state: CardHealth, verdict: HealthVerdict, *, now: float, rules: HealthRules) -> CardHealth:
    """The state with what was known before the agent restarted. Conditions need not be restored: readings show them. An
    ECC error is dropped when the counter is 0, since the counter was reset meanwhile."""
    if verdict.healthy or verdict.until is None or verdict.until <= now:
        return state
    if verdict.reason in _COUNTED and state.reading is not None and state.reading.uncorrected == 0:
        return state
    known = Trouble(verdict.reason, verdict.message, verdict.since, now, verdict.until - now, cured=True)
    state = _settled(_with(state, known), now=now, rules=rules)
    return msgspec.structs.replace(state, since=verdict.since)


def verdict(state: CardHealth) -> HealthVerdict:
    """The verdict on the card now."""
    worst = state.last
    if state.since is None or worst is None:
        return HEALTHY
    if state.troubles:
        until = None if any(t.condition for t in state.troubles) else max(t.over for t in state.troubles)
        return HealthVerdict(False, worst.reason, worst.message, state.since, until)
    times = len(state.sicknesses)
    message = (
        f"{worst.message}; that is over, but it was unhealthy {times} times recently, so it stays out of service for a "
        "while"
    )
    return HealthVerdict(False, worst.reason, message, state.since, state.quiet)


def forgettable(state: CardHealth, *, now: float, rules: HealthRules) -> bool:
    """Whether the driver has not listed the card for so long that it no longer belongs to the node."""
    return state.absent is not None and now - state.absent >= rules.forgotten


def meaning(event: CardEvent, rules: HealthRules) -> Xid | None:
    """The table's entry for an event; None when the event is not an XID."""
    if event.kind is not EventKind.XID:
        return None
    return lookup(event.xid, ignored=rules.ignored_xids, added=rules.added_xids)


# ── what is wrong ────────────────────────────────────────────────────────────────────────────────────────────────────


def _from_event(event: CardEvent, *, now: float, rules: HealthRules) -> Trouble | None:
    known = meaning(event, rules)
    if known is None:
        return _uncorrected(now, rules)
    holds = {XidKind.PASSES: rules.passes, XidKind.RESET: rules.reset, XidKind.REPLACE: rules.replace}
    hold = holds.get(known.kind)
    if hold is None:
        return None
    advice = {XidKind.RESET: "; it should be reset", XidKind.REPLACE: "; its hardware must be inspected"}
    message = f"XID {event.xid}: {known.text}{advice.get(known.kind, '')}"
    return Trouble(f"Xid{event.xid}", message, now, now, hold, cured=True)


def _found(state: CardHealth, reading: HealthReading | None, *, now: float, rules: HealthRules) -> Iterator[Trouble]:
    if reading is None:
        yield _condition("CardGone", "the driver no longer lists it", now)
    elif reading.card is None:
        yield from _silent(state, reading, now)
    else:
        yield from _conditions(reading, now)
        yield from _heat(state, reading, now=now, rules=rules)
        if _more(reading.uncorrected, state.reading.uncorrected if state.reading else None):
            yield _uncorrected(now, rules)


def _silent(state: CardHealth, reading: HealthReading, now: float) -> Iterator[Trouble]:
    match reading.silence:
        case Silence.LOST:
            yield _condition(
                "CardLost", "it does not answer on the bus; it returns to service when it answers again", now
            )
        case Silence.RESET_REQUIRED:
            yield _condition("ResetRequired", "the driver reports that it must be reset", now)
        case _:
            if state.failures >= _ERRORS:
                yield _condition("DriverError", f"the driver cannot read it ({reading.error or 'unknown error'})", now)


def _conditions(reading: HealthReading, now: float) -> Iterator[Trouble]:
    if reading.repair_failed:
        yield _condition("RepairFailed", "its memory has errors and no spare rows left; it should be replaced", now)
    if reading.reset_wanted:
        yield _condition("ResetRequired", "the driver reports that it must be reset", now)
    if reading.prohibited:
        yield _condition("ComputeProhibited", "its compute mode is 'prohibited'; set it with nvidia-smi -c 0", now)
    if reading.partitioned:
        yield _condition(
            "MigEnabled", "MIG is on, and Fractile shares whole cards; turn it off with nvidia-smi -mig 0", now
        )


def _heat(state: CardHealth, reading: HealthReading, *, now: float, rules: HealthRules) -> Iterator[Trouble]:
    heat, limit = reading.temperature, reading.slowdown_at
    if heat is None or limit is None:
        return
    sick = any(t.reason == "Overheated" for t in state.troubles)
    lasting = state.hot is not None and now - state.hot >= rules.hot
    burning = reading.shutdown_at is not None and heat >= reading.shutdown_at
    if lasting or burning or (sick and heat > limit - _COOLER):
        message = f"it reached the {limit} °C at which it slows down; check its cooling"
        yield Trouble("Overheated", message, now, now, rules.cool, condition=True)


def _hot_since(state: CardHealth, reading: HealthReading | None, now: float) -> float | None:
    if reading is None or reading.temperature is None or reading.slowdown_at is None:
        return None
    if reading.temperature < reading.slowdown_at:
        return None
    return now if state.hot is None else state.hot


def _was_reset(state: CardHealth, reading: HealthReading | None) -> bool:
    """Whether the card was reset: its counters restarted, the driver no longer asks for it, or a lost card answers."""
    if reading is None or reading.card is None:
        return False
    before = state.reading
    returned = any(t.reason in ("CardLost", "ResetRequired") for t in state.troubles) and not reading.reset_wanted
    return returned or (before is not None and _more(before.uncorrected, reading.uncorrected))


def _more(a: int | None, b: int | None) -> bool:
    return a is not None and b is not None and a > b


def _condition(reason: str, message: str, now: float) -> Trouble:
    return Trouble(reason, message, now, now, 0.0, condition=True)


def _uncorrected(now: float, rules: HealthRules) -> Trouble:
    message = "a memory error could not be corrected; it should be reset"
    return Trouble("UncorrectableECC", message, now, now, rules.reset, cured=True)


# ── how it goes on ───────────────────────────────────────────────────────────────────────────────────────────────────


def _with(state: CardHealth, found: Trouble) -> CardHealth:
    """The state with the trouble added, or updated if it was there."""
    before = next((t for t in state.troubles if t.reason == found.reason), None)
    kept = tuple(t for t in state.troubles if t.reason != found.reason)
    if before is not None:
        found = msgspec.structs.replace(found, since=before.since, hold=max(found.hold, before.over - found.seen))
    return msgspec.structs.replace(state, troubles=(*kept, found))


def _lapsed(trouble: Trouble) -> Trouble:
    """A condition that a reading no longer shows: its hold runs from when it was last seen."""
    return msgspec.structs.replace(trouble, condition=False) if trouble.condition else trouble


def _settled(state: CardHealth, *, now: float, rules: HealthRules) -> CardHealth:
    """Drop troubles that are over. The first trouble makes the card sick; when the last one ends, it is watched."""
    left = tuple(t for t in state.troubles if t.condition or now < t.over)
    recent = tuple(s for s in state.sicknesses if now - s < rules.window)
    state = msgspec.structs.replace(state, troubles=left, sicknesses=recent)
    if left:
        goes_on = state.since is not None and state.quiet is None
        counted = recent if goes_on else (*recent, now)[-_REMEMBERED:]
        began = now if state.since is None else state.since
        return msgspec.structs.replace(state, since=began, quiet=None, sicknesses=counted, last=_worst(left))
    if state.since is None:
        return state
    quiet = now + _watch(len(recent), rules) if state.quiet is None else state.quiet
    if now >= quiet:
        return msgspec.structs.replace(state, since=None, quiet=None, last=None)
    return msgspec.structs.replace(state, quiet=quiet)


def _watch(sicknesses: int, rules: HealthRules) -> float:
    """Seconds to watch the card; 0 after the first sickness."""
    return min(rules.watched * 2 ** (sicknesses - 2), rules.watched_most) if sicknesses > 1 else 0.0


def _worst(troubles: tuple[Trouble, ...]) -> Trouble:
    """The trouble to report: present conditions first, then the one that lasts longest."""
    return max(troubles, key=lambda t: (t.condition, t.over, t.reason))
