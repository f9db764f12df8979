"""What kubelet is told of a resource: the ids of its devices, each healthy or not (ListAndWatchResponse).

Written without a message object for each id: 32,552 of them take 40 ms of the processor and megabytes for a moment,
this takes 3 ms. A kubelet that starts admits its pods within a second, and a busy machine gives the agent little time
before that. The form is that of protobuf: a field is its number and type in one byte, the length, and the text.
"""

from collections.abc import Iterable

from fractile.model.units import CardUUID
from fractile.wire.fractile.device_ids import SEPARATOR

HEALTHY = "Healthy"
UNHEALTHY = "Unhealthy"

_FIRST, _SECOND = b"\x0a", b"\x12"  # fields 1 and 2, both of a type with a length


def encode(cards: Iterable[tuple[CardUUID, int, bool]]) -> bytes:
    """The ids 0 .. count-1 of each card, in order; the third says whether the card is healthy."""
    return b"".join(_of_card(f"{uuid}{SEPARATOR}".encode(), count, healthy) for uuid, count, healthy in cards)


def _of_card(prefix: bytes, count: int, healthy: bool) -> bytes:
    health = (HEALTHY if healthy else UNHEALTHY).encode()
    after = _SECOND + _length(len(health)) + health
    first, found = 0, list[bytes]()
    while first < count:  # numbers with as many digits are as long
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
    """Seven bits at a time, the lowest first."""
    found = bytearray()
    while count > 0x7F:
        found.append(count & 0x7F | 0x80)
        count >>= 7
    return bytes([*found, count])
