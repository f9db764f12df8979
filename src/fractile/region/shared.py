"""The file that the processes of a container share: created whole here, written by them, never trusted here.

The container may have replaced it by anything, of any size, and may change it at any time. So it is opened only if it
is a plain file, read and never mapped (a mapping of a file that is cut short is a SIGBUS), and read up to the size that
it must have. The container's root may hold a lease on it (F_SETLEASE of fcntl(2)), for which an open would wait for
45 s: here the open never waits and raises BlockingIOError. Failure rule: ``create`` raises OSError with a sentence; the
others treat an invalid file as absent.
"""

import errno
import fcntl
import functools
import os
import stat
import struct
import zlib
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from fractile.region import layout, plain, sums
from fractile.region.layout import ACCOUNT, OBJECT, REGION, REGION_CARD, SLOT

SLOTS = layout.MAX_SLOTS
OBJECTS = layout.MAX_OBJECTS

_FACTS = REGION.fields["sequence"].offset  # the part of the header that does not change
_MODE = 0o666  # the container may run as any user
_BLOCK = 512  # of st_blocks
_SLACK = 65_536  # bytes that a file system may use for a file beyond its length
EMPTY = "it is empty here"  # like the file over which a region is mounted (``bounded``)
LEASED = "a process of the container holds a lease on it (F_SETLEASE)"
LOOKS = 5  # at least one read in so many asks the kernel
_NEAR = 4  # slots that are read with the cards; a process takes the first free slot
_GETLK = 36  # F_OFD_GETLK of <fcntl.h>; Python has no name for it
_FLOCK = struct.Struct("hhqqi4x")  # l_type, l_whence, l_start, l_len, l_pid on 64-bit Linux


class RegionShape(msgspec.Struct, frozen=True):
    """How many cards, slots and objects a region has, and the offset of each. Order: header, cards, slots (each with an
    account for every card), objects."""

    cards: int
    slots: int = SLOTS
    objects: int = OBJECTS

    def card_at(self, card: int) -> int:
        return REGION.size + card * REGION_CARD.size

    def slot_at(self, slot: int) -> int:
        return self.card_at(self.cards) + slot * (SLOT.size + self.cards * ACCOUNT.size)

    def account_at(self, slot: int, card: int) -> int:
        return self.slot_at(slot) + SLOT.size + card * ACCOUNT.size

    def object_at(self, number: int) -> int:
        return self.slot_at(self.slots) + number * OBJECT.size

    @property
    def size(self) -> int:
        """Bytes of the whole file."""
        return self.object_at(self.objects)


class FoundRegion(msgspec.Struct, frozen=True):
    """What is at the path of a region, by a check that takes no lock. ``file``: device and inode, None when there is no
    file; ``cards`` and ``generation`` of a valid region; ``in_use``: a process holds a slot, or a lease on the file."""

    file: tuple[int, int] | None = None
    cards: int = 0
    generation: int | None = None
    in_use: bool = False
    leased: bool = False


class Glance(msgspec.Struct, frozen=True):
    """The part of a region that is read every second: ``head`` ends before the slots, ``slots`` has the live ones,
    each with its accounts; ``dead``: bytes that dead processes held, by card."""

    shape: RegionShape
    generation: int
    head: bytes
    slots: dict[int, bytes]
    dead: tuple[int, ...]


class Region(msgspec.Struct, frozen=True):
    """A copy of a region whose header is valid."""

    shape: RegionShape
    generation: int
    data: bytes


def header(shape: RegionShape, generation: int) -> bytes:
    """The first bytes of a new region; all other bytes are zero."""
    data = bytearray(REGION.size)
    for name, value in _facts(shape).items():
        REGION.put(data, 0, name, value)
    REGION.put(data, 0, "generation", generation)
    return bytes(data)


def create(path: Path, *, cards: int, generation: int) -> None:
    """Create a region at ``path``, which must be out of the container's reach. All its blocks are allocated, since a
    process that writes to a page for which the disk has no room is killed by SIGBUS."""
    shape = RegionShape(cards)
    wanted = shape.size
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        os.posix_fallocate(descriptor, 0, wanted)
        os.pwrite(descriptor, header(shape, generation), 0)
        os.fchmod(descriptor, _MODE)  # whatever the umask
        reserved = os.fstat(descriptor).st_blocks * _BLOCK >= wanted
    except OSError as e:
        raise OSError(
            f"no room for the {wanted // 1024} KiB that a container's processes share, in {path.parent}: {e.strerror}"
        ) from e
    finally:
        os.close(descriptor)
    if not reserved:
        raise OSError(f"the file system of {path.parent} does not reserve space; put --state-dir on ext4, xfs or tmpfs")


