"""The processes of a container: its cgroup and those below it, of v1 or v2, found by what all runtimes have in common.

The container's own cgroup among those of its pod is identified by its id, or by a process in it that sees the
container's token directory; only by the latter where kubelet makes no cgroups for pods (``cgroupsPerQOS: false``). All
walks are bounded: a container may make cgroups of its own. Failure rule: what is not found or not readable is None; it
may appear later.
"""

import os
from collections import deque
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from pathlib import Path

from fractile.agent.node.cgroup import CgroupPlace, places
from fractile.agent.node.procfs import Process, ProcFs

ROOT = Path("/sys/fs/cgroup")

_CONTROLLERS = ("memory", "devices", "pids", "cpu")  # of v1, as in ``cgroup``
_DEEPEST = 8  # a cluster in a container in a cluster
_LOOKED_AT = 4096  # cgroups visited on the way to a pod
_BELOW = 64  # cgroups of one container
_PIDS = 4096
_ASKED = 8  # processes checked for the token directory

Walk = Callable[[Path], Iterator[Path]]


class CgroupTree:
    """Reads below ``root``. ``walk`` yields the cgroups of a hierarchy, the upper ones first."""

    def __init__(self, root: Path = ROOT, *, processes: ProcFs | None = None, walk: Walk | None = None) -> None:
        self._root = root
        self._walk = walk or down_to_containers
        self._processes = processes or ProcFs()

    def find(self, pod_uid: str, *, token: str, container_id: str = "") -> Path | None:
        """The container's cgroup."""
        for found, place in self._containers((pod_uid,)):
            if container_id and container_id != place.container_id:
                continue
            if not place.pod_uid:  # its own processes only: a whole node, in which the pod runs, may be below it
                its = self._shows(_procs(found), token)
            else:
                its = bool(container_id) or self._shows(self.pids(found), token)
            if its:
                return found
        return None

    def pids(self, cgroup: Path) -> tuple[int, ...] | None:
        """The processes in it and below it; None when it is gone."""
        found: set[int] = set()
        waiting, seen = deque([cgroup]), 0
        while waiting and seen < _BELOW and len(found) < _PIDS:
            one, seen = waiting.popleft(), seen + 1
            pids = _procs(one)
            if pids is None and one == cgroup:
                return None
            found.update(pids or ())
            waiting.extend(_children(one))
        return tuple(sorted(found)[:_PIDS])

    def container_id(self, pod_uid: str, *, token: str) -> str:
        """The id of the container that sees the token directory; "" when it is not found."""
        found = self.find(pod_uid, token=token)
        return _container(found) if found is not None else ""

    def _containers(self, pod_uids: Container[str]) -> Iterator[tuple[Path, CgroupPlace]]:
        """The cgroups of these pods' containers, and of those whose path does not name a pod."""
        for hierarchy in self._hierarchies():
            for path in self._walk(hierarchy):
                place = next(reversed(places(f"0::/{path.relative_to(hierarchy)}\n")), None)
                if place is not None and place.container_id and (not place.pod_uid or place.pod_uid in pod_uids):
                    yield path, place

    def _hierarchies(self) -> Iterator[Path]:
        """The hierarchies that may have containers, the most reliable first; on a machine with both, runtimes use
        v1."""
        found = [self._root / name for name in _CONTROLLERS if (self._root / name / "cgroup.procs").exists()]
        yield from found or [self._root]

    def viewers(self, wanted: Mapping[str, str]) -> dict[str, Process]:
        """For each token, given with the UID of its pod: a process of the container that sees the token's directory.
        One walk for all tokens; a token without a running process is left out."""
        found: dict[str, Process] = {}
        for path, place in self._containers(frozenset(wanted.values())):
            if len(found) == len(wanted):
                break
            pids = self.pids(path) if place.pod_uid else _procs(path)  # as in ``find``
            for process in self._some(pids):
                uid = wanted.get(process.token)
                if uid is not None and place.pod_uid in (uid, ""):
                    found.setdefault(process.token, process)
        return found

    def _shows(self, pids: Sequence[int] | None, token: str) -> bool:
        return self._viewer(pids, token) is not None

    def _viewer(self, pids: Sequence[int] | None, token: str) -> Process | None:
        return next((process for process in self._some(pids) if process.token == token), None)

    def _some(self, pids: Sequence[int] | None) -> list[Process]:
        return [*self._processes.look((pids or ())[:_ASKED]).values()]


def _container(cgroup: Path) -> str:
    found = places(f"0::{cgroup}\n")
    return found[-1].container_id if found else ""


def down_to_containers(hierarchy: Path) -> Iterator[Path]:
    """All cgroups down to those of containers, which are yielded but not entered; the upper ones first."""
    waiting = deque([(hierarchy, 0)])
    for _ in range(_LOOKED_AT):
        if not waiting:
            return
        path, depth = waiting.popleft()
        yield path
        inside = next(reversed(places(f"0::/{path.relative_to(hierarchy)}\n")), None)
        if depth < _DEEPEST and (inside is None or not (inside.pod_uid and inside.container_id)):
            waiting.extend((child, depth + 1) for child in _children(path))


def _children(cgroup: Path) -> list[Path]:
    try:
        with os.scandir(cgroup) as entries:
            return sorted(Path(e.path) for e in entries if e.is_dir(follow_symlinks=False))
    except OSError:
        return []


def _procs(cgroup: Path) -> list[int] | None:
    try:
        text = (cgroup / "cgroup.procs").read_text("ascii")
    except (OSError, UnicodeDecodeError):
        return None
    return [int(word) for word in text.split() if word.isdigit() and word != "0"]  # 0: outside our pid namespace
