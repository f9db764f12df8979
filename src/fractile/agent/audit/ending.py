"""Ends a process that no longer has a right to its card, and all others in its container. Blocks.

A pid alone is not enough: the process may have ended and its number may be reused. So the process is first held by a
descriptor and then checked again: the start time must be that of the process that was found, and its cgroup must say
that the outermost pod in which it runs is the evicted one, or, where kubelet makes no cgroups for pods, that the
outermost container is one of that pod's. The others are those that the kernel shows in the same container at that
moment, each held and checked likewise: otherwise the program that started the process would start it again.
Failure rule: a process that cannot be ended is left, and the reason says so.
"""

import contextlib
import os
import signal
from collections.abc import Collection, Iterator
from pathlib import Path

from fractile.agent.node import kernel_text
from fractile.agent.node.cgroup import CgroupPlace, places
from fractile.agent.node.procfs import Process, started

ENDED = ""

_ROUNDS = 8  # a program may start others meanwhile
_ELSEWHERE = "it does not run in the node's process namespace (hostPID)"
_RIGHT = "it lacks the right to (CAP_KILL), or a security module of the node refuses it"


class Ender:
    """``around``: the pods and containers in which the agent itself runs, which are skipped."""

    def __init__(self, *, around: Collection[CgroupPlace] = (), proc: Path = Path("/proc")) -> None:
        self._pods = frozenset(place.pod_uid for place in around if place.pod_uid)
        self._containers = frozenset(place.container_id for place in around if not place.pod_uid)
        self._proc = proc

    def end(self, process: Process, pod_uid: str, containers: Collection[str] = ()) -> str | None:
        """``containers``: the ids of the pod's containers, from the API server. Returns ENDED; None if it is no longer
        that process; else why it runs on, as the rest of a sentence that begins with the agent's inability."""
        mine = self._place(process.places)
        if mine is None or not (mine.pod_uid == pod_uid if mine.pod_uid else mine.container_id in containers):
            return "its cgroup does not say that it runs in that pod"
        if not self._sees_the_node():
            return _ELSEWHERE
        try:
            descriptor = os.pidfd_open(process.pid)
        except OSError as e:
            return None if isinstance(e, ProcessLookupError) else _reason(e)
        try:
            if not self._is(process, mine):
                return None
            signal.pidfd_send_signal(descriptor, signal.SIGKILL)
        except ProcessLookupError:
            return None
        except OSError as e:
            return _reason(e)
        finally:
            os.close(descriptor)
        if mine.container_id:
            self._end_container(mine)
        return ENDED

    def _sees_the_node(self) -> bool:
        """Whether the pids of /proc are those of our own system calls."""
        try:
            return os.readlink(self._proc / "self") == str(os.getpid())
        except OSError:
            return False

    def _is(self, process: Process, mine: CgroupPlace) -> bool:
        """Checked while its descriptor is held, so that the signal reaches the process that was checked."""
        return started(self._proc, process.pid) == process.start_time and self._in(process.pid, mine)

    def _end_container(self, mine: CgroupPlace) -> None:
        told: set[int] = set()
        for _ in range(_ROUNDS):
            more = [pid for pid in self._pids() if pid not in told and self._in(pid, mine)]
            if not more:
                return
            told.update(more)
            for pid in more:
                self._end_one(pid, mine)

    def _end_one(self, pid: int, mine: CgroupPlace) -> None:
        with contextlib.suppress(OSError):
            descriptor = os.pidfd_open(pid)
            try:
                if self._in(pid, mine):
                    signal.pidfd_send_signal(descriptor, signal.SIGKILL)
            finally:
                os.close(descriptor)

    def _in(self, pid: int, mine: CgroupPlace) -> bool:
        with contextlib.suppress(OSError):
            return self._place(places(kernel_text.read(self._proc / str(pid) / "cgroup"))) == mine
        return False

    def _place(self, where: Collection[CgroupPlace]) -> CgroupPlace | None:
        """The outermost place of this node: a container may have made those further in."""
        return next((place for place in where if not self._is_around(place)), None)

    def _is_around(self, place: CgroupPlace) -> bool:
        return place.pod_uid in self._pods if place.pod_uid else place.container_id in self._containers

    def _pids(self) -> Iterator[int]:
        return (int(name) for name in os.listdir(self._proc) if name.isdigit())


def _reason(error: OSError) -> str:
    if isinstance(error, PermissionError):
        return _RIGHT
    return error.strerror or "the kernel refuses it"
