"""Whether the files of a library version match its name, which is their digest.

A container that starts with another file runs without limits. So every file must be a plain file of the agent's own
user, which is root, writable by no other user, and all together must have the digest that names their folder. Reading
them takes milliseconds: they are read again only if identity, size or a time of a file changed, and for a moment after
such a change was seen, since a file system's clock is coarse. ``ctime`` cannot be set back. Failure rule: closed; what
cannot be read is wrong.
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
DRIVER = "simgpu"  # their folder

_NEEDED = (LIBRARY, ARBITER, PRELOAD)
_POSSIBLE = (*_NEEDED, *(f"{DRIVER}/{name}" for name in SIMULATED))
_SETTLED = 2.0  # seconds after a change was seen, any later change has another time
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH

_Stamp = tuple[int, ...]


def digest(content: Mapping[str, bytes]) -> str:
    """The name of a version with these files."""
    made = hashlib.sha256()
    for name, data in sorted(content.items()):
        made.update(f"{name} {len(data)}\n".encode())
        made.update(data)
    return made.hexdigest()[:20]


class _Read(msgspec.Struct, frozen=True):
    """A folder in which all was right: its files' stamps, since when they are unchanged, and when it was last read."""

    stamps: dict[str, _Stamp]
    since: float
    at: float


class LibraryContent:
    """Remembers what it has read."""

    def __init__(self, *, clock: Clock = time.monotonic) -> None:
        self._clock = clock
        self._right: dict[Path, _Read] = {}

    def wrong(self, folder: Path) -> Path | None:
        """The first wrong part of the version, a file or the folder; None when all is right. Blocks."""
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
    """Values that differ after any change of the file; None if it is not a file of ours."""
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
