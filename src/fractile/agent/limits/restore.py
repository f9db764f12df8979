"""Recreates the directories of running containers after they were removed from ``--state-dir``.

    kept   the directory is there, its files are not: a region that is mounted in it cannot be removed. The container
           sees what is written into it, so its limits are complete again
    lost   the directory is gone. The container holds the removed one, in which no file can be created. Its processes
           keep their memory limit, by the page and the region that they have mapped; no arbiter reaches them. A program
           that starts there finds no page, so it gets no card

Both get a page from the pod's placement, so that this node knows their owner. The page of a lost one says so
(``FLAG_LOST``) until the container is restarted: PreStart then rewrites the page, and the container sees it.
Level-triggered: each round looks for placed containers that run and have no page, or no ``ids``. Whether one runs, and
what it sees, comes from the kernel: one walk through the node's processes for all containers, postponed while kubelet
admits pods, since they would wait for it. Failure rule: what cannot be restored now is retried with growing delays.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Container, Iterable, Mapping

import msgspec

from fractile.agent.deviceplugin.worth import same
from fractile.agent.kubelet.kubelet_state import Kubelet, mounted
from fractile.agent.limits.isolation import Isolation
from fractile.agent.limits.journal import Journal
from fractile.agent.limits.limits_writer import limits_of
from fractile.agent.node.catalog import CurrentCatalog
from fractile.agent.node.cgroup_tree import CgroupTree
from fractile.agent.node.pods import NodePods, PodWithRequest, placement_of
from fractile.agent.node.procfs import Process
from fractile.dialects import table
from fractile.errors import WireError
from fractile.kube.events import EventRecorder
from fractile.kube.pacing import Clock, Sleep
from fractile.model.placement import Slice
from fractile.model.request import ContainerRequest
from fractile.model.units import ContainerName, PodUID
from fractile.region import directory, shared
from fractile.region.page import FLAG_LOST, FLAG_OFF, ContainerLimits
from fractile.region.usage import promised_compute
from fractile.wire.foreign.kubelet_checkpoint import Recorded
from fractile.wire.fractile.device_ids import count_by_card

REASON = "GPUDirectoryLost"

_ROUND = 2.0  # seconds
_LONGEST = 60.0  # between two checks of one container: one that waits for its image has no page either
_PUT_OFF = 30.0  # at most, while pods are admitted: kubelet admits no other pod meanwhile

log = logging.getLogger(__name__)

_Key = tuple[PodUID, str, str]  # pod, container, resource
Viewers = Callable[[Mapping[str, PodUID]], Mapping[str, Process]]


class _Bare(msgspec.Struct, frozen=True):
    """A container that was placed here and has no page, or no record of what it was given."""

    seen: PodWithRequest
    asked: ContainerRequest
    given: tuple[Slice, ...]
    limits: ContainerLimits

    @property
    def key(self) -> _Key:
        return self.limits.pod_uid, self.asked.container, self.asked.resource


class Restorer:
    """``restored`` is called when pages were written. ``viewers``: for each token and its pod, a process of the pod
    that currently sees the token's directory. ``busy``: whether kubelet waits for our answer to an Allocate."""

    def __init__(
        self,
        kubelet: Kubelet,
        pods: NodePods,
        journal: Journal,
        current_catalog: CurrentCatalog,
        events: EventRecorder,
        *,
        isolation: Isolation | None = None,
        restored: Callable[[], None] = lambda: None,
        viewers: Viewers | None = None,
        busy: Callable[[], bool] = lambda: False,
        clock: Clock = time.monotonic,
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        self._kubelet = kubelet
        self._pods = pods
        self._journal = journal
        self._current_catalog = current_catalog
        self._events = events
        self._isolation = isolation
        self._restored = restored
        self._viewers = viewers or viewers_now
        self._busy = busy
        self._last = clock()  # time of the last round that was not put off
        self._clock = clock
        self._sleep = sleep
        self._next: dict[_Key, tuple[float, float]] = {}  # time of the next check, and the delay after it

    async def run(self) -> None:
        """Work forever."""
        while True:
            try:
                if await self._pods.synced(_ROUND):
                    await self.round()
            except OSError as e:
                log.warning("directories not restored reason=%s", e)
            await self._sleep(_ROUND)

    async def round(self) -> None:
        """Check all containers that are due."""
        if self._busy() and self._clock() - self._last < _PUT_OFF:
            return
        self._last = self._clock()
        bare = self._bare(await asyncio.to_thread(self._whole))
        self._next = {one.key: self._next.get(one.key, (0.0, _ROUND)) for one in bare}
        due = [one for one in bare if self._clock() >= self._next[one.key][0]]
        if not due:
            return
        state = await self._kubelet.record()
        lacking: dict[str, tuple[_Bare, Recorded]] = {}
        for one in due:
            wait = self._next[one.key][1]
            self._next[one.key] = self._clock() + wait, min(2 * wait, _LONGEST)
            entry = state.entry(*one.key)
            if entry is not None and (token := self._token(one, entry)):
                lacking[token] = one, entry
        if not lacking:
            return
        pods = {token: one.limits.pod_uid for token, (one, _) in lacking.items()}
        for token, viewer in (await asyncio.to_thread(self._viewers, pods)).items():
            await self._restore(*lacking[token], token, viewer)

    def _whole(self) -> list[ContainerLimits]:
        """The pages of complete directories."""
        return [limits for token, limits in self._journal.granted().items() if self._journal.exists(token)]

    def _bare(self, whole: Iterable[ContainerLimits]) -> list[_Bare]:
        known = {(limits.pod_uid, limits.container) for limits in whole}
        return [one for seen in self._pods if not seen.pod.finished for one in self._placed(seen, known)]

    def _placed(self, seen: PodWithRequest, known: Container[tuple[PodUID, ContainerName]]) -> list[_Bare]:
        """Its containers that hold a part of a card by its placement, and are not ``known``."""
        try:
            placement = placement_of(seen.pod)
        except WireError:
            return []
        if placement is None or seen.request is None or placement.node != self._pods.node:
            return []
        return [
            _Bare(seen, asked, given, limits_of(seen.request, asked, placement, self._current_catalog.catalog))
            for asked in seen.request.containers
            if (seen.request.uid, asked.container) not in known and not asked.request.shares
            if (given := placement.slices_for(asked))
        ]

    def _agrees(self, one: _Bare, entry: Recorded) -> bool:
        """Whether the placement matches what kubelet gave to the container."""
        cards = [*self._current_catalog.catalog.all]
        held = table.slices_held(one.asked, count_by_card(sorted(entry.ids)), cards, given=one.given)
        return len(entry.ids) == one.asked.amount and same(one.given, held)

    def _token(self, one: _Bare, entry: Recorded) -> str:
        """The token of the directory that the container has mounted; "" if there is nothing to restore."""
        path = mounted(entry)
        token = self._journal.token(path) if path is not None else ""
        if token and not self._agrees(one, entry):
            log.warning("directory not restored token=%s pod=%s reason=%r", token, _name(one), "placed elsewhere")
            return ""
        return token

    async def _restore(self, one: _Bare, entry: Recorded, token: str, viewer: Process) -> None:
        """Restore the directory of a running container; PreStart does so for containers that do not run."""
        if self._isolation is not None and (verdict := await self._isolation.verdict(one.seen.pod)) and verdict.off:
            one = msgspec.structs.replace(one, limits=msgspec.structs.replace(one.limits, flags=FLAG_OFF))
        try:
            put = await asyncio.to_thread(self._write, one, token, frozenset(entry.ids), viewer)
        except OSError as e:
            log.warning("directory not restored token=%s pod=%s reason=%s", token, _name(one), e)
            return
        if put is None:
            return
        lost = bool(put.flags & FLAG_LOST)
        state = "lost" if lost else "kept"
        log.warning("directory restored token=%s pod=%s container=%s state=%s", token, _name(one), put.container, state)
        self._restored()
        if lost:
            self._events.emit(one.seen.pod, REASON, sentence(put, self._pods.node))

    def _write(self, one: _Bare, token: str, ids: frozenset[str], viewer: Process) -> ContainerLimits | None:
        """None: a page was written meanwhile."""
        here = self._journal.path(token)
        region = shared.find(here / directory.REGION)
        kept = not viewer.deleted and region.generation is not None and region.cards == len(one.limits.cards)
        self._journal.refill(token, one.asked.resource, ids)
        wanted = one.limits if kept else msgspec.structs.replace(one.limits, flags=one.limits.flags | FLAG_LOST)
        return self._journal.change(token, lambda present: None if present is not None else wanted)


def viewers_now(pods: Mapping[str, PodUID]) -> Mapping[str, Process]:
    """Read from the processes now, without earlier results: directories are removed while processes live."""
    return CgroupTree().viewers(pods)


def sentence(limits: ContainerLimits, node: str) -> str:
    """The message to the pod's owner."""
    compute = promised_compute(limits)
    effects = [
        *([] if limits.flags & FLAG_OFF else ["its memory limit holds"]),
        *([f"{compute} not"] if compute else []),
        "programs that start in it from now on get no card",
    ]
    return (
        f"the directory of container {limits.container} was removed from node {node} while it ran, with the agent's "
        f"state directory for example; {_listed(effects)}; delete the pod, so that it is created again: kubectl delete "
        f"pod -n {limits.namespace} {limits.pod} (of a Deployment: kubectl rollout restart)"
    )


def _listed(effects: list[str]) -> str:
    *first, last = effects
    return f"{', '.join(first)}, and {last}" if first else last


def _name(one: _Bare) -> str:
    return f"{one.limits.namespace}/{one.limits.pod}"
