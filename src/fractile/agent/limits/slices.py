"""The containers that were granted cards and may still run, from the journal: read once a second, at little cost.

One container may have several directories, since kubelet calls Allocate again after a reboot: the newest counts.
"""

from pathlib import Path

import msgspec

from fractile.agent.limits.journal import Journal
from fractile.agent.node.pods import NodePods
from fractile.model.request import Role
from fractile.model.units import ContainerName, PodUID
from fractile.region.page import FLAG_LOST, ContainerLimits


class Granted(msgspec.Struct, frozen=True):
    """One container and its page. ``role`` is None while its pod is not known."""

    token: str
    folder: Path
    since: float
    limits: ContainerLimits
    role: Role | None = None

    @property
    def lost(self) -> bool:
        """Whether the container holds another, removed directory (``restore``)."""
        return bool(self.limits.flags & FLAG_LOST)


class Slices:
    """Its work is on files: run ``read`` in a thread."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._last: dict[str, Granted] = {}

    def read(self) -> list[Granted]:
        """Every directory with limits, by token; unchanged ones are the same objects."""
        try:
            limits = self._journal.granted()
        except OSError:
            limits = dict[str, ContainerLimits]()
        found = (self._granted(token, limits[token]) for token in sorted(limits))
        self._last = {granted.token: granted for granted in found if granted is not None}
        return list(self._last.values())

    def _granted(self, token: str, limits: ContainerLimits) -> Granted | None:
        last = self._last.get(token)
        if last is not None and last.limits is limits:
            return last
        folder = self._journal.path(token)
        since = _since(folder)
        return None if since is None else Granted(token, folder, since, limits)


def running(granted: list[Granted], pods: NodePods) -> list[Granted]:
    """The grants of pods that may still run, the newest of each container, ordered by namespace, pod and container."""
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


def _since(folder: Path) -> float | None:
    try:
        return (folder / "ids").stat().st_mtime
    except OSError:
        return None
