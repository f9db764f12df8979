"""What a container made for gpu-manager sees at ``/etc/vcuda``, read-only: part of its token directory.

    vcuda.config    its limits; written before it starts
    pids.config     its processes, by the node's pids; empty until a process reads these files
    vcuda.sock      where its library may register
    <id or name>    a link to this folder itself, once it has registered under that name: the library then looks there

The library uses existing files and makes no request (vcuda-controller's src/loader.c). A change is a rename, since the
library reads whole files and may do so at any time. A privileged container may have put anything into the folder: only
what this module wrote is followed or read. Failure rule: an OSError goes to the caller.
"""

import contextlib
import os
import re
import socket
from pathlib import Path

from fractile.agent.kubelet.api import deviceplugin_pb2 as dp
from fractile.dialects import tencent
from fractile.region import plain
from fractile.wire.foreign.vcuda import CONFIG_NAME, PIDS_NAME

MOUNT = "/etc/vcuda"
SOCKET = "vcuda.sock"

_NAME = "vcuda"
_NEW = ".new"
_BACKLOG = 16  # beyond it, connects wait or fail, which concerns only that container
_MAX_LINKS = 4
_LINK = re.compile(r"[0-9a-z]([-0-9a-z.]{0,251}[0-9a-z])?", re.ASCII)  # an id, or a container's name (DNS label)
_OURS = frozenset({CONFIG_NAME, PIDS_NAME, SOCKET})


def wanted(resource: str) -> bool:
    """Whether containers with this primary resource are made for gpu-manager."""
    return resource == tencent.CORE


def prepare(token_directory: Path) -> None:
    """Make the folder, so that it can be mounted."""
    folder = token_directory / _NAME
    plain.make_room_for_folder(folder)
    folder.mkdir(exist_ok=True)
    folder.chmod(0o755)


def mounts(token_directory: Path, resource: str) -> tuple[dp.Mount, ...]:
    if not wanted(resource):
        return ()
    return (dp.Mount(container_path=MOUNT, host_path=str(token_directory / _NAME), read_only=True),)


class VcudaFolder:
    """The folder of one container, held open: ``close`` it. FileNotFoundError when there is none."""

    def __init__(self, token_directory: Path) -> None:
        self.path = token_directory / _NAME
        self._fd = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def write(self, name: str, content: bytes) -> None:
        """Write a file, whole, by rename."""
        temporary = f".{name}{_NEW}"
        self._remove(temporary)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with os.fdopen(os.open(temporary, flags, 0o644, dir_fd=self._fd), "wb") as file:
            os.fchmod(file.fileno(), 0o644)  # whatever the umask: the container's user must read it
            file.write(content)
        os.rename(temporary, name, src_dir_fd=self._fd, dst_dir_fd=self._fd)

    def size(self, name: str) -> int:
        """Bytes of a file; 0 when there is none."""
        try:
            return os.stat(name, dir_fd=self._fd, follow_symlinks=False).st_size
        except FileNotFoundError:
            return 0

    def link(self, name: str) -> bool:
        """Let the library find the files under this name; False when the name is not allowed."""
        if name in _OURS or not _LINK.fullmatch(name):
            return False
        links = self.links()
        if name in links:
            return True
        for old in links[: max(0, len(links) - _MAX_LINKS + 1)]:
            self._remove(old)
        os.symlink(".", name, dir_fd=self._fd)
        return True

    def links(self) -> list[str]:
        """The names, the oldest first; a restarted container registers with another id."""
        with os.scandir(self._fd) as entries:
            found = [(e.stat(follow_symlinks=False).st_mtime_ns, e.name) for e in entries if e.is_symlink()]
        return [name for _, name in sorted(found)]

    def listen(self) -> socket.socket:
        """Create a listening socket, replacing anything there. Every process in the container may connect: the folder
        is mounted nowhere else, and its path on the node cannot be guessed."""
        temporary = f".{SOCKET}{_NEW}"
        self._remove(temporary)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
        try:
            listener.bind(f"/proc/self/fd/{self._fd}/{temporary}")  # short, however long the path is
            os.chmod(temporary, 0o666, dir_fd=self._fd)
            listener.listen(_BACKLOG)
            os.rename(temporary, SOCKET, src_dir_fd=self._fd, dst_dir_fd=self._fd)
        except OSError:
            listener.close()
            raise
        return listener

    def unlink_socket(self) -> None:
        self._remove(SOCKET)

    def forget(self) -> None:
        """Remove processes and names: the container has ended."""
        for name in self.links():
            self._remove(name)
        self.write(PIDS_NAME, b"")

    def clear(self) -> None:
        """Remove all our files: the folder is no longer used."""
        for name in (*_OURS, *self.links()):
            self._remove(name)

    def _remove(self, name: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name, dir_fd=self._fd)
