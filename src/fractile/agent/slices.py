"""The containers that were granted cards and may still run: token directories, read once a second at little cost.

A page is decoded again only when its sequence number moved. One container may have several directories, since kubelet
asks for a container again after a reboot: the newest counts.
"""

import os
from pathlib import Path

import msgspec

from fractile.agent.journal import Journal
from fractile.agent.pods import NodePods
from fractile.model.request import Role
from fractile.model.units import ContainerName, PodUID
from fractile.region import directory, live
from fractile.region.page import Limits

_Version = tuple[int, int]  # inode, sequence


class Granted(msgspec.Struct, frozen=True):
    """One container: what its page says. ``role`` is None while nobody knows its pod."""

    token: str
    folder: Path
    since: float
    limits: Limits
    role: Role | None = None


class Slices:
    """Its work is on files: run ``read`` in a thread."""

    def __init__(self, root: Path, journal: Journal) -> None:
        self._root = root
        self._journal = journal
        self._pages: dict[str, tuple[_Version, Granted]] = {}

    def read(self) -> list[Granted]:
        """Every directory with limits, by token."""
        pages: dict[str, tuple[_Version, Granted]] = {}
        for token in sorted(_names(self._root)):
            entry = self._entry(token)
            if entry is not None:
                pages[token] = entry
        self._pages = pages
        return [granted for _, granted in pages.values()]

    def _entry(self, token: str) -> tuple[_Version, Granted] | None:
        folder = self._root / token
        try:
            version = live.version(folder / directory.LIMITS)
        except OSError:
            return None
        known = self._pages.get(token)
        if known is not None and known[0] == version:
            return known
        limits = self._journal.limits(token)
        since = _since(folder)
        return None if limits is None or since is None else (version, Granted(token, folder, since, limits))


def running(granted: list[Granted], pods: NodePods) -> list[Granted]:
    """Those of pods that may still run, the newest of each container, ordered by namespace, pod and container."""
    roles = {
        (PodUID(seen.pod.metadata.uid), c.container): c.role
        for seen in pods
        if not seen.pod.finished and seen.request is not None
        for c in seen.request.containers
    }
    active = pods.active()
    newest: dict[tuple[PodUID, ContainerName], Granted] = {}
    for one in sorted(granted, key=lambda g: g.since):
        key = one.limits.pod_uid, one.limits.container
        if key[0] in active:
            newest[key] = msgspec.structs.replace(one, role=roles.get(key))
    return sorted(newest.values(), key=lambda g: (g.limits.namespace, g.limits.pod, g.limits.container))


def _names(root: Path) -> list[str]:
    try:
        with os.scandir(root) as entries:
            return [e.name for e in entries if not e.name.startswith(".")]
    except OSError:
        return []


def _since(folder: Path) -> float | None:
    try:
        return (folder / "ids").stat().st_mtime
    except OSError:
        return None
