"""A file system for one file, so that what a container shares with its node takes a fixed amount of memory and no disk.

    <token>/region.fs         a tmpfs of the region's size, temporary: nosuid, nodev, noexec, 0700
    <token>/region.fs/region  the region ──bind──> <token>/shared/region
    <token>/region.fs         unmounted: the file stays, in a file system that has no other name

So a container reaches one file, which cannot grow, and no other process reaches it by a path that allows execution.
Agents from before 25 November 2026 let a container write the folder ``shared``: a container that still has it may put
a link there at any moment. So the mount point is opened, checked, and mounted on through its descriptor, never by its
path.

Quotas are not generally available on nodes (XFS and ext4 need a mount option, overlay and btrfs have others). A memfd
cannot be mounted and would end with the agent; a mount stays until it is removed, even if the agent restarts. The
memory, half a MiB for a container with one card, is charged to the agent. Failure rule: an OSError goes to the caller.
"""

import contextlib
import ctypes
import os
import stat
from collections.abc import Callable, Generator
from pathlib import Path

from fractile.region import plain

STAGE = "region.fs"

_NAME = "region"
_FLAGS = 2 | 4 | 8  # MS_NOSUID | MS_NODEV | MS_NOEXEC
_BIND = 4096  # MS_BIND
_DETACH = 2 | 8  # MNT_DETACH | UMOUNT_NOFOLLOW
_INODES = 2  # the folder and the file
_PLACE = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_CHANGED = (
    "was changed while it was being created; the container's processes can write there: end them, or delete the pod"
)
_PAGE = os.sysconf("SC_PAGE_SIZE")

_libc = ctypes.CDLL(None, use_errno=True)


def why_not(state: Path) -> str:
    """Why a mount of this process below ``state`` would not work for the node's container runtime; "" when it would."""
    if "shared:" not in _mount_of(state):
        return f"mounts below {state} would not be seen outside: it needs mount propagation Bidirectional"
    probe = state / f".{STAGE}"
    try:
        discard(probe)
        probe.mkdir(mode=0o700)
        _mount("tmpfs", probe, "tmpfs", _FLAGS, f"size={_PAGE},nr_inodes={_INODES},mode=0700")
        release(probe)
        probe.rmdir()
    except OSError as e:
        return f"this process may not mount: {e.strerror}"
    return ""


def put(target: Path, size: int, make: Callable[[Path], None]) -> None:
    """Let ``make`` write a file of ``size`` bytes, alone in a file system of that size, and mount it over
    ``target``."""
    stage = target.parent.parent / STAGE
    discard(stage)
    stage.mkdir(mode=0o700)
    try:
        options = f"size={-(-size // _PAGE) * _PAGE},nr_inodes={_INODES},mode=0700"
        _mount("tmpfs", stage, "tmpfs", _FLAGS, options)
        make(stage / _NAME)
        release(target)
        with _opened(target.parent, _FOLDER) as folder:
            _mount_in(folder, target, stage / _NAME)
    finally:
        discard(stage)


def is_bounded(path: Path) -> bool:
    """Whether the file at ``path`` has its own file system: something is mounted on it."""
    try:
        with _opened(path, _PLACE) as file, _opened(path.parent, _PLACE) as folder:
            return _mount_id(file) != _mount_id(folder)
    except OSError:
        return False


def release(path: Path) -> None:
    """Unmount everything at ``path``. Containers that have it mounted keep it until they end."""
    while is_bounded(path):
        if _libc.umount2(os.fsencode(path), _DETACH) != 0:
            raise _error(path)


def discard(stage: Path) -> None:
    """Remove the folder of a file system that was being made."""
    release(stage)
    with contextlib.suppress(FileNotFoundError, NotADirectoryError), _opened(stage.parent, _FOLDER) as parent:
        plain.put_aside(stage.name, parent)


def _mount_in(folder: int, target: Path, source: Path) -> None:
    """Mount the file ``source`` over ``target``, which is in the open ``folder``: nowhere else."""
    name = target.name
    _hold_place(folder, name)
    with _opened(name, _PLACE, within=folder) as place:
        if not stat.S_ISREG(os.fstat(place).st_mode):
            raise OSError(f"{target} {_CHANGED}")
        _mount(str(source), Path(f"/proc/self/fd/{place}"), "", _BIND, "")
    if not os.path.samestat(os.stat(name, dir_fd=folder, follow_symlinks=False), source.stat()):
        _clear(folder)
        raise OSError(f"{target} {_CHANGED}")


def _hold_place(folder: int, name: str) -> None:
    """Create an empty file to mount over; anything else there is removed."""
    with contextlib.suppress(FileNotFoundError):
        there = os.stat(name, dir_fd=folder, follow_symlinks=False)
        if stat.S_ISREG(there.st_mode) and there.st_size == 0:
            return
        plain.put_aside(name, folder)
    os.close(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=folder))


def _clear(folder: int) -> None:
    """Unmount what was mounted in the folder, whatever its name is now."""
    for name in os.listdir(folder):
        with contextlib.suppress(OSError), _opened(name, _PLACE, within=folder) as there:
            if _mount_id(there) != _mount_id(folder):
                _libc.umount2(os.fsencode(f"/proc/self/fd/{folder}/{name}"), _DETACH)


@contextlib.contextmanager
def _opened(path: Path | str, flags: int, *, within: int | None = None) -> Generator[int]:
    descriptor = os.open(path, flags, dir_fd=within)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _mount_id(descriptor: int) -> str:
    """The id of the mount that the file is in (proc(5), fdinfo). Device numbers do not suffice: a file on overlayfs may
    have that of a layer (Documentation/filesystems/overlayfs.rst), and a subvolume of btrfs has its own."""
    lines = Path(f"/proc/self/fdinfo/{descriptor}").read_text("ascii", "replace").splitlines()
    return next((line for line in lines if line.startswith("mnt_id:")), "")


def _mount(source: str, target: Path, kind: str, flags: int, options: str) -> None:
    arguments = (os.fsencode(source), os.fsencode(target), os.fsencode(kind), ctypes.c_ulong(flags), options.encode())
    if _libc.mount(*arguments) != 0:
        raise _error(target)


def _error(path: Path) -> OSError:
    number = ctypes.get_errno()
    return OSError(number, os.strerror(number), str(path))


def _mount_of(path: Path) -> str:
    """The line of /proc/self/mountinfo about the mount that contains the path; the last of several is on top."""
    wanted = str(path.resolve())
    found, longest = "", -1
    for line in (
        Path("/proc/self/mountinfo").read_bytes().decode("utf-8", "replace").rstrip("\n").split("\n")
    ):  # only a newline ends a line
        point = line.split(" ", 5)[4]
        inside = point == "/" or wanted == point or wanted.startswith(f"{point}/")
        if inside and len(point) >= longest:
            found, longest = line.partition(" - ")[0], len(point)
    return found
