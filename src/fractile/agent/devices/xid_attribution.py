"""Which pod caused an XID? NVML does not say; the driver's line in the kernel log does.

    /dev/kmsg ─> XidAttribution: pid ─> pod, immediately, while the process lives ─> kept for a moment
    NVML ─> HealthMonitor ─> HealthEvents ─> ``take``: the oldest unused line about that card and number

A line only decides which pods get the event of a program's error. It never makes a card sick, and without one all pods
of the card get the event. Failure rule: open. It needs read access to /dev/kmsg (CAP_SYSLOG where ``dmesg_restrict`` is
set) and the node's pid namespace; a pid of another namespace leads to a pod that is not on the card, and then all pods
of the card get the event.
"""

import asyncio
import logging
import os
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

import msgspec

from fractile.agent.limits.journal import Journal
from fractile.agent.node.pods import NodePods
from fractile.agent.node.procfs import ProcFs
from fractile.errors import WireError
from fractile.kube.pacing import Clock
from fractile.model.units import PodUID
from fractile.wire.foreign.kernel_log import BusPlace, XidLine, place, xid_line

OwnerOf = Callable[[int], PodUID | None]  # the pod of a process, from the kernel
Read = Callable[[int, int], bytes]

_KEPT = 10.0  # seconds; NVML's event and the line come within milliseconds of each other
_MOST = 256  # lines that wait for their event
_BUFFER = 16_384  # a record of the kernel is at most 8 KiB (CONSOLE_EXT_LOG_MAX)
_AT_ONCE = 64  # records read before the loop runs other callbacks
_PAUSE = 0.1  # seconds, so that a flood costs 640 records a second: the rest is lost, and all pods get the event

log = logging.getLogger(__name__)


def pod_of(pods: NodePods, journal: Journal, processes: ProcFs | None = None) -> OwnerOf:
    """The pod by the process's cgroup, else by the token directory that it sees; None: no pod of this node."""
    processes = processes or ProcFs()

    def owner(pid: int) -> PodUID | None:
        process = processes.look([pid]).get(pid)
        if process is None:
            return None
        for inside in process.places:
            if pods.by_uid(inside.pod_uid) is not None:
                return inside.pod_uid
        limits = journal.limits(process.token) if process.token else None
        return PodUID(limits.pod_uid) if limits is not None else None

    return owner


class _Line(msgspec.Struct, frozen=True):
    seen: float
    place: BusPlace
    xid: int
    owner: PodUID | None


class XidAttribution:
    """``follow`` within the event loop; ``close`` ends it. ``following``: lines can still come."""

    def __init__(self, owner_of: OwnerOf, *, clock: Clock = time.monotonic, read: Read = os.read) -> None:
        self._owner_of = owner_of
        self._clock = clock
        self._read = read
        self._lines: deque[_Line] = deque(maxlen=_MOST)
        self._descriptor = -1
        self._pause: asyncio.TimerHandle | None = None
        self._overruns = 0

    @property
    def following(self) -> bool:
        return self._descriptor >= 0

    def open(self, path: Path) -> None:
        """Follow the log from now on; logs a line when it cannot be read."""
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as e:
            log.info(
                "kernel log not read path=%s reason=%s; a program's error is reported to all pods of the card", path, e
            )
            return
        try:
            os.lseek(descriptor, 0, os.SEEK_END)
        except OSError as e:  # a pipe has no end to start at
            log.debug("kernel log has no end path=%s reason=%s", path, e)
        self.follow(descriptor)

    def follow(self, descriptor: int) -> None:
        """Read from a descriptor that does not block; takes it over."""
        try:
            asyncio.get_running_loop().add_reader(descriptor, self._ready)
        except OSError as e:  # a plain file cannot be polled
            log.info("kernel log not read reason=%s", e)
            os.close(descriptor)
            return
        self._descriptor = descriptor

    def close(self) -> None:
        if self._pause is not None:
            self._pause.cancel()
        if self._descriptor >= 0:
            asyncio.get_running_loop().remove_reader(self._descriptor)
            os.close(self._descriptor)
            self._descriptor = -1

    def take(self, bus_id: str, xid: int) -> PodUID | None:
        """The pod that caused the present event, if a line named it; each line is used for one event."""
        try:
            where = place(bus_id)
        except WireError:
            return None
        self._forget()
        for n, line in enumerate(self._lines):
            if (line.place, line.xid) == (where, xid):
                del self._lines[n]
                return line.owner
        return None

    def _ready(self) -> None:
        for _ in range(_AT_ONCE):
            try:
                data = self._read(self._descriptor, _BUFFER)
            except BlockingIOError:
                return
            except BrokenPipeError:  # unread records were overwritten; the next read continues after them
                self._overruns += 1
                log.info("kernel log overrun count=%d", self._overruns)
                continue
            except OSError as e:
                log.warning("kernel log lost reason=%s", e)
                self.close()
                return
            if not data:
                self.close()
                return
            for record in data.split(b"\n"):
                self._record(record)
        self._rest()

    def _rest(self) -> None:
        loop, descriptor = asyncio.get_running_loop(), self._descriptor
        loop.remove_reader(descriptor)
        self._pause = loop.call_later(_PAUSE, loop.add_reader, descriptor, self._ready)

    def _record(self, record: bytes) -> None:
        line = xid_line(record)
        if line is not None:
            self._forget()
            self._lines.append(_Line(self._clock(), line.place, line.xid, self._owner(line)))

    def _owner(self, line: XidLine) -> PodUID | None:
        owner = None if line.pid is None else self._owner_of(line.pid)
        log.info("xid in kernel log xid=%d pid=%s pod=%s", line.xid, line.pid or "-", owner or "-")
        return owner

    def _forget(self) -> None:
        oldest = self._clock() - _KEPT
        while self._lines and self._lines[0].seen < oldest:
            self._lines.popleft()
