"""A card's health as the driver reports it, and Fractile's verdict. None: not reported, which is not a fault."""

from enum import StrEnum

import msgspec

from fractile.model.card import Card
from fractile.model.units import CardUUID


class Silence(StrEnum):
    """Why a card does not answer."""

    LOST = "lost"  # fallen off the bus, or no longer reachable on it
    RESET_REQUIRED = "reset required"  # the driver says that only a reset brings it back
    ERROR = "error"  # anything else; may be temporary


class HealthReading(msgspec.Struct, frozen=True, kw_only=True):
    """One card at one moment. ``card`` is None when the card does not answer: then only its index is known.

    ECC counts are those since the driver was loaded or the card was reset (NVML's volatile counters).
    """

    index: int
    card: Card | None
    silence: Silence | None = None
    error: str = ""  # the driver's own error text
    temperature: int | None = None  # degrees Celsius
    slowdown_at: int | None = None  # at which the hardware slows its clocks
    shutdown_at: int | None = None  # at which the hardware switches itself off
    corrected: int | None = None
    uncorrected: int | None = None
    repair_pending: bool | None = None  # a row or page is replaced at the next reset
    repair_failed: bool | None = None  # no spare row was left
    reset_wanted: bool | None = None  # the driver recommends a reset, a reboot or a drain
    prohibited: bool | None = None  # compute mode "prohibited": no program can use it
    partitioned: bool | None = None  # MIG is on


class EventKind(StrEnum):
    XID = "xid"
    UNCORRECTED = "uncorrected ECC error"


class CardEvent(msgspec.Struct, frozen=True):
    """An event that the driver reported unasked. ``pid`` is the process that caused it, if the driver reports one."""

    card: CardUUID
    kind: EventKind
    xid: int = 0
    pid: int | None = None


class HealthVerdict(msgspec.Struct, frozen=True):
    """Whether new pods may use the card. Times are those of the caller's clock, in seconds.

    ``reason`` is one constant word in CamelCase, ``message`` a sentence. ``until`` is when the card returns if nothing
    else happens; None while that depends on the card.
    """

    healthy: bool = True
    reason: str = ""
    message: str = ""
    since: float = 0.0
    until: float | None = None


HEALTHY = HealthVerdict()