def find(path: Path) -> FoundRegion:
    """Opens the file, so the caller must hold no lock."""
    file = identity(path)
    try:
        with _opened(path) as descriptor:
            head = os.pread(descriptor, REGION.size, 0)
            shape = _shape(head)
            whole = shape is not None and os.fstat(descriptor).st_size == shape.size
            used = any(True for _ in _locked(descriptor))
    except BlockingIOError:
        return FoundRegion(file, in_use=True, leased=True)
    except OSError:
        return FoundRegion(file)
    if shape is None or not whole:
        return FoundRegion(file, in_use=used)
    return FoundRegion(file, shape.cards, REGION.get(head, 0, "generation"), used)


def identity(path: Path) -> tuple[int, int] | None:
    """Device and inode of the file at ``path``; None when there is none."""
    try:
        there = path.lstat()
    except OSError:
        return None
    return there.st_dev, there.st_ino


def generation(path: Path, *, cards: int) -> int | None:
    """The generation of the region at ``path``; None when no region for ``cards`` cards is there."""
    found = read(path, cards=cards, length=REGION.size)
    return found.generation if isinstance(found, Region) else None


def read(path: Path, *, cards: int, length: int | None = None) -> Region | str:
    """The region for ``cards`` cards, all of it or its first ``length`` bytes; else why it cannot be read."""
    try:
        with _opened(path) as descriptor:
            head = os.pread(descriptor, REGION.size, 0)
            if not head:
                return EMPTY
            shape = _shape(head)
            if shape is None or shape.cards != cards:
                return "its header is invalid"
            if os.fstat(descriptor).st_size != shape.size:
                return "it has the wrong size"
            data = os.pread(descriptor, shape.size if length is None else length, 0)
    except OSError as e:
        return e.strerror or str(e)
    if len(data) < (shape.size if length is None else length):
        return "it is being cut short"
    return Region(shape, REGION.get(head, 0, "generation"), data)


def cut_back(path: Path | str, *, cards: int) -> int:
    """Cut the file back to its size, which the container may have exceeded, also with space reserved behind its end.
    Returns the bytes of disk freed. No process has mapped what is cut off. BlockingIOError while it is leased."""
    size = _size(cards)
    there = os.lstat(path)
    held = there.st_blocks * _BLOCK
    if not stat.S_ISREG(there.st_mode) or (there.st_size <= size and held <= size + _SLACK):
        return 0
    with _opened(path, os.O_WRONLY) as descriptor:
        os.ftruncate(descriptor, size)
        return max(held - os.fstat(descriptor).st_blocks * _BLOCK, 0)


@functools.cache
def _size(cards: int) -> int:
    return RegionShape(cards).size


