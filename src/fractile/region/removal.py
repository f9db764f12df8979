"""Removes a container's directory, whatever the container has put into the part that it may write.

The tree may be as deep as a process can make it: Python's own ``rmtree`` recurses for every level and, at a thousand
levels, ends the program. So each folder's subfolders are first moved to the top, one level after the other. Only
folders are entered, never links. Failure rule: an OSError goes to the caller; what is removed stays removed.
"""

import os
import secrets
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_ROUNDS = 10**6  # each removes at least one folder; a limit, since a container may keep making more


def remove_tree(path: Path) -> None:
    """Remove the folder and everything in it."""
    with _opened(path) as top:
        for _ in range(_ROUNDS):
            folders = _clear(top, top)
            if not folders:
                break
            for name in folders:
                with _opened(name, within=top) as folder:
                    _clear(folder, top)
                os.rmdir(name, dir_fd=top)
    path.rmdir()


def _clear(folder: int, top: int) -> list[str]:
    """Remove the files of a folder and move its folders to the top; returns the names of those already there."""
    present: list[str] = []
    with os.scandir(folder) as entries:
        for entry in entries:
            if not entry.is_dir(follow_symlinks=False):
                os.unlink(entry.name, dir_fd=folder)
            elif folder == top:
                present.append(entry.name)
            else:
                os.rename(entry.name, secrets.token_hex(16), src_dir_fd=folder, dst_dir_fd=top)
    return present


@contextmanager
def _opened(path: Path | str, *, within: int | None = None) -> Generator[int]:
    descriptor = os.open(path, _FOLDER, dir_fd=within)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
