"""Does a process that uses the driver have the library in its memory? By the kernel's record of its mappings.

A program may see all the files that its container was given and load none of them: its own copy of the loader can read
another file than /etc/ld.so.preload. So its mappings count, by device and inode as /proc shows them. Those can differ
from the ones of stat (btrfs, overlayfs), so the agent maps the library too and compares with its own mapping.

    the driver is mapped or open, and no version of the library is mapped      it goes without
    no trace of the driver, as of a program that has just begun or is ending   not known, so not reported
    a deleted library at the same path, which an older agent had put there     counts as the library
"""

import ctypes
import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path

from fractile.agent.limits.library import INSIDE
from fractile.agent.node import kernel_text

Shown = tuple[str, int]  # device and inode

_NVIDIA = 195  # major number of /dev/nvidia0 and /dev/nvidiactl (the kernel's admin-guide/devices.txt)
_DELETED = f"{INSIDE} (deleted)"
_MOST = 32 * 2**20  # bytes read of one process's list; 10,000 mappings take about one MiB
_FILES = 4096
_PAGE = 4096
_READ, _PRIVATE = 1, 2  # PROT_READ, MAP_PRIVATE

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long)
_libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)


def goes_without(proc: Path, pid: int, libraries: frozenset[Shown]) -> bool:
    """Whether it certainly does. ``libraries``: all versions, as from ``shown``. OSError: it cannot be inspected."""
    devices = {device for device, _ in libraries}
    driver = False
    for device, inode, path in _mappings(proc / str(pid) / "maps"):
        if (device, inode) in libraries or (path == _DELETED and device in devices):
            return False
        driver = driver or _is_driver(path)
    return bool(libraries) and (driver or _has_driver_open(proc / str(pid) / "fd"))


def shown(paths: Iterable[str]) -> frozenset[Shown]:
    """Device and inode of these files, as their mappings show them."""
    return frozenset(found for path in paths for found in _shown(path))


def _shown(path: str) -> Iterator[Shown]:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        address = _libc.mmap(None, _PAGE, _READ, _PRIVATE, descriptor, 0)
    finally:
        os.close(descriptor)
    if address in (None, ctypes.c_void_p(-1).value):
        raise OSError(ctypes.get_errno(), "not mapped", path)
    try:
        yield from ((d, i) for at, d, i, _ in _lines(Path("/proc/self/maps")) if at == address)
    finally:
        _libc.munmap(address, _PAGE)


def _mappings(path: Path) -> Iterator[tuple[str, int, str]]:
    return ((device, inode, name) for _, device, inode, name in _lines(path) if inode)


def _lines(path: Path) -> Iterator[tuple[int, str, int, str]]:
    """Address, device, inode and path of each mapping."""
    with path.open("rb") as file:
        data = file.read(_MOST)
    if len(data) == _MOST:
        raise OSError(0, "too many mappings", str(path))
    for line in kernel_text.lines(kernel_text.decode(data)):
        addresses, _, _, device, inode, *rest = line.split(maxsplit=5)
        yield int(addresses.partition("-")[0], 16), device, int(inode), rest[0] if rest else ""


def _is_driver(path: str) -> bool:
    return path.startswith("/dev/nvidia") or path.rpartition("/")[2].startswith("libcuda.so")


def _has_driver_open(folder: Path) -> bool:
    """Decides by the device number, whatever its name in the container."""
    with os.scandir(folder) as entries:
        return any(_is_card(entry) for entry, _ in zip(entries, range(_FILES), strict=False))


def _is_card(entry: os.DirEntry[str]) -> bool:
    try:
        file = entry.stat()
    except OSError:
        return False  # closed meanwhile
    return stat.S_ISCHR(file.st_mode) and os.major(file.st_rdev) == _NVIDIA
