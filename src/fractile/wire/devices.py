"""Device ids, the only thing kubelet and we exchange about amounts: ``GPU-<uuid>::<k>``.

The id names the card; what one id is worth depends on its resource (a unit of memory, a whole card). The form is
the one that dcgm-exporter and NVIDIA's plugin use, so their tools attribute our pods. Sets of ids are kept as ranges.
"""

import re
from collections.abc import Iterable

from fractile.errors import WireError
from fractile.model.units import CardUUID, DeviceID

SEPARATOR = "::"
MAX_PER_RESOURCE = 60_000  # kubelet's gRPC limit is 4 MiB: about 68,000 ids of this length (node.md 2.2)

_NUMBER = "(?:0|[1-9][0-9]{0,5})"
_CARD = r"\S+"
_ID = re.compile(f"({_CARD}){SEPARATOR}({_NUMBER})")
_RUN = f"{_NUMBER}(?:-{_NUMBER})?"
_RANGES = re.compile(f"({_CARD}){SEPARATOR}({_RUN}(?:,{_RUN})*)")


def device_id(card: CardUUID, k: int) -> DeviceID:
    return DeviceID(f"{card}{SEPARATOR}{k}")


def device_ids(card: CardUUID, count: int) -> list[DeviceID]:
    """The ids 0 .. count-1 of a card."""
    prefix = f"{card}{SEPARATOR}"
    return [DeviceID(prefix + str(k)) for k in range(count)]


def card_of(device: str) -> CardUUID:
    """The card that an id names; WireError when the text is no device id."""
    return split(device)[0]


def split(device: str) -> tuple[CardUUID, int]:
    """The card and the number of an id; WireError when the text is no device id."""
    match = _ID.fullmatch(device)
    if match is None:
        raise WireError(f"{device[:80]!r} is not a device id of the form GPU-<uuid>{SEPARATOR}<k>")
    return CardUUID(match[1]), int(match[2])


def count_by_card(devices: Iterable[str]) -> dict[CardUUID, int]:
    """How many of the ids each card holds, in order of first appearance; WireError on a malformed id."""
    counts: dict[CardUUID, int] = {}
    for device in devices:
        card = card_of(device)
        counts[card] = counts.get(card, 0) + 1
    return counts


def to_ranges(devices: Iterable[str]) -> str:
    """The set as one line, canonical for equal sets: ``GPU-a::0-511,600 GPU-b::7``."""
    numbers: dict[CardUUID, list[int]] = {}
    for device in set(devices):
        card, k = split(device)
        numbers.setdefault(card, []).append(k)
    return " ".join(f"{card}{SEPARATOR}{_runs(sorted(numbers[card]))}" for card in sorted(numbers))


def from_ranges(text: str) -> frozenset[DeviceID]:
    """The inverse of ``to_ranges``; WireError on malformed text."""
    found: set[DeviceID] = set()
    for part in text.split():
        match = _RANGES.fullmatch(part)
        if match is None:
            raise WireError(f"{part[:80]!r} is not a range of device ids")
        card = CardUUID(match[1])
        for run in match[2].split(","):
            first, _, last = run.partition("-")
            found.update(device_id(card, k) for k in range(int(first), int(last or first) + 1))
    return frozenset(found)


def _runs(numbers: list[int]) -> str:
    runs: list[list[int]] = []
    for k in numbers:
        if runs and k == runs[-1][1] + 1:
            runs[-1][1] = k
        else:
            runs.append([k, k])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)
