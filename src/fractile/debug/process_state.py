"""A program's use of its machine, and its watches, as /debug/state shows them. The agent imports this: nothing here
needs numpy."""

import asyncio
import os
import resource
import threading
from collections import Counter
from pathlib import Path
from typing import Protocol

from fractile import __version__
from fractile.wire.output.debug_state import FeedState, ProcessState

_PROC = Path("/proc/self")


class AnyReflector(Protocol):
    """A ``Reflector`` of any type."""

    @property
    def path(self) -> str: ...
    @property
    def version(self) -> str: ...
    @property
    def age(self) -> float | None: ...
    @property
    def synced(self) -> asyncio.Event: ...
    def __len__(self) -> int: ...


def process_state(*, uptime: float, proc: Path = _PROC) -> ProcessState:
    """``uptime`` in seconds. Call it inside the event loop, whose tasks are counted by the name of what they run."""
    return ProcessState(
        version=__version__,
        pid=os.getpid(),
        uptime=uptime,
        threads=threading.active_count(),
        descriptors=_descriptors(proc),
        resident_bytes=_resident(proc),
        tasks=dict(sorted(Counter(map(_running, asyncio.all_tasks())).items())),
    )


def feed_state(reflector: AnyReflector) -> FeedState:
    age = reflector.age
    return FeedState(
        path=reflector.path,
        synced=reflector.synced.is_set(),
        objects=len(reflector),
        version=reflector.version,
        age=None if age is None else round(age, 3),
    )


def _running(task: "asyncio.Task[object]") -> str:
    return getattr(task.get_coro(), "__qualname__", "?")


def _descriptors(proc: Path) -> int | None:
    try:
        return len(os.listdir(proc / "fd")) - 1  # without the one that lists them
    except OSError:
        return None


def _resident(proc: Path) -> int | None:
    try:
        return int((proc / "statm").read_text().split()[1]) * resource.getpagesize()
    except (OSError, ValueError, IndexError):
        return None
