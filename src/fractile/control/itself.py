"""What a program of Fractile takes of its machine, as /debug/state shows it."""

import asyncio
import os
import resource
import threading
from collections import Counter
from pathlib import Path

from fractile import __version__
from fractile.wire.debug_state import ProcessState

_PROC = Path("/proc/self")


def process_state(*, uptime: float, proc: Path = _PROC) -> ProcessState:
    """``uptime`` in seconds. Inside of the event loop, whose tasks are counted by the name of what they run."""
    return ProcessState(
        version=__version__,
        pid=os.getpid(),
        uptime=uptime,
        threads=threading.active_count(),
        descriptors=_descriptors(proc),
        resident_bytes=_resident(proc),
        tasks=dict(sorted(Counter(map(_running, asyncio.all_tasks())).items())),
    )


def _running(task: "asyncio.Task[object]") -> str:
    return getattr(task.get_coro(), "__qualname__", "?")


def _descriptors(proc: Path) -> int | None:
    try:
        return len(os.listdir(proc / "fd")) - 1  # the one that lists them is not counted
    except OSError:
        return None


def _resident(proc: Path) -> int | None:
    try:
        return int((proc / "statm").read_text().split()[1]) * resource.getpagesize()
    except (OSError, ValueError, IndexError):
        return None
