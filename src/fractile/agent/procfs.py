"""Who a process is, as the kernel says: never as the process says of itself.

A pid is used again, so it is known together with its start time. In which container it runs follows from its cgroup,
and, since the token directory is mounted into that container only, from its mounts; both are read once for a process.
Failure rule: a process that ends while it is looked at is None; what cannot be read is unknown, and said so.
"""

import os
from collections.abc import Iterable
from pathlib import Path

import msgspec

from fractile.agent.cgroup import Place, places
from fractile.region import directory

_START_TIME = 19  # of /proc/<pid>/stat, counted after the command's closing bracket (proc(5): field 22)
_MOUNT_ROOT, _MOUNT_POINT = 3, 4  # of /proc/<pid>/mountinfo


class Process(msgspec.Struct, frozen=True):
    """``start_time`` in clock ticks since boot; ``inner_pid`` as it sees itself, in pid namespace ``pid_namespace`` (an
    inode); ``token``: the name of the directory that it sees at /etc/fractile, "" when it sees none."""

    pid: int
    start_time: int
    command: str
    inner_pid: int
    pid_namespace: int
    places: tuple[Place, ...]
    token: str


class ProcFs:
    """Reads below ``root``; remembers those that were asked for last."""

    def __init__(self, root: Path = Path("/proc")) -> None:
        self._root = root
        self._known: dict[int, Process] = {}

    def look(self, pids: Iterable[int]) -> dict[int, Process]:
        """The processes that live, by pid."""
        found: dict[int, Process] = {}
        for pid in pids:
            process = self._one(pid)
            if process is not None:
                found[pid] = process
        self._known = found
        return found

    def _one(self, pid: int) -> Process | None:
        try:
            command, start_time = _stat(_read(f"{self._root}/{pid}/stat"))
        except (OSError, ValueError, IndexError):
            return None
        known = self._known.get(pid)
        if known is not None and known.start_time == start_time and known.token:
            return known
        folder = self._root / str(pid)
        return Process(
            pid=pid,
            start_time=start_time,
            command=command,
            inner_pid=_inner_pid(_text(folder / "status"), pid),
            pid_namespace=_inode(folder / "ns" / "pid"),
            places=places(_text(folder / "cgroup")),
            token=_token(_text(folder / "mountinfo")),
        )


def _read(path: str) -> bytes:
    """Once a second for each process, so without the objects that ``open`` makes."""
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
    for line in status.splitlines():
        if line.startswith("NSpid:"):
            return int(line.split()[-1])
    return pid


def _token(mountinfo: str) -> str:
    """The name of the directory whose mount at /etc/fractile is the last, which hides those before it."""
    token = ""
    for line in mountinfo.splitlines():
        parts = line.split(" ", _MOUNT_POINT + 1)
        if len(parts) > _MOUNT_POINT and parts[_MOUNT_POINT] == directory.MOUNT:
            token = parts[_MOUNT_ROOT].rpartition("/")[2]
    return token


def _inode(path: Path) -> int:
    try:
        return path.stat().st_ino
    except OSError:
        return 0


def _text(path: Path) -> str:
    try:
        return path.read_text("utf-8", "replace")
    except OSError:
        return ""
