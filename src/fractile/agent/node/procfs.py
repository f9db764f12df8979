"""Identity of processes from the kernel, never from the process itself.

Pids are reused, so a process is identified by pid and start time. Its container follows from its cgroup, and from its
mounts, since the token directory is mounted into that container only; both are read once for each process. Failure
rule: a process that ends while it is read is None; what cannot be read is marked unknown.
"""

import contextlib
import os
import select
from collections.abc import Container, Iterable
from pathlib import Path

import msgspec

from fractile.agent.node import kernel_text
from fractile.agent.node.cgroup import CgroupPlace, places
from fractile.region import directory

_START_TIME = 19  # of /proc/<pid>/stat, counted after the command's closing bracket (proc(5): field 22)
_MOST = 512  # descriptors of processes
_MOUNT_ROOT, _MOUNT_POINT = 3, 4  # of /proc/<pid>/mountinfo
_DELETED = "//deleted"  # the kernel's suffix for a directory that was removed; no path has two slashes


class Process(msgspec.Struct, frozen=True):
    """``start_time`` in clock ticks since boot; ``inner_pid`` as it sees itself, in pid namespace ``pid_namespace`` (an
    inode); ``token``: the name of the directory that it sees at /etc/fractile, "" when it sees none. ``deleted``: that
    directory was removed on the node, and no file can be created in it."""

    pid: int
    start_time: int
    command: str
    inner_pid: int
    pid_namespace: int
    places: tuple[CgroupPlace, ...]
    token: str
    deleted: bool = False


class ProcFs:
    """Reads below ``root``; remembers the processes of the last call. One thread at a time."""

    def __init__(self, root: Path = Path("/proc")) -> None:
        self._root = root
        self._known: dict[int, Process] = {}
        self._lives = _Lives() if _is_ours(root) else None

    def look(self, pids: Iterable[int]) -> dict[int, Process]:
        """The processes that live, by pid."""
        found: dict[int, Process] = {}
        lives = self._lives.those() if self._lives else frozenset[int]()
        for pid in pids:
            process = self._known.get(pid) if pid in lives else self._one(pid)
            if process is not None:
                found[pid] = process
        self._known = found
        if self._lives:
            self._lives.keep(found)
        return found

    def _one(self, pid: int) -> Process | None:
        known = self._known.get(pid)
        if known is not None and known.token and self._lives:
            self._lives.add(pid)  # before its identity is checked, so that the descriptor is of that process
        process = self._read(pid, known)
        if process is not known and self._lives:
            self._lives.drop(pid)
        return process

    def _read(self, pid: int, known: Process | None) -> Process | None:
        try:
            command, start_time = _stat(_file(f"{self._root}/{pid}/stat"))
        except (OSError, ValueError, IndexError):
            return None
        if known is not None and known.start_time == start_time and known.token:
            return known
        folder = self._root / str(pid)
        token, deleted = _token(_text(folder / "mountinfo"))
        return Process(
            pid=pid,
            start_time=start_time,
            command=command,
            inner_pid=_inner_pid(_text(folder / "status"), pid),
            pid_namespace=_inode(folder / "ns" / "pid"),
            places=places(_text(folder / "cgroup")),
            token=token,
            deleted=deleted,
        )


def started(proc: Path, pid: int) -> int | None:
    """The start time of the process that has this pid now; None: there is none."""
    try:
        return _stat(_file(f"{proc}/{pid}/stat"))[1]
    except (OSError, ValueError, IndexError):
        return None


class _Lives:
    """Which processes still live, by one system call for all: the descriptor of a process becomes readable when that
    process ends, even if its pid is reused."""

    def __init__(self) -> None:
        self._descriptors: dict[int, int] = {}  # by pid
        self._poll = select.poll()

    def those(self) -> frozenset[int]:
        if not self._descriptors:
            return frozenset()
        ended = {descriptor for descriptor, _ in self._poll.poll(0)}
        for pid in [pid for pid, descriptor in self._descriptors.items() if descriptor in ended]:
            self.drop(pid)
        return frozenset(self._descriptors)

    def add(self, pid: int) -> None:
        if pid in self._descriptors or len(self._descriptors) >= _MOST:
            return
        with contextlib.suppress(OSError):  # then it is read each time, as without descriptors
            descriptor = self._descriptors[pid] = os.pidfd_open(pid)
            self._poll.register(descriptor, select.POLLIN)

    def drop(self, pid: int) -> None:
        descriptor = self._descriptors.pop(pid, None)
        if descriptor is not None:
            self._poll.unregister(descriptor)
            os.close(descriptor)

    def keep(self, pids: Container[int]) -> None:
        for pid in [pid for pid in self._descriptors if pid not in pids]:
            self.drop(pid)


def _is_ours(root: Path) -> bool:
    """Whether the pids there are those of our own system calls."""
    try:
        return hasattr(os, "pidfd_open") and os.readlink(root / "self") == str(os.getpid())
    except OSError:
        return False


def _file(path: str) -> bytes:
    """Runs once for every new process, so it avoids the objects that ``open`` makes."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(descriptor, 4096)
    finally:
        os.close(descriptor)


def _stat(data: bytes) -> tuple[str, int]:
    opened, closed = data.index(b"("), data.rindex(b")")
    command = data[opened + 1 : closed].decode("utf-8", "replace")
    printable = "".join(c if c.isprintable() else "?" for c in command)
    return printable, int(data[closed + 2 :].split()[_START_TIME])


def _inner_pid(status: str, pid: int) -> int:
    """The last number of the line NSpid: the pid in the innermost namespace."""
    for line in kernel_text.lines(status):
        if line.startswith("NSpid:"):
            return int(line.split()[-1])
    return pid


def _token(mountinfo: str) -> tuple[str, bool]:
    """The name of the directory mounted last at /etc/fractile, which hides earlier mounts, and whether it was removed
    on the node meanwhile."""
    root = ""
    for line in kernel_text.lines(mountinfo):
        parts = line.split(" ", _MOUNT_POINT + 1)
        if len(parts) > _MOUNT_POINT and parts[_MOUNT_POINT] == directory.MOUNT:
            root = parts[_MOUNT_ROOT]
    return root.removesuffix(_DELETED).rpartition("/")[2], root.endswith(_DELETED)


def _inode(path: Path) -> int:
    try:
        return path.stat().st_ino
    except OSError:
        return 0


def _text(path: Path) -> str:
    try:
        return kernel_text.read(path)
    except OSError:
        return ""
