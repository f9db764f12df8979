"""The status of a running fractile-arbiter (``native/arbiter/status.c``), version 1. Times are in nanoseconds."""

import msgspec

from fractile.errors import WireError

VERSION = 1


class Seat(msgspec.Struct, frozen=True, rename="camel"):
    """One container on one card; ``slice`` is the name of its token directory."""

    slice: str
    state: str = ""
    held_ns: int = 0
    waited_ns: int = 0
    throttled_ns: int = 0
    leases: int = 0
    overruns: int = 0


class ArbiterCard(msgspec.Struct, frozen=True):
    card: str
    slices: tuple[Seat, ...] = ()


class ArbiterStatus(msgspec.Struct, frozen=True, rename="camel"):
    """``now_ns`` is the arbiter's clock."""

    version: int
    now_ns: int
    cards: tuple[ArbiterCard, ...] = ()


_decoder = msgspec.json.Decoder(ArbiterStatus)


def decode(data: bytes) -> ArbiterStatus:
    """Decode the status; WireError on anything else."""
    try:
        status = _decoder.decode(data)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as e:
        raise WireError(f"the arbiter's answer is invalid: {e}") from None
    if status.version != VERSION:
        raise WireError(f"the arbiter uses version {status.version}; this agent supports version {VERSION}")
    return status
