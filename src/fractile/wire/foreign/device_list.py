"""Encode the list of a resource's devices for kubelet: their ids, each healthy or not (ListAndWatchResponse).

There is no message object for each id: 32,552 objects would take 40 ms of CPU time and megabytes; this takes 3 ms. A
starting kubelet admits its pods within a second, and on a busy machine the agent has little time before that. The
format is protobuf: a field is its number and type in one byte, the length, and the text.
"""

from collections.abc import Iterable

from fractile.model.units import CardUUID
from fractile.wire.fractile.device_ids import SEPARATOR

HEALTHY = "Healthy"
UNHEALTHY = "Unhealthy"

_FIRST, _SECOND = b"\x0a", b"\x12"  # fields 1 and 2, both length-delimited


def encode(cards: Iterable[tuple[CardUUID, int, bool]]) -> bytes:
    """The ids 0 .. count-1 of each card, in order; the third says whether the card is healthy."""
    return b"".join(_of_card(f"{uuid}{SEPARATOR}".encode(), count, healthy) for uuid, count, healthy in cards)


def _of_card(prefix: bytes, count: int, healthy: bool) -> bytes:
    health = (HEALTHY if healthy else UNHEALTHY).encode()
    after = _SECOND + _length(len(health)) + health
    first, found = 0, list[bytes]()
    while first < count:  # numbers with equally many digits have equal length
        digits = len(str(first))
        last = min(count, 10**digits)
        id_length = _length(len(prefix) + digits)
        device = len(_FIRST) + len(id_length) + len(prefix) + digits + len(after)
        before = _FIRST + _length(device) + _FIRST + id_length + prefix
        numbers = map(b"%d".__mod__, range(first, last))
        found += [before, (after + before).join(numbers), after]
        first = last
    return b"".join(found)


def _length(count: int) -> bytes:
    """The length as a varint: seven bits at a time, the lowest first."""
    found = bytearray()
    while count > 0x7F:
        found.append(count & 0x7F | 0x80)
        count >>= 7
    return bytes([*found, count])
