"""A file system for one file: what a container shares with its node then takes a fixed amount of memory and no disk.

    <token>/region.fs         a tmpfs of the region's size, for a moment: nosuid, nodev, noexec, 0700
    <token>/region.fs/region  the region ──bind──> <token>/shared/region
    <token>/region.fs         unmounted: the file stays, in a file system that has no other name

So a container reaches the one file, which cannot grow, and nobody else reaches it by a path that runs anything. Nodes
have no quotas in general (XFS and ext4 need a mount option, overlay and btrfs have others), a memfd can be mounted
nowhere, and would end with the agent: a mount stays until it is taken away, whichever agent lives. The memory, half a
MiB for a container with one card, is the agent's. Failure rule: an OSError goes to the caller.
"""

import contextlib
import ctypes
import os
import stat
from collections.abc import Callable
from pathlib import Path

STAGE = "region.fs"

_NAME = "region"
_FLAGS = 2 | 4 | 8  # MS_NOSUID | MS_NODEV | MS_NOEXEC
_BIND = 4096  # MS_BIND
_DETACH = 2 | 8  # MNT_DETACH | UMOUNT_NOFOLLOW
_INODES = 2  # the folder and the file
_PAGE = os.sysconf("SC_PAGE_SIZE")

_libc = ctypes.CDLL(None, use_errno=True)


def why_not(state: Path) -> str:
    """Why this process cannot mount below ``state`` what the node's container runtime would see; "" when it can."""
    if "shared:" not in _mount_of(state):
        return f"mounts below {state} would not be seen outside: it needs mount propagation Bidirectional"
    probe = state / f".{STAGE}"
    try:
        release(probe)
        probe.mkdir(mode=0o700, exist_ok=True)
        _mount("tmpfs", probe, "tmpfs", _FLAGS, f"size={_PAGE},nr_inodes={_INODES},mode=0700")
        release(probe)
        probe.rmdir()
    except OSError as e:
        return f"this process may not mount: {e.strerror}"
    return ""


def put(target: Path, size: int, make: Callable[[Path], None]) -> None:
    """Let ``make`` write a file of ``size`` bytes, alone in a file system of that size, in the place of ``target``."""
    stage = target.parent.parent / STAGE
    discard(stage)
    stage.mkdir(mode=0o700)
    try:
        options = f"size={-(-size // _PAGE) * _PAGE},nr_inodes={_INODES},mode=0700"
        _mount("tmpfs", stage, "tmpfs", _FLAGS, options)
        make(stage / _NAME)
        release(target)
        _hold_place(target)
        _mount(str(stage / _NAME), target, "", _BIND, "")
    finally:
        discard(stage)


def is_bounded(path: Path) -> bool:
    """Whether the file there is in a file system of its own."""
    try:
        return path.lstat().st_dev != path.parent.lstat().st_dev
    except OSError:
        return False


def release(path: Path) -> None:
    """Take away what is mounted there, if anything is. Containers that have it mounted keep it until they end."""
    while is_bounded(path):
        if _libc.umount2(os.fsencode(path), _DETACH) != 0:
            raise _error(path)


def discard(stage: Path) -> None:
    """The folder of a file system that was being made."""
    release(stage)
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        stage.rmdir()


def _hold_place(target: Path) -> None:
    """A file to mount over; what lies there otherwise goes."""
    with contextlib.suppress(FileNotFoundError):
        there = target.lstat()
        if stat.S_ISREG(there.st_mode) and there.st_size == 0:
            return
        target.unlink()
    os.close(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))


def _mount(source: str, target: Path, kind: str, flags: int, options: str) -> None:
    arguments = (os.fsencode(source), os.fsencode(target), os.fsencode(kind), ctypes.c_ulong(flags), options.encode())
    if _libc.mount(*arguments) != 0:
        raise _error(target)


def _error(path: Path) -> OSError:
    number = ctypes.get_errno()
    return OSError(number, os.strerror(number), str(path))


def _mount_of(path: Path) -> str:
    """The line of /proc/self/mountinfo about the mount in which the path lies; the last of several is on top."""
    wanted = str(path.resolve())
    found, longest = "", -1
    for line in Path("/proc/self/mountinfo").read_text("utf-8", "replace").splitlines():
        point = line.split(" ", 5)[4]
        inside = point == "/" or wanted == point or wanted.startswith(f"{point}/")
        if inside and len(point) >= longest:
            found, longest = line.partition(" - ")[0], len(point)
    return found
