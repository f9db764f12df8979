"""The limits file of one container: what the library inside it may let through. Version 1.

    fractile-limits=1
    pod-uid=8c0f...
    pod-namespace=default
    pod-name=a
    container=main
    cards=1
    card=GPU-... memory=8533311488 cores=0
    end=1

It is written for a reader in C that allocates nothing: fixed order, one fact per line, ASCII, memory in bytes, every
line shorter than MAX_LINE bytes, at most MAX_CARDS cards. ``cores`` is a percent of the card's time, 0 for no limit.
The last line proves that the file is whole. A reader that meets another version or a missing end must fail closed.
"""

import re

import msgspec

from fractile.errors import WireError
from fractile.model.placement import Slice
from fractile.model.units import CardUUID, ContainerName, MiB, Percent, PodUID

FILE_NAME = "limits"
DIRECTORY = "/etc/fractile"  # where the container sees it
VERSION = 1
MAX_LINE = 512
MAX_CARDS = 128

_BYTES = 2**20
_VALUE = re.compile(r"[!-~]{1,253}", re.ASCII)  # printable, no blank: names, UUIDs
_CARD = re.compile(r"card=([!-~]{1,253}) memory=(\d{1,19}) cores=(\d{1,3})", re.ASCII)


class Limits(msgspec.Struct, frozen=True):
    """Whose limits they are, and what the container may use of each card."""

    pod_uid: PodUID
    namespace: str
    pod: str
    container: ContainerName
    slices: tuple[Slice, ...]


def encode(limits: Limits) -> str:
    """The file's text; WireError when a name could break a line or there are too many cards."""
    if len(limits.slices) > MAX_CARDS:
        raise WireError(f"a container cannot hold {len(limits.slices)} cards; the limits file takes {MAX_CARDS}")
    cards = [f"card={_checked(s.card)} memory={s.memory * _BYTES} cores={s.cores}" for s in limits.slices]
    lines = [
        f"fractile-limits={VERSION}",
        f"pod-uid={_checked(limits.pod_uid)}",
        f"pod-namespace={_checked(limits.namespace)}",
        f"pod-name={_checked(limits.pod)}",
        f"container={_checked(limits.container)}",
        f"cards={len(cards)}",
        *cards,
        "end=1",
    ]
    return "\n".join(lines) + "\n"


def decode(text: str) -> Limits:
    """The inverse; WireError on anything that ``encode`` does not write."""
    lines = text.split("\n")
    if len(lines) < 8 or lines[-2:] != ["end=1", ""]:
        raise WireError("the limits file is cut short")
    version = _after("fractile-limits", lines[0])
    if version != str(VERSION):
        raise WireError(f"the limits file has version {version[:20]}; this Fractile reads version {VERSION}")
    cards = lines[6:-2]
    if _after("cards", lines[5]) != str(len(cards)):
        raise WireError("the limits file does not hold as many cards as it says")
    return Limits(
        pod_uid=PodUID(_after("pod-uid", lines[1])),
        namespace=_after("pod-namespace", lines[2]),
        pod=_after("pod-name", lines[3]),
        container=ContainerName(_after("container", lines[4])),
        slices=tuple(_slice(line) for line in cards),
    )


def _slice(line: str) -> Slice:
    match = _CARD.fullmatch(line)
    if match is None or int(match[2]) % _BYTES:
        raise WireError(f"{line[:80]!r} is not a card of a limits file")
    return Slice(CardUUID(match[1]), MiB(int(match[2]) // _BYTES), Percent(int(match[3])))


def _after(key: str, line: str) -> str:
    name, _, value = line.partition("=")
    if name != key:
        raise WireError(f"the limits file says {name[:40]!r} where {key!r} belongs")
    return _checked(value)


def _checked(value: str) -> str:
    if not _VALUE.fullmatch(value):
        raise WireError(f"{value[:80]!r} cannot stand in a limits file")
    return value
