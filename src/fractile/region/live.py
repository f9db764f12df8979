"""Reading and changing a limits page while others have it mapped: a sequence lock.

    writer   sequence odd ─> fields ─> sequence even        one writer: the agent
    reader   sequence even? copy; same sequence still? then the copy is consistent

The bytes go through a mapping and not through write(2), so that the lock word is stored in one piece. A writer that
dies between the two stores leaves the word odd; the next writer continues from there.
"""

import errno
import mmap
import os
import struct
import threading
import time
from pathlib import Path

from fractile.errors import WireError
from fractile.region import page, plain
from fractile.region.layout import LIMITS
from fractile.region.page import ContainerLimits

_WORD = LIMITS.fields["sequence"].offset
_AFTER = _WORD + 4
_ARBITER = LIMITS.fields["arbiter"].offset  # a word that the arbiter may write at any time
_TRIES = 200
_PAUSE = 0.001  # seconds; a change takes microseconds


def read(path: Path) -> ContainerLimits:
    """A consistent copy of the page. OSError when no plain file is there; WireError when it is invalid or stays half
    changed."""
    with plain.opened(path) as file:
        for _ in range(_TRIES):
            data = os.pread(file, page.SIZE + 1, 0)
            again = os.pread(file, page.SIZE, 0)
            if len(data) != page.SIZE or (_sequence(data) == _sequence(again) and _sequence(data) % 2 == 0):
                return page.decode(data)
            time.sleep(_PAUSE)
    raise WireError(f"{path} is half written: its writer died, or it is not a limits page")


class PageVersion:
    """The sequence number of a page, which changes with the page; reading it costs one system call. The file of a page
    in force is never replaced. OSError when there is none."""

    def __init__(self, path: Path) -> None:
        self._descriptor = plain.open_file(path)

    def read(self) -> int:
        """OSError when the page is cut short."""
        data = os.pread(self._descriptor, _AFTER, 0)
        if len(data) < _AFTER:
            raise OSError(errno.EIO, "the limits page is cut short")
        return _sequence(data)

    @property
    def removed(self) -> bool:
        """Whether the file has been unlinked."""
        return os.fstat(self._descriptor).st_nlink == 0

    def close(self) -> None:
        os.close(self._descriptor)


def is_page(path: Path) -> bool:
    """Whether the file is a page, whatever its content, that is to be changed in place."""
    return plain.size(path) == page.SIZE


def update(path: Path, limits: ContainerLimits) -> None:
    """Change the page in place and on the disk; processes that have it mapped see the old page or the new one."""
    with plain.opened(path, os.O_RDWR) as file, mmap.mmap(file, page.SIZE) as mapped:
        with memoryview(mapped) as view, view.cast("I") as words:
            order = threading.Lock()
            order.acquire()
            odd = words[_WORD // 4] | 1
            data = page.encode(limits)
            words[_WORD // 4] = odd
            _fence(order)
            view[:_WORD] = data[:_WORD]
            view[_AFTER:_ARBITER] = data[_AFTER:_ARBITER]
            view[_ARBITER + 4 :] = data[_ARBITER + 4 :]
            _fence(order)
            words[_WORD // 4] = (odd + 1) % 2**32
        os.fsync(file)


def _fence(order: threading.Lock) -> None:
    """Order the stores before it against those after it, also on processors that reorder stores: releasing a lock and
    acquiring it again are a release and an acquire."""
    order.release()
    order.acquire()


def _sequence(data: bytes) -> int:
    return struct.unpack_from("<I", data, _WORD)[0] if len(data) >= _AFTER else 0
