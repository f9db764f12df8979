"""The limits page of one container: what the library inside it may allow. Version 2, little endian, fixed size.

The agent writes it, containers map it read-only. ``layout`` gives the offset of every field; this module says which
bytes are valid: a page has exactly one encoding, so decoding and encoding it again gives the same page, and anything
else raises WireError. Cards stand in the order of the region's counters.
"""

import re
import struct

import msgspec

from fractile.errors import WireError
from fractile.model.units import CardUUID, ContainerName, Percent, PodUID
from fractile.region import layout
from fractile.region.layout import LIMITS, LIMITS_CARD, StructLayout

FLAG_OFF = layout.FLAG_ISOLATION_OFF
FLAG_LOST = layout.FLAG_DIRECTORY_LOST
MAX_CARDS = layout.MAX_CARDS
SIZE = LIMITS.size
FIRST_VERSION = b"fractile-limits="  # how the text file of the first release began

_CARDS = LIMITS.fields["cards"].offset
_WORD = re.compile(r"[!-~]*", re.ASCII)  # printable, no blank: names, UUIDs
_PERCENT = 100
_NAMES = ("pod_uid", "pod_namespace", "pod_name", "container")
_CARD_NUMBERS = ("memory", "context", "unaccounted", "cores", "cores_limit", "weight", "flags")


class CardLimits(msgspec.Struct, frozen=True, kw_only=True):
    """What the container may use of one card. Memory in bytes; ``cores`` and ``cores_limit`` in percent of its time.

    ``context``: what a CUDA context costs, 0 when it has not been measured; ``unaccounted``: what is held beyond the
    ledger, subtracted from what may be held; ``weight``: the share of the time left over.
    """

    uuid: CardUUID
    memory: int
    context: int = 0
    unaccounted: int = 0
    cores: Percent = Percent(0)
    cores_limit: Percent = Percent(0)
    weight: int = 1
    flags: int = 0


class ContainerLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Whose limits they are, and the cards. ``generation`` is that of the region next to the page."""

    pod_uid: PodUID
    namespace: str
    pod: str
    container: ContainerName
    cards: tuple[CardLimits, ...]
    flags: int = 0
    priority: int = 0
    generation: int = 0


def encode(limits: ContainerLimits, *, sequence: int = 0, arbiter: int = 0) -> bytes:
    """The whole page; WireError when a name or a number does not fit in it."""
    if len(limits.cards) > MAX_CARDS:
        raise WireError(f"a container cannot hold {len(limits.cards)} cards; the limits page takes {MAX_CARDS}")
    if len({c.uuid for c in limits.cards}) < len(limits.cards) or not all(c.uuid for c in limits.cards):
        raise WireError("the limits page needs a different name for each card")
    data = bytearray(SIZE)
    LIMITS.put(data, 0, "magic", layout.LIMITS_MAGIC)
    LIMITS.put(data, 0, "version", layout.VERSION)
    LIMITS.put(data, 0, "size", SIZE)
    LIMITS.put(data, 0, "sequence", sequence)
    LIMITS.put(data, 0, "arbiter", arbiter)
    LIMITS.put(data, 0, "card_count", len(limits.cards))
    LIMITS.put(data, 0, "end", layout.END_MAGIC)
    for name, value in (
        ("flags", limits.flags),
        ("priority", limits.priority),
        ("region_generation", limits.generation),
    ):
        _put_number(LIMITS, data, 0, name, value)
    for name, text in zip(_NAMES, (limits.pod_uid, limits.namespace, limits.pod, limits.container), strict=True):
        _put_text(LIMITS, data, 0, name, text)
    for index, card in enumerate(limits.cards):
        _encode_card(data, _card_offset(index), card)
    return bytes(data)


def decode(data: bytes) -> ContainerLimits:
    """Inverse of ``encode``; WireError on anything that ``encode`` does not write."""
    _check_frame(data)
    count: int = LIMITS.get(data, 0, "card_count")
    pod_uid, namespace, pod, container = (_text(LIMITS, data, 0, name) for name in _NAMES)
    limits = ContainerLimits(
        pod_uid=PodUID(pod_uid),
        namespace=namespace,
        pod=pod,
        container=ContainerName(container),
        cards=tuple(_decode_card(data, _card_offset(index)) for index in range(count)),
        flags=LIMITS.get(data, 0, "flags"),
        priority=LIMITS.get(data, 0, "priority"),
        generation=LIMITS.get(data, 0, "region_generation"),
    )
    if encode(limits, sequence=LIMITS.get(data, 0, "sequence"), arbiter=LIMITS.get(data, 0, "arbiter")) != data:
        raise WireError("the limits page has data where it must be empty")
    return limits


def _check_frame(data: bytes) -> None:
    if data.startswith(FIRST_VERSION):
        raise WireError("the limits file is the text of an earlier release, version 1; it no longer grants anything")
    if len(data) < _CARDS or LIMITS.get(data, 0, "magic") != layout.LIMITS_MAGIC:
        raise WireError("the file is not a limits page")
    if (version := LIMITS.get(data, 0, "version")) != layout.VERSION:
        raise WireError(f"the limits page has version {version}; this Fractile reads version {layout.VERSION}")
    if len(data) != SIZE or LIMITS.get(data, 0, "size") != SIZE or LIMITS.get(data, 0, "end") != layout.END_MAGIC:
        raise WireError(f"the limits page is cut short or damaged: {len(data)} bytes instead of {SIZE}")
    if LIMITS.get(data, 0, "sequence") % 2:
        raise WireError("the limits page is half written")
    if (count := LIMITS.get(data, 0, "card_count")) > MAX_CARDS:
        raise WireError(f"the limits page says that it has {count} cards; it has room for {MAX_CARDS}")


def _card_offset(index: int) -> int:
    return _CARDS + index * LIMITS_CARD.size


def _encode_card(data: bytearray, at: int, card: CardLimits) -> None:
    if not (0 <= card.cores <= _PERCENT and 0 <= card.cores_limit <= _PERCENT):
        raise WireError(f"{card.cores} and {card.cores_limit} percent of a card are not both between 0 and {_PERCENT}")
    _put_text(LIMITS_CARD, data, at, "uuid", card.uuid)
    for name in _CARD_NUMBERS:
        _put_number(LIMITS_CARD, data, at, name, getattr(card, name))


def _decode_card(data: bytes, at: int) -> CardLimits:
    memory, context, unaccounted, cores, cores_limit, weight, flags = (
        LIMITS_CARD.get(data, at, name) for name in _CARD_NUMBERS
    )
    return CardLimits(
        uuid=CardUUID(_text(LIMITS_CARD, data, at, "uuid")),
        memory=memory,
        context=context,
        unaccounted=unaccounted,
        cores=Percent(cores),
        cores_limit=Percent(cores_limit),
        weight=weight,
        flags=flags,
    )


def _put_number(where: StructLayout, data: bytearray, at: int, name: str, value: int) -> None:
    try:
        where.put(data, at, name, value)
    except struct.error:
        raise WireError(f"the limits page cannot hold {value} as {name}") from None


def _put_text(where: StructLayout, data: bytearray, at: int, name: str, text: str) -> None:
    size = where.fields[name].size
    if not _WORD.fullmatch(text) or len(text) >= size:  # a NUL must follow it
        raise WireError(f"{text[:80]!r} cannot stand in a limits page as {name}")
    where.put_bytes(data, at, name, text.encode("ascii"))


def _text(where: StructLayout, data: bytes, at: int, name: str) -> str:
    raw = where.get_bytes(data, at, name).rstrip(b"\0")
    try:
        return raw.decode("ascii")
    except UnicodeDecodeError:
        raise WireError(f"the limits page has no {name} in ASCII") from None
