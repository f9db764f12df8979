"""The cgroups of a cluster's containers: fractile/NAME/INDEX in every hierarchy, made by runc, removed by us.

Works on cgroup v2 and on the v1 and hybrid layouts, in which each controller has a tree of its own.
"""

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from time import monotonic, sleep

from fractile.cluster import processes
from fractile.errors import SetupError

_PATIENCE = 10.0


def root(cluster: str) -> str:
    """The cgroup of all nodes of the cluster, as a path within each hierarchy."""
    return f"/fractile/{cluster}"


def of_node(cluster: str, index: int) -> str:
    return f"{root(cluster)}/{index}"


def hierarchies() -> list[Path]:
    """Where cgroup trees are mounted."""
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    parts = (line.split(" - ") for line in lines)
    return [Path(left.split()[4]) for left, right in parts if right.split()[0] in ("cgroup", "cgroup2")]


def remove(cgroup: str) -> int:
    """Kill what runs in the cgroup and remove it everywhere; how many processes there were."""
    killed = 0
    deadline = monotonic() + _PATIENCE
    while trees := [tree for h in hierarchies() if (tree := h / cgroup.lstrip("/")).is_dir()]:
        for tree in trees:
            killed += _kill(tree)
            _remove_tree(tree)
        if monotonic() > deadline:
            raise SetupError(f"cgroup {trees[0]} cannot be removed; see its cgroup.procs")
        sleep(0.02 if any(t.is_dir() for t in trees) else 0)
    return killed


def remove_parent(cluster: str) -> None:
    """Remove /fractile itself when no other cluster has cgroups in it."""
    for hierarchy in hierarchies():
        with contextlib.suppress(OSError):
            (hierarchy / Path(root(cluster)).parent.relative_to("/")).rmdir()


def _kill(tree: Path) -> int:
    found = 0
    for folder in _folders(tree):
        with contextlib.suppress(OSError):
            for line in (folder / "cgroup.procs").read_text().split():
                process = processes.identify(int(line))
                found += process is not None and processes.send(process, signal.SIGKILL)
    return found


def _remove_tree(tree: Path) -> None:
    for folder in reversed(list(_folders(tree))):
        with contextlib.suppress(OSError):  # busy until its processes are gone: tried again
            folder.rmdir()


def _folders(tree: Path) -> Iterator[Path]:
    for folder, _, _ in os.walk(tree):
        yield Path(folder)
