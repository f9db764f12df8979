"""Our files, and what may be in their place: an administrator's folder or link, the folder that a container runtime
makes for a mount's missing source, a pipe without a writer.

Only plain files are opened, so no read waits forever, and links are not followed. Anything else at the path of a file
to be written is removed; a folder that is not empty is kept under another name. Failure rule: an OSError, with the path
in it, goes to the caller.
"""

import errno
import logging
import os
import secrets
import stat
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

_ASIDE = "aside"  # in the new name of such a folder, after a dot

log = logging.getLogger(__name__)


@contextmanager
def opened(path: Path | str, access: int = os.O_RDONLY) -> Generator[int]:
    descriptor = open_file(path, access)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def open_file(path: Path | str, access: int = os.O_RDONLY) -> int:
    """A descriptor of a plain file; anything else is checked with O_PATH and not opened."""
    found = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(found).st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file", str(path))
        return os.open(f"/proc/self/fd/{found}", access | os.O_NONBLOCK | os.O_CLOEXEC)
    finally:
        os.close(found)


def size(path: Path | str) -> int | None:
    """Bytes of a plain file; None when there is none."""
    try:
        there = os.lstat(path)
    except OSError:
        return None
    return there.st_size if stat.S_ISREG(there.st_mode) else None


def make_room(path: Path) -> None:
    """Remove anything but a plain file from ``path``."""
    _clear(path, stat.S_ISREG)


def make_room_for_folder(path: Path) -> None:
    """Remove anything but a folder from ``path``."""
    _clear(path, stat.S_ISDIR)


def make_room_for_socket(path: Path) -> None:
    """Remove anything but a socket from ``path``."""
    _clear(path, stat.S_ISSOCK)


def put_aside(name: str, within: int) -> None:
    """Remove an entry of an open folder, whatever it is; a folder that is not empty is renamed."""
    there = os.stat(name, dir_fd=within, follow_symlinks=False)
    if not stat.S_ISDIR(there.st_mode):
        os.unlink(name, dir_fd=within)
        return
    try:
        os.rmdir(name, dir_fd=within)
    except OSError as e:
        if e.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
        os.rename(name, f"{name}.{_ASIDE}-{secrets.token_hex(4)}", src_dir_fd=within, dst_dir_fd=within)


def _clear(path: Path, fits: Callable[[int], bool]) -> None:
    try:
        if fits(os.lstat(path).st_mode):
            return
    except (FileNotFoundError, NotADirectoryError):
        return
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        put_aside(path.name, folder)
    except OSError as e:
        said = f"another file is where the agent keeps its own, and cannot be removed ({e.strerror})"
        raise OSError(e.errno, f"{said}; remove it, and anything that is mounted there", str(path)) from e
    finally:
        os.close(folder)
    log.warning("removed path=%s reason=%r", path, "it was where the agent keeps its own file or folder")
