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


class Granted(msgspec.Struct, frozen=True):
    """One container: what its page says. ``role`` is None while nobody knows its pod."""

    token: str
    folder: Path
    since: float
    limits: Limits
    role: Role | None = None


class _Page(msgspec.Struct):
    """A page that is open; ``granted`` is what its version ``seen`` says, None when that makes no sense."""

    version: live.Version
    seen: int
    granted: Granted | None


class Slices:
    """Its work is on files: run ``read`` in a thread."""

    def __init__(self, root: Path, journal: Journal) -> None:
        self._root = root
        self._journal = journal
        self._pages: dict[str, _Page] = {}

    def read(self) -> list[Granted]:
        """Every directory with limits, by token."""
        names = _names(self._root)
        for gone in [token for token in self._pages if token not in names]:
            self._pages.pop(gone).version.close()
        found = (self._granted(token) for token in sorted(names))
        return [granted for granted in found if granted is not None]

    def _granted(self, token: str) -> Granted | None:
        page = self._pages.get(token)
        try:
            if page is None:
                page = self._pages[token] = _Page(live.Version(self._root / token / directory.LIMITS), -1, None)
            seen = page.version.read()
        except OSError:
            return None  # nothing granted yet
        if seen != page.seen:
            page.seen, page.granted = seen, self._read(token)
        return page.granted

    def _read(self, token: str) -> Granted | None:
        folder = self._root / token
        limits = self._journal.limits(token)
        since = _since(folder)
        return None if limits is None or since is None else Granted(token, folder, since, limits)


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


def _names(root: Path) -> set[str]:
    try:
        return {name for name in os.listdir(root) if not name.startswith(".")}
    except OSError:
        return set()


def _since(folder: Path) -> float | None:
    try:
        return (folder / "ids").stat().st_mtime
    except OSError:
        return None
