"""Files of ours, and what may lie in their place: an administrator's folder or link, the folder that a container
runtime makes of a mount's missing source, a pipe into which nobody ever writes.

Nothing but a plain file is opened, so no read waits for ever, and none follows a link. Where a file of ours is to be
written, what lies there otherwise goes; a folder that holds something is kept under another name. Failure rule: an
OSError, with the path in it, goes to the caller.
"""

import errno
import logging
import os
import secrets
import stat
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

_ASIDE = "aside"  # what such a folder is called then, after a dot

log = logging.getLogger(__name__)


@contextmanager
def opened(path: Path | str, access: int = os.O_RDONLY) -> Generator[int]:
    descriptor = open_file(path, access)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def open_file(path: Path | str, access: int = os.O_RDONLY) -> int:
    """A descriptor of a plain file; whatever else lies there is looked at and not opened."""
    found = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(found).st_mode):
            raise OSError(errno.EINVAL, "it is no plain file", str(path))
        return os.open(f"/proc/self/fd/{found}", access | os.O_NONBLOCK | os.O_CLOEXEC)
    finally:
        os.close(found)


def size(path: Path | str) -> int | None:
    """Of a plain file; None where there is none."""
    try:
        there = os.lstat(path)
    except OSError:
        return None
    return there.st_size if stat.S_ISREG(there.st_mode) else None


def make_room(path: Path) -> None:
    """Nothing but a plain file lies there when this returns."""
    _clear(path, stat.S_ISREG)


def make_room_for_folder(path: Path) -> None:
    """Nothing but a folder lies there when this returns."""
    _clear(path, stat.S_ISDIR)


def make_room_for_socket(path: Path) -> None:
    """Nothing but a socket lies there when this returns."""
    _clear(path, stat.S_ISSOCK)


def put_aside(name: str, within: int) -> None:
    """The same for what lies in a folder that is open, whatever it is."""
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
        said = f"something else lies where the agent keeps its own, and cannot be taken away ({e.strerror})"
        raise OSError(e.errno, f"{said}; remove it, with what is mounted there", str(path)) from e
    finally:
        os.close(folder)
    log.warning("taken away path=%s reason=%r", path, "it lay where the agent keeps a file or folder of its own")
