"""Device ids, all that kubelet and we exchange about amounts: ``GPU-<uuid>::<k>``.

The id names the card; what one id stands for depends on its resource (a unit of memory, a whole card). The format is
that of dcgm-exporter and NVIDIA's plugin, so their tools attribute our pods (evidence/hami.md#device-ids). Sets of ids
are kept as ranges.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Set
from typing import Any

from fractile.errors import WireError
from fractile.model.units import CardUUID, DeviceID

SEPARATOR = "::"
_FEW = 64  # most ids in a plain set; a hundred bytes each
MAX_PER_RESOURCE = 60_000  # kubelet rejects messages above 4 MiB (evidence/kubelet.md#message-limit)

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
    """The card that an id names; WireError when the text is not a device id."""
    return split(device)[0]


def split(device: str) -> tuple[CardUUID, int]:
    """The card and the number of an id; WireError when the text is not a device id."""
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
    if isinstance(devices, Ranges):
        return devices.text
    numbers: dict[CardUUID, list[int]] = {}
    for device in set(devices):
        card, k = split(device)
        numbers.setdefault(card, []).append(k)
    return " ".join(f"{card}{SEPARATOR}{_runs(sorted(numbers[card]))}" for card in sorted(numbers))


def from_ranges(text: str) -> frozenset[DeviceID]:
    """The inverse of ``to_ranges``; WireError on malformed text."""
    return frozenset(device_id(card, k) for card, run in _parsed(text) for k in run)


class Ranges(Set[str]):
    """A set of ids stored as ranges: 16,000 ids of a slice in MiB take a hundred bytes, not 2 MB."""

    __slots__ = ("_count", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        self._count = sum(len(run) for _, run in _parsed(text))

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[str]:
        return (device_id(card, k) for card, run in _parsed(self.text) for k in run)

    def __contains__(self, device: object) -> bool:
        match = _ID.fullmatch(device) if isinstance(device, str) else None
        return match is not None and any(card == match[1] and int(match[2]) in run for card, run in _parsed(self.text))

    def __eq__(self, other: object) -> bool:
        return self.text == other.text if isinstance(other, Ranges) else super().__eq__(other)

    def __hash__(self) -> int:
        return self._hash()  # the same as that of an equal frozenset

    def __repr__(self) -> str:
        return f"Ranges({self.text!r})"

    @classmethod
    def _from_iterable(cls, it: Iterable[Any]) -> frozenset[Any]:  # the type that | and & return
        return frozenset(it)


def compact(ids: Collection[str]) -> Set[str]:
    """The set, stored as ranges if it is large; as a plain set if it is small or has ids of another format."""
    if len(ids) <= _FEW:
        return frozenset(ids)
    try:
        return Ranges(to_ranges(ids))
    except WireError:
        return frozenset(ids)


def _parsed(text: str) -> Iterator[tuple[CardUUID, range]]:
    for part in text.split():
        match = _RANGES.fullmatch(part)
        if match is None:
            raise WireError(f"{part[:80]!r} is not a range of device ids")
        for run in match[2].split(","):
            first, _, last = run.partition("-")
            yield CardUUID(match[1]), range(int(first), int(last or first) + 1)


def _runs(numbers: list[int]) -> str:
    runs: list[list[int]] = []
    for k in numbers:
        if runs and k == runs[-1][1] + 1:
            runs[-1][1] = k
        else:
            runs.append([k, k])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)
