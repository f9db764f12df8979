"""Finds the cgroups of a node's containers through containerd's bundles, kills their processes, and removes them.

Without `cgroupsPerQOS`, kubelet's `cgroupRoot` does not apply to containers, so their cgroups are under /k8s.io, next
to those of any other containerd on the machine. Each container's bundle (OCI runtime-spec: config.json) names its
cgroup. /k8s.io itself is created here before any container and marked with an extended attribute, so its ownership
survives a crash but not a reboot. The last cluster removes it if it has the mark and is empty. Works on cgroup v2, and
on the v1 and hybrid layouts, in which each controller has its own tree.
"""

import contextlib
import os
import signal
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath
from time import monotonic, sleep

import msgspec

from fractile.errors import SetupError
from fractile.lab.layout import NodeLayout
from fractile.lab.machine import processes
from fractile.lab.machine.processes import StartedProcess

PARENT = "k8s.io"  # kubelet names it after the containerd namespace of its containers
_MARK = "trusted.fractile"  # cgroup file systems have had trusted.* since Linux 3.7, user.* only since 5.7
_PATIENCE = 10.0
_BUNDLES = "io.containerd.runtime.v2.task/*/*/config.json"


class _Linux(msgspec.Struct, frozen=True):
    cgroups_path: str = msgspec.field(default="", name="cgroupsPath")


class _RuntimeSpec(msgspec.Struct, frozen=True):
    linux: _Linux = _Linux()


def of_node(node: NodeLayout) -> list[PurePosixPath]:
    """The cgroups of all containers that the node's containerd has created and not yet cleaned up."""
    found: list[PurePosixPath] = []
    for config in node.run.glob(_BUNDLES):
        with contextlib.suppress(OSError, msgspec.DecodeError):  # the bundle is being written or removed
            path = PurePosixPath(msgspec.json.decode(config.read_bytes(), type=_RuntimeSpec).linux.cgroups_path)
            if len(path.parts) > 2 and ".." not in path.parts:
                found.append(path)
    return found


def remove(cgroups: Iterable[PurePosixPath]) -> int:
    """Kill the processes in the cgroups and remove these in every hierarchy; return the number of processes."""
    wanted = list(cgroups)
    killed: set[StartedProcess] = set()
    deadline = monotonic() + _PATIENCE
    while trees := [tree for cgroup in wanted for tree in _trees(cgroup)]:
        for tree in trees:
            killed |= _kill(tree)
            _remove_tree(tree)
        if monotonic() > deadline:
            raise SetupError(f"cgroup {trees[0]} cannot be removed; see its cgroup.procs")
        sleep(0.02 if any(t.is_dir() for t in trees) else 0)
    return len(killed)


def make_parent(trees: Iterable[Path] | None = None) -> None:
    """Make and mark the cgroup of all containers in every hierarchy that lacks it. An existing one is left as it is.

    Failure rule: open. If it cannot be made, runc will make it; if it cannot be marked, it will not be removed.
    """
    for hierarchy in hierarchies() if trees is None else trees:
        with contextlib.suppress(OSError):
            (hierarchy / PARENT).mkdir()
            os.setxattr(hierarchy / PARENT, _MARK, b"1")


def remove_parent(trees: Iterable[Path] | None = None) -> None:
    """Remove the cgroups that ``make_parent`` made. The kernel keeps those that hold a process or another cgroup."""
    for hierarchy in hierarchies() if trees is None else trees:
        with contextlib.suppress(OSError):
            if os.getxattr(hierarchy / PARENT, _MARK):
                (hierarchy / PARENT).rmdir()


def hierarchies() -> list[Path]:
    """The mount points of cgroup hierarchies."""
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    parts = (line.split(" - ") for line in lines)
    return [Path(left.split()[4]) for left, right in parts if right.split()[0] in ("cgroup", "cgroup2")]


def _trees(cgroup: PurePosixPath) -> list[Path]:
    return [tree for h in hierarchies() if (tree := h / cgroup.relative_to("/")).is_dir()]


def _kill(tree: Path) -> set[StartedProcess]:
    found: set[StartedProcess] = set()
    for folder in _folders(tree):
        with contextlib.suppress(OSError):
            for line in (folder / "cgroup.procs").read_text().split():
                process = processes.identify(int(line))
                if process is not None and processes.send(process, signal.SIGKILL):
                    found.add(process)
    return found


def _remove_tree(tree: Path) -> None:
    for folder in reversed(list(_folders(tree))):
        with contextlib.suppress(OSError):  # busy until its processes are gone: retried by the caller
            folder.rmdir()


def _folders(tree: Path) -> Iterator[Path]:
    for folder, _, _ in os.walk(tree):
        yield Path(folder)
