"""Notices and reports that the library which running containers have mounted is damaged on the node.

    the agent's own version   was repaired in place when the agent started (``library.install``): programs that started
                              before that may run without limits
    an earlier version        its bytes are not available: programs that start in its containers run without limits
                              until the containers restart, which PreStart refuses, so the pods have to be deleted

Such pods get an event, once, and so does the node. They are kept in ``<state>/library-damaged`` until they end, so that
no audit blames them for it, not even that of a later agent. Failure rule: what cannot be read now is retried.
"""

import asyncio
import logging
from collections.abc import Collection
from pathlib import Path

from fractile.agent.kubelet.kubelet_state import Kubelet, sources
from fractile.agent.limits.journal import Journal
from fractile.agent.limits.library import INSIDE, PRELOADED, LibraryVersion
from fractile.agent.limits.library_content import LibraryContent
from fractile.agent.node.pods import NodePods, PodWithRequest
from fractile.kube.events import EventRecorder, ObjectRef
from fractile.kube.pacing import Sleep
from fractile.model.units import PodUID
from fractile.region import plain
from fractile.wire.foreign.kubelet_checkpoint import Recorded

REASON = "GPULibraryDamaged"

_ROUND = 5.0  # seconds
_FILE = "library-damaged"

log = logging.getLogger(__name__)


class LibraryDamage:
    """``current``: the version of this agent."""

    def __init__(
        self,
        kubelet: Kubelet,
        pods: NodePods,
        journal: Journal,
        events: EventRecorder,
        content: LibraryContent,
        *,
        state: Path,
        current: LibraryVersion,
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        self._kubelet = kubelet
        self._pods = pods
        self._journal = journal
        self._events = events
        self._content = content
        self._file = state / _FILE
        self._current = current
        # Not reported yet.
        self._restored = frozenset([current.folder] if current.restored else list[Path]())
        self._sleep = sleep
        self._told_node: frozenset[Path] = frozenset()
        self._concerned = _read(self._file)  # pods that were notified
        self.now: frozenset[PodUID] = frozenset()  # pods whose library is damaged now

    def concerns(self, uid: str) -> bool:
        """Whether a program of the pod may run without limits because of the node."""
        return uid in self._concerned

    async def run(self) -> None:
        """Work forever."""
        while True:
            try:
                if await self._pods.synced(_ROUND):
                    await self.round()
            except OSError as e:
                log.warning("library not checked reason=%s", e)
            await self._sleep(_ROUND)

    async def round(self) -> None:
        """Check all versions once."""
        wrong = await asyncio.to_thread(self._wrong)
        looked_for = wrong | self._restored
        if looked_for:
            recorded = (await self._kubelet.record()).recorded
            if recorded is None:
                return
            started = await asyncio.to_thread(self._started)
            self.now = _mounting(recorded, wrong) & started
            concerned = _mounting(recorded, looked_for) & started
            self._tell(concerned - self._concerned, restored=concerned - self.now)
            self._tell_node(looked_for)
            self._restored = frozenset[Path]()
        else:
            self.now, concerned = frozenset(), frozenset[PodUID]()
        self._told_node &= wrong
        kept = (self._concerned | concerned) & self._pods.active()
        if kept != self._concerned:
            self._concerned = kept
            await asyncio.to_thread(_write, self._file, kept)

    def _wrong(self) -> frozenset[Path]:
        root = self._current.folder.parent
        versions = (p for p in root.iterdir() if not p.name.startswith(".") and p.is_dir() and not p.is_symlink())
        return frozenset(folder for folder in versions if self._content.wrong(folder) is not None)

    def _started(self) -> frozenset[PodUID]:
        """The pods that may run and of which a container was started."""
        return frozenset(limits.pod_uid for limits in self._journal.granted().values()) & self._pods.active()

    def _tell(self, uids: Collection[PodUID], *, restored: Collection[PodUID]) -> None:
        for seen in (seen for uid in sorted(uids) if (seen := self._pods.by_uid(uid)) is not None):
            log.error("library damaged pod=%s", _name(seen))
            self._events.emit(seen.pod, REASON, sentence(seen, self._pods.node, restored=_uid(seen) in restored))

    def _tell_node(self, folders: frozenset[Path]) -> None:
        for folder in sorted(folders - self._told_node):
            state = (
                "it is restored"
                if folder in self._restored
                else "delete the pods that use it: each of them has this event too"
            )
            about = ObjectRef("Node", "", self._pods.node, "")
            self._events.emit(about, REASON, f"{folder}, the library of containers, was damaged on this node; {state}")
        self._told_node |= folders


def sentence(seen: PodWithRequest, node: str, *, restored: bool) -> str:
    """The message to the pod's owner."""
    meta = seen.pod.metadata
    state, when = ("was", "before it was restored") if restored else ("is", "from now on")
    return (
        f"the library that holds the containers of this pod to their limits {state} damaged on node {node}: programs "
        f"that start in them {when} may run without limits; this is a fault of the node, for which the pod is not "
        f"evicted; delete the pod, so that it starts with an intact library: kubectl delete pod -n {meta.namespace} "
        f"{meta.name} (of a Deployment: kubectl rollout restart)"
    )


def _mounting(recorded: Collection[Recorded], folders: Collection[Path]) -> frozenset[PodUID]:
    return frozenset(e.uid for e in recorded if any(p.parent in folders for p in sources(e, (INSIDE, PRELOADED))))


def _uid(seen: PodWithRequest) -> PodUID:
    return PodUID(seen.pod.metadata.uid)


def _name(seen: PodWithRequest) -> str:
    return f"{seen.pod.metadata.namespace}/{seen.pod.metadata.name}"


def _read(path: Path) -> frozenset[PodUID]:
    try:
        return frozenset(PodUID(line) for line in path.read_text("ascii").split())
    except (OSError, UnicodeDecodeError):
        return frozenset()


def _write(path: Path, uids: Collection[PodUID]) -> None:
    plain.make_room(path)
    path.write_text("".join(f"{uid}\n" for uid in sorted(uids)), "ascii")
