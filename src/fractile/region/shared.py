"""The file that the processes of a container share: made whole here, written by them, never trusted here.

The container may have put anything in its place, of any size, and may change it at any time. So it is opened only if it
is a plain file, read and never mapped (a mapping of a file that is cut short is a SIGBUS), and read up to the size that
it must have. Failure rule: ``create`` raises OSError with a sentence; the others take what makes no sense for absent.
"""

import fcntl
import os
import stat
import struct
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from fractile.region import layout
from fractile.region.layout import ACCOUNT, OBJECT, REGION, REGION_CARD, SLOT

SLOTS = layout.MAX_SLOTS
OBJECTS = layout.MAX_OBJECTS

_MODE = 0o666  # the container's user is any
_BLOCK = 512  # of st_blocks
_GETLK = 36  # F_OFD_GETLK of <fcntl.h>; Python has no name for it
_FLOCK = struct.Struct("hhqqi4x")  # l_type, l_whence, l_start, l_len, l_pid on 64-bit Linux


def cards_at() -> int:
    return REGION.size


def slot_size(cards: int) -> int:
    return SLOT.size + cards * ACCOUNT.size


def slots_at(cards: int) -> int:
    return REGION.size + cards * REGION_CARD.size


def objects_at(cards: int) -> int:
    return slots_at(cards) + SLOTS * slot_size(cards)


def size(cards: int) -> int:
    """Bytes of the whole file."""
    return objects_at(cards) + OBJECTS * OBJECT.size


def header(cards: int, generation: int) -> bytes:
    """The first bytes of a new region; all else is zero."""
    data = bytearray(REGION.size)
    for name, value in _facts(cards).items():
        REGION.put(data, 0, name, value)
    REGION.put(data, 0, "generation", generation)
    return bytes(data)


def create(path: Path, *, cards: int, generation: int) -> None:
    """A new region at ``path``, which must be out of the container's reach. Every block of it is there, since a process
    that writes to a page for which the disk has no room is killed by SIGBUS."""
    wanted = size(cards)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        os.posix_fallocate(descriptor, 0, wanted)
        os.pwrite(descriptor, header(cards, generation), 0)
        os.fchmod(descriptor, _MODE)  # whatever the umask
        os.fsync(descriptor)
        reserved = os.fstat(descriptor).st_blocks * _BLOCK >= wanted
    except OSError as e:
        raise OSError(
            f"no room for the {wanted // 1024} KiB that a container's processes share, in {path.parent}: {e.strerror}"
        ) from e
    finally:
        os.close(descriptor)
    if not reserved:
        raise OSError(f"the file system of {path.parent} does not reserve space; put --state-dir on ext4, xfs or tmpfs")


def generation(path: Path, *, cards: int) -> int | None:
    """That of the region there; None when there is none that is good for so many cards."""
    data = read(path, cards=cards, length=REGION.size)
    return REGION.get(data, 0, "generation") if isinstance(data, bytes) else None


def read(path: Path, *, cards: int, length: int | None = None) -> bytes | str:
    """The first ``length`` bytes, or all, with a header that makes sense for so many cards; else why not."""
    try:
        with _opened(path) as descriptor:
            if os.fstat(descriptor).st_size != size(cards):
                return "it has not the size that it must have"
            data = os.pread(descriptor, size(cards) if length is None else length, 0)
    except OSError as e:
        return e.strerror or str(e)
    if len(data) < REGION.size or any(REGION.get(data, 0, name) != value for name, value in _facts(cards).items()):
        return "its header makes no sense"
    return data


def locked(path: Path) -> frozenset[int]:
    """The slots that belong to a live process: the kernel says so, whatever the file says."""
    try:
        with _opened(path) as descriptor:
            return frozenset(_locked(descriptor))
    except OSError:
        return frozenset()


def in_use(path: Path) -> bool:
    return bool(locked(path))


def _facts(cards: int) -> dict[str, int]:
    return {
        "magic": layout.REGION_MAGIC,
        "version": layout.VERSION,
        "header_size": REGION.size,
        "size": size(cards),
        "card_count": cards,
        "slot_count": SLOTS,
        "object_count": OBJECTS,
        "account_size": ACCOUNT.size,
    }


@contextmanager
def _opened(path: Path) -> Generator[int]:
    """A descriptor to read a plain file with; whatever else lies there is looked at and not opened."""
    found = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(found).st_mode):
            raise OSError("it is no plain file")
        descriptor = os.open(f"/proc/self/fd/{found}", os.O_RDONLY | os.O_CLOEXEC)
    finally:
        os.close(found)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _locked(descriptor: int) -> Generator[int]:
    """Asks for any lock in a range, then in what is left on both sides of it: the kernel names locks in no order. Takes
    none itself."""
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
