"""`fractile down`: stops a cluster and removes everything that it put on this machine.

It relies on what exists rather than on the state file, so it also removes incomplete and damaged clusters: the records
of processes, the pinned mount namespaces, containerd's bundles, and the bridges with the cluster's name. Safe to
repeat.
"""

import contextlib
import shutil
from pathlib import Path

from fractile.lab.cluster import kept_logs
from fractile.lab.hollow import shortcuts
from fractile.lab.layout import ClusterLayout, locked
from fractile.lab.machine import cgroups, mounts, network, processes
from fractile.lab.progress import Progress


def down(place: ClusterLayout, progress: Progress, *, keep_logs: bool = False) -> bool:
    """Remove the cluster; False when nothing of it existed. ``keep_logs``: keep the last part of each log."""
    if not _anything(place):
        return False
    with locked(place):
        with progress.step("processes") as step:
            # 1. Processes, kubelets and agents first: they would restart what is stopped, or react to it.
            count = _stop_recorded(place)
            # 2. Shims, then containers.
            pins = sorted(place.pins.glob("*"))
            count += sum(mounts.kill_all_in(pin) for pin in pins)
            count += sum(cgroups.remove(cgroups.of_node(node)) for node in place.all_nodes())
            step.done(f"{count} stopped")
        with progress.step("mounts, bridges and files") as step:
            for pin in pins:
                mounts.release(pin)
            mounts.unmount_below(place.root)
            kept = kept_logs.keep(place) if keep_logs else None
            for bridge in network.bridges(place.name):
                network.remove_bridge(bridge)
            shortcuts.remove(place)
            if place.root.exists():
                shutil.rmtree(place.root)
            step.done(f"removed; the last part of each log is in {kept}" if kept else "removed")
        place.lock.unlink(missing_ok=True)
    if not any(place.root.parent.glob("*")):
        cgroups.remove_parent()
        mounts.remove_empty_targets()
        _remove_empty(place.root.parent)
        _remove_empty(place.root.parent.parent)
    return True


def _anything(place: ClusterLayout) -> bool:
    return place.root.exists() or place.lock.exists() or bool(network.bridges(place.name))


def _stop_recorded(place: ClusterLayout) -> int:
    records = sorted((place.root / "run").glob("*.pid"), key=_order)
    found = [process for record in records if (process := processes.running(record)) is not None]
    for process in found:
        processes.stop(process, grace=0)  # all its data is removed, so there is nothing to save
    return len(found)


def _order(record: Path) -> int:
    """Sort key: kubelets first, then the rest of the nodes, then the control plane."""
    _, _, part = record.stem.rpartition(".")
    return _NODE_PARTS.index(part) if part in _NODE_PARTS else len(_NODE_PARTS)


_NODE_PARTS = ("kubelet", "hollow-node", "agent", "containerd")


def _remove_empty(folder: Path) -> None:
    with contextlib.suppress(OSError):
        folder.rmdir()
