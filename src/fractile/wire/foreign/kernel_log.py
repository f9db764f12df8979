"""Parse lines of the kernel log (/dev/kmsg) in which NVIDIA's driver names the process behind an XID.

    4,1339,5140900,-;NVRM: Xid (PCI:0000:05:00): 31, pid=1234, name=python, Ch 00000010, ...
    └ facility and level, number, time, flags; then the text, and lines of properties that begin with a space

Every program that may open /dev/kmsg can write there, but never with the kernel's own facility, 0
(Documentation/ABI/testing/dev-kmsg): other lines are ignored. A program chooses its name, which the kernel repeats in
its own lines; so the text must begin like the driver's, and the pid is before the name.
"""

import re

import msgspec

from fractile.errors import WireError

_LEVELS = 8  # the priority is 8 times the facility, plus the level
_HEAD = re.compile(rb"(\d{1,10}),\d{1,20},\d{1,20},[^;\n]{0,64};", re.ASCII)
_XID = re.compile(
    rb"NVRM: Xid \(PCI:([0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2})(?:\.[0-7])?\): "
    rb"(\d{1,6})(?![0-9])(?:, pid=(\d{1,10})(?![0-9]))?",
    re.ASCII,
)
_PLACE = re.compile(r"([0-9A-Fa-f]{4,8}):([0-9A-Fa-f]{2}):([0-9A-Fa-f]{2})(\.[0-7])?", re.ASCII)

BusPlace = tuple[int, int, int]  # domain, bus, device


class XidLine(msgspec.Struct, frozen=True):
    """An XID in the log. ``pid`` is in the node's own namespace; None if the driver does not know it."""

    place: BusPlace
    xid: int
    pid: int | None


def xid_line(record: bytes) -> XidLine | None:
    """The XID in a record; None if there is none."""
    head = _HEAD.match(record)
    if head is None or int(head[1]) >= _LEVELS:
        return None
    found = _XID.match(record, head.end())
    if found is None:
        return None
    return XidLine(place(found[1].decode("ascii")), int(found[2]), int(found[3]) if found[3] else None)


def place(bus_id: str) -> BusPlace:
    """The place of a card; NVML writes eight digits of the domain and a function, the kernel four and none."""
    found = _PLACE.fullmatch(bus_id)
    if found is None:
        raise WireError(f"{bus_id[:40]!r} is not a PCI bus id such as 00000000:05:00.0")
    return int(found[1], 16), int(found[2], 16), int(found[3], 16)
