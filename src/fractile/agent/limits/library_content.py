"""Whether a version of the library is what its name says: the digest of its files.

A container that starts over another file runs without limits. So every file must be a plain one of the agent's own
user, which is root, writable by no other, and all together must have the digest by which their folder is called.
Reading them takes milliseconds: it is done again only where identity, size or a time of one of them is another, and for
a moment after such a change was seen, since a file system's clock ticks slowly. Nobody can set ``ctime`` back. Failure
rule: closed; what cannot be read is wrong.
"""

import hashlib
import os
import stat
import time
from collections.abc import Mapping
from pathlib import Path

import msgspec

from fractile.kube.pacing import Clock
from fractile.region import plain

LIBRARY = "libfractile.so"
ARBITER = "fractile-arbiter"
PRELOAD = "ld.so.preload"
SIMULATED = ("libcuda.so.1", "libnvidia-ml.so.1")
DRIVER = "simgpu"  # the folder of those

_NEEDED = (LIBRARY, ARBITER, PRELOAD)
_POSSIBLE = (*_NEEDED, *(f"{DRIVER}/{name}" for name in SIMULATED))
_SETTLED = 2.0  # seconds after a change was seen, a later one has another time
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH

_Stamp = tuple[int, ...]


def digest(content: Mapping[str, bytes]) -> str:
    """What a version of these files is called."""
    made = hashlib.sha256()
    for name, data in sorted(content.items()):
        made.update(f"{name} {len(data)}\n".encode())
        made.update(data)
    return made.hexdigest()[:20]


class _Read(msgspec.Struct, frozen=True):
    """A folder in which all was right: how its files looked, since when they look so, and when they were read last."""

    stamps: dict[str, _Stamp]
    since: float
    at: float


class LibraryContent:
    """Remembers what it has read."""

    def __init__(self, *, clock: Clock = time.monotonic) -> None:
        self._clock = clock
        self._right: dict[Path, _Read] = {}

    def wrong(self, folder: Path) -> Path | None:
        """What of the version is not as it must be: a file, or the folder; None when all is right. Blocks."""
        present = [name for name in _POSSIBLE if name in _NEEDED or os.path.lexists(folder / name)]
        stamps = {name: _stamp(folder / name) for name in present}
        strange = next((name for name, stamp in stamps.items() if stamp is None), None)
        if strange is not None:
            return folder / strange
        if not all(_is_folder(f) for f in {(folder / name).parent for name in present}):
            return folder
        seen = {name: stamp for name, stamp in stamps.items() if stamp is not None}
        known = self._right.pop(folder, None)
        known = known if known is not None and known.stamps == seen else None
        now = self._clock()
        if known is not None and known.at - known.since > _SETTLED:
            self._right[folder] = known
            return None
        if _digest_of(folder, present) != folder.name or stamps != {name: _stamp(folder / name) for name in present}:
            return folder
        self._right[folder] = _Read(seen, now if known is None else known.since, now)
        return None


def _stamp(path: Path) -> _Stamp | None:
    """What is another one when the file was changed; None where it is no file of ours."""
    try:
        there = os.lstat(path)
    except OSError:
        return None
    if not stat.S_ISREG(there.st_mode) or there.st_uid != os.geteuid() or there.st_mode & _OTHERS_WRITE:
        return None
    return there.st_dev, there.st_ino, there.st_size, there.st_mtime_ns, there.st_ctime_ns


def _is_folder(path: Path) -> bool:
    try:
        there = os.lstat(path)
    except OSError:
        return False
    return stat.S_ISDIR(there.st_mode) and there.st_uid == os.geteuid() and not there.st_mode & _OTHERS_WRITE


def _digest_of(folder: Path, names: list[str]) -> str:
    try:
        return digest({name: _read(folder / name) for name in names})
    except OSError:
        return ""


def _read(path: Path) -> bytes:
    with plain.opened(path) as descriptor, open(descriptor, "rb", closefd=False) as file:
        return file.read()