class RegionWindow:
    """A region that is read repeatedly, through one descriptor as long as the same file is at the path.

    A process writes down all that it does, so while the bytes of the cards and of the first slots equal those of the
    last read, the rest is unchanged too; only the death of a process is not written anywhere. So the kernel's locks and
    the file's identity are checked when something was written, when the read must be ``fresh``, and every few reads.
    """

    def __init__(self, path: Path, *, cards: int) -> None:
        self._path = str(path)
        self._cards = cards
        self._slots_at = RegionShape(cards).slot_at(0)
        self._slot_size = SLOT.size + cards * ACCOUNT.size
        self._near = self._slots_at + _NEAR * self._slot_size
        self._turn = zlib.crc32(self._path.encode())  # spreads the full reads of all regions over time
        self._last: tuple[bytes, Glance] | None = None
        self._descriptor = -1
        self._file: tuple[int, int] = (0, 0)
        self._header = b""
        self._shape: RegionShape | None = None

    def glance(self, *, fresh: bool = False) -> Glance | str:
        """Cards and live processes, without the rest of the region; else why it cannot be read."""
        self._turn += 1
        try:
            if self._last is not None and not fresh and self._turn % LOOKS:
                data = os.pread(self._descriptor, self._near, 0)
                if data == self._last[0]:
                    return self._last[1]
            return self._glance(self._opened())
        except OSError as e:
            self.close()
            return e.strerror or str(e)

    def close(self) -> None:
        self._last = None
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _glance(self, descriptor: int) -> Glance | str:
        self._last = None
        near = os.pread(descriptor, self._near, 0)
        head = near[: self._slots_at]
        if head[:_FACTS] != self._header:
            self._header, self._shape = head[:_FACTS], _shape(head)
        shape = self._shape
        if shape is None or shape.cards != self._cards or len(head) < self._slots_at:
            return "its header is invalid"
        size = self._slot_size
        live = [slot for slot in _locked(descriptor) if slot < shape.slots]
        slots = {slot: os.pread(descriptor, size, self._slots_at + slot * size) for slot in live}
        if any(len(data) < size for data in slots.values()):
            return "it is being cut short"
        dead = self._dead(descriptor, shape, head, slots)
        found = Glance(shape, REGION.get(head, 0, "generation"), head, slots, dead)
        if len(near) == self._near and all(slot < _NEAR for slot in live):
            self._last = near, found
        return found

    def _dead(self, descriptor: int, shape: RegionShape, head: bytes, live: dict[int, bytes]) -> tuple[int, ...]:
        """Reads all slots only if dead processes must still hold something."""
        cards = range(shape.cards)
        held = [sums.of_slot(data, 0, shape.cards) for data in live.values()]
        if all(sums.on_card(head, shape.card_at(card)) <= sum(one[card] for one in held) for card in cards):
            return (0,) * shape.cards
        taken = min(REGION.get(head, 0, "slot_high"), shape.slots)
        return sums.of_the_dead(os.pread(descriptor, taken * self._slot_size, self._slots_at), shape.cards, live)

    def _opened(self) -> int:
        there = os.lstat(self._path)
        if self._descriptor < 0 or self._file != (there.st_dev, there.st_ino):
            self.close()
            self._descriptor = _open(self._path)
            opened = os.fstat(self._descriptor)
            self._file = opened.st_dev, opened.st_ino
        return self._descriptor


def locked(path: Path) -> frozenset[int]:
    """The slots of live processes, by the kernel's locks, whatever the file says."""
    try:
        with _opened(path) as descriptor:
            return frozenset(_locked(descriptor))
    except OSError:
        return frozenset()


def in_use(path: Path) -> bool:
    return bool(locked(path))


def _shape(head: bytes) -> RegionShape | None:
    """The shape in the header; None when its fields do not agree."""
    if len(head) < REGION.size:
        return None
    cards, slots, objects = (REGION.get(head, 0, name) for name in ("card_count", "slot_count", "object_count"))
    shape = RegionShape(cards, slots, objects)
    possible = cards <= layout.MAX_CARDS and 0 < slots <= SLOTS and objects <= OBJECTS
    agree = all(REGION.get(head, 0, name) == value for name, value in _facts(shape).items())
    return shape if possible and agree else None


def _facts(shape: RegionShape) -> dict[str, int]:
    return {
        "magic": layout.REGION_MAGIC,
        "version": layout.VERSION,
        "header_size": REGION.size,
        "size": shape.size,
        "card_count": shape.cards,
        "slot_count": shape.slots,
        "object_count": shape.objects,
        "account_size": ACCOUNT.size,
    }


@contextmanager
def _opened(path: Path | str, access: int = os.O_RDONLY) -> Generator[int]:
    descriptor = _open(path, access)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _open(path: Path | str, access: int = os.O_RDONLY) -> int:
    try:
        return plain.open_file(path, access)
    except BlockingIOError:
        raise BlockingIOError(errno.EWOULDBLOCK, LEASED, str(path)) from None


def _locked(descriptor: int) -> Generator[int]:
    """Query any lock in a range, then the rest on both sides of it: the kernel returns locks in no order. Takes no lock
    itself."""
    ranges = [(0, SLOTS)]
    while ranges:
        begin, end = ranges.pop()
        question = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, begin, end - begin, 0)
        kind, _, start, length, _ = _FLOCK.unpack(fcntl.fcntl(descriptor, _GETLK, question))
        if kind == fcntl.F_UNLCK:
            continue
        first, last = max(begin, start), end if length == 0 else min(end, start + length)
        yield from range(first, last)
        ranges += [r for r in ((begin, first), (last, end)) if r[0] < r[1]]
