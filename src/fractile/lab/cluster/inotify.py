"""Checks whether the machine has enough inotify instances left for the nodes to be started.

kubelet and containerd each watch several folders. The kernel limits instances per user (often to 128). If none is left,
containerd runs without its Kubernetes plugin, and kubelet exits with an error that mentions neither.
"""

import ctypes
import errno
import os
from collections.abc import Callable
from pathlib import Path

from fractile.errors import SetupError

OF_A_NODE = 8  # kubelet has 6, containerd 1 or 2
_BOUND = Path("/proc/sys/fs/inotify/max_user_instances")


def check(nodes: int, *, make: Callable[[], int] | None = None) -> None:
    """Raise SetupError if too few instances are left. ``make`` creates an instance and returns its descriptor."""
    wanted = nodes * OF_A_NODE
    left = _left(wanted, make or _make)
    if left < wanted:
        raise SetupError(
            f"{nodes} node{'s' * (nodes != 1)} need {wanted} inotify instances, and {left} are left of the "
            f"{_bound()} that fs.inotify.max_user_instances gives each user: take other clusters down, or run: "
            "sysctl fs.inotify.max_user_instances=1024"
        )


def _left(wanted: int, make: Callable[[], int]) -> int:
    """How many instances are available, up to ``wanted``; all are released again."""
    held: list[int] = []
    try:
        for _ in range(wanted):
            held.append(make())
    except OSError as e:
        if e.errno != errno.EMFILE:
            raise
    finally:
        for descriptor in held:
            os.close(descriptor)
    return len(held)


def _make() -> int:
    libc = ctypes.CDLL(None, use_errno=True)
    descriptor: int = libc.inotify_init1(os.O_CLOEXEC)
    if descriptor < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return descriptor


def _bound() -> str:
    try:
        return _BOUND.read_text().strip()
    except OSError:
        return "few"
