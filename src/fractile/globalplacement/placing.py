"""Chooses the node of waiting pods over all nodes, keeps their cards, and nominates (docs/use/global-placement.md).

    seen ──> queue ──choose──> reserved ──nominate──> gate removed ──> kube-scheduler checks that node ──> bind
               │                  └── refused there, or not bound in time: released; it takes the normal path
               └── no node has room: the gate is removed, kube-scheduler says why; retried when there is room

kube-scheduler checks a nominated node first (evidence/kube-scheduler.md#nominated-node). Reserved cards are charged in
the ledger, so the next pods see them as taken. A pod is nominated once: if kube-scheduler cannot put it there, it takes
the normal path. A pod that has our nomination when a term begins gets its place again before other pods are considered.

Failure rule: open. Whatever cannot be chosen, reserved or written is left to kube-scheduler, and a gate is removed in
every case; ``globalplacement.gates`` removes those that were left behind.
"""

import asyncio
import heapq
import logging
from collections.abc import Callable, Coroutine
from itertools import count, islice
from typing import NoReturn

import msgspec

from fractile.errors import ApiError, FractileError, NotLeading
from fractile.globalplacement.counts import Decision, DecisionTally, Ended, QueueDepths, Remover
from fractile.globalplacement.queue_position import QueuePositions
from fractile.globalplacement.reservations import Reservations
from fractile.kube import paths
from fractile.kube.client import KubeClient
from fractile.model.placement import Placement
from fractile.model.refusal import Refusal
from fractile.model.request import PodRequest
from fractile.model.units import NodeName, PodUID
from fractile.reconcile.faults import Faults
from fractile.wire.kubernetes.queued import (
    QueuedPod,
    gated,
    gated_by_others,
    no_nomination,
    nominated_by_us,
    nomination,
    without_gates,
)

log = logging.getLogger(__name__)

_WRITERS = 16  # nominations that are written in parallel; the client keeps 20 connections
_TICK = 0.5  # seconds
_AGAIN = 20  # refused pods that are retried at a time when something was freed
_TRIAL = 10.0  # seconds between two checks of the right to write
_STALE = 2.0  # seconds in which kube-scheduler binds a pod elsewhere whose nomination did not fit
_PASSED_BY = 1.0  # seconds in which kube-scheduler takes a pod that is left to it; after that it is nominated
_NOTHING: dict[str, object] = {"metadata": {}}  # a patch
_BEHIND = 2.0  # seconds without a decision while pods wait for one, after which no more gates are set


class Left(msgspec.Struct, frozen=True):
    """The reason why the choice is left to kube-scheduler."""

    why: str


Found = NodeName | Refusal | Left


class Decisions(msgspec.Struct, frozen=True):
    """How a node and its cards are chosen: the extender's own code. ``wanted``: whether a pod's node is to be chosen
    here at all."""

    wanted: Callable[[QueuedPod], bool]
    parse: Callable[[QueuedPod], PodRequest | Refusal | None]
    choose: Callable[[QueuedPod, PodRequest], Found]
    reserve: Callable[[PodUID, PodRequest, str], Placement | Refusal | None]


class Placing:
    """``pod_changed`` and ``pod_gone`` are called by the watch, after the ledger's own handlers; ``freed`` when there
    is new room; ``begun`` and ``missed`` by the extender."""

    def __init__(
        self,
        *,
        client: KubeClient,
        reservations: Reservations,
        decisions: Decisions,
        clock: Callable[[], float],
        holds: Callable[[PodUID], bool],
        tally: DecisionTally | None = None,
        nominates: bool = True,
        faults: Faults | None = None,
    ) -> None:
        self._faults = faults or Faults()
        self._client = client
        self._nominates = nominates  # without the right to nominate, only leftover gates are removed
        self._reserved = reservations
        self._by = decisions
        self._clock = clock
        self._holds = holds  # whether the ledger already has the pod
        self._tally = tally or DecisionTally()
        self.front = QueuePositions(clock)
        self._left: dict[PodUID, float] = {}  # reserved but not nominated, as kube-scheduler is about to take it: since
        self._insisted: set[PodUID] = set()  # those that kube-scheduler did not take after all
        self._unseen: dict[PodUID, int] = {}  # nominations not yet shown by the watch -> ``front.taken`` at their start
        self._since: dict[PodUID, float] = {}  # when each of ``_pods`` was first seen
        self._pods: dict[PodUID, QueuedPod] = {}  # pods to decide on, as last seen
        self._heap: list[tuple[bool, int, int, PodUID]] = []
        self._arrivals = count()
        self._queued: set[PodUID] = set()  # in the heap, and still wanted
        self._refused: dict[PodUID, None] = {}  # no node has room for them now; the oldest first
        self._normal: set[PodUID] = set()  # they take the normal path from now on
        self._writing: set[PodUID] = set()
        self._stale: dict[PodUID, float] = {}  # pods whose nomination did not fit -> since when
        self._decided = 0.0
        self._able = False
        self._try_again = clock()
        self._room = False  # something became free
        self._work = asyncio.Event()

    # ── events ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def pod_changed(self, pod: QueuedPod) -> None:
        """Handle a pod that appeared or changed."""
        uid = PodUID(pod.metadata.uid)
        if pod.finished or pod.spec.node_name:
            self._forget(uid, Ended.GONE if pod.finished else Ended.ELSEWHERE)
        elif pod.metadata.deletion_timestamp or gated_by_others(pod) or not (gated(pod) or self._by.wanted(pod)):
            self._reserved.give_back(uid, Ended.GONE)
            self._forget(uid, Ended.GONE)
        else:
            self._pods[uid] = pod
            if uid in self._unseen and nominated_by_us(pod):
                self.front.written(self._unseen.pop(uid))
            self._since.setdefault(uid, self._clock())
            if not gated(pod):
                self.front.came(uid)
            if not any(uid in some for some in (self._reserved, self._refused, self._normal, self._writing)):
                self._enqueue(uid, pod)

    def pod_gone(self, uid: PodUID) -> None:
        self._forget(uid, Ended.GONE)

    def freed(self) -> None:
        """Something became free: retry refused pods, some at a time."""
        self._room = True

    def begun(self, uid: PodUID, node: str) -> None:
        """kube-scheduler binds the pod."""
        self.front.took(uid)
        self._left.pop(uid, None)
        self._reserved.begun(uid, node)

    def asked(self, uid: PodUID) -> NodeName | None:
        """kube-scheduler asks about the pod; returns the node where cards are kept for it."""
        self.front.took(uid)
        return self._reserved.node(uid)

    def node(self, uid: PodUID) -> NodeName | None:
        """The node where cards are kept for the pod."""
        return self._reserved.node(uid)

    def missed(self, uid: PodUID) -> None:
        """kube-scheduler asks about other nodes: the nominated one does not fit."""
        if uid in self._reserved:
            log.info("nomination missed uid=%s node=%s", uid, self._reserved.node(uid))
            self._give_up(uid, Ended.MISSED)

    @property
    def standing(self) -> QueueDepths:
        return QueueDepths(len(self._queued), len(self._refused), len(self._reserved))

    @property
    def prompt(self) -> bool:
        """Whether a pod that comes now will be decided on immediately, so that a gate will not delay it."""
        return self._able and (not self._queued or self._clock() - self._decided < _BEHIND)

    # ── the loop ─────────────────────────────────────────────────────────────────────────────────────────────────────

    async def run(self) -> NoReturn:
        """Run the loop; call it once the ledger is rebuilt."""
        async with asyncio.TaskGroup() as tasks:
            for _ in range(_WRITERS):
                tasks.create_task(self._decide())
            while True:
                if self._nominates and not self._able and self._clock() >= self._try_again:
                    self._try_again = self._clock() + _TRIAL
                    self._able = await self._may_write()
                self.look_again()
                await self._clear_stale()
                await asyncio.sleep(_TICK)

    async def _decide(self) -> NoReturn:
        while True:
            uid = self._next()
            if uid is not None:
                await self._try(uid)
                continue
            self._work.clear()
            await self._work.wait()  # for the next pod, however long that takes

    async def _try(self, uid: PodUID) -> None:
        """Call ``place``; a pod that triggers a bug takes the normal path from then on."""
        pod = self._pods.get(uid)
        placed = pod is None
        if pod is not None:
            with self._faults.apart("placement", pod.metadata.namespace, pod.metadata.name):
                await self.place(uid)
                placed = True
        if not placed:
            self._normal.add(uid)

    async def place(self, uid: PodUID) -> None:
        """Decide on one pod, and write the decision."""
        pod = self._pods.get(uid)
        if pod is None:
            return
        self._writing.add(uid)
        try:
            # 1. Choose the node, and reserve the cards there.
            node = self._reserve(uid, pod)
            # 2. Nominate it, unless it has that nomination, or kube-scheduler takes it before it could see one.
            if node is not None and nominated_by_us(pod) != node and not self._is_left(uid, pod):
                await self._nominate(uid, pod, node)
            # 3. Let kube-scheduler see it, whatever the outcome.
            if gated(pod) and await self._write(pod, self._client.merge_patch(_path(pod), without_gates(pod))):
                self._tally.gate_removed(Remover.LEADER)  # if this fails, ``globalplacement.gates`` removes it
        except NotLeading:
            self._reserved.give_back(uid, Ended.UNWRITTEN)  # another replica decides
        finally:
            self._writing.discard(uid)

    def _reserve(self, uid: PodUID, pod: QueuedPod) -> NodeName | None:
        """Choose a node and charge its cards; None where the pod takes the normal path."""
        self._decided = self._clock()
        if uid in self._insisted and uid in self._reserved:
            return self._reserved.node(uid)
        if uid in self._normal or uid in self._reserved:
            return None
        request = self._by.parse(pod)
        if not (self._nominates and isinstance(request, PodRequest)) or self._holds(uid):
            self._normal.add(uid)
            return None
        before = nominated_by_us(pod)
        if before and isinstance(self._by.reserve(uid, request, before), Placement):
            self._tally.decided(Decision.KEPT)
            return self._keep(uid, pod, NodeName(before))
        found = self._by.choose(pod, request)
        if isinstance(found, Left):
            log.info("left to kube-scheduler pod=%s reason=%r", _name(pod), found.why)
            self._tally.decided(Decision.LEFT)
            self._normal.add(uid)
            return None
        if not isinstance(found, Refusal) and isinstance(self._by.reserve(uid, request, found), Placement):
            self._tally.decided(Decision.RESERVED)
            return self._keep(uid, pod, found)
        self._tally.decided(Decision.NO_ROOM)
        self._refused[uid] = None
        return None

    def _keep(self, uid: PodUID, pod: QueuedPod, node: NodeName) -> NodeName:
        self._reserved.put(uid, pod, node)
        return node

    def _is_left(self, uid: PodUID, pod: QueuedPod) -> bool:
        """Whether the pod is left to kube-scheduler for a moment, which will ask us where its cards are kept."""
        if gated(pod) or uid in self._insisted or not self.front.too_late(uid):
            return False
        self._left[uid] = self._clock()
        return True

    async def _nominate(self, uid: PodUID, pod: QueuedPod, node: NodeName) -> None:
        started = self._clock()
        if not gated(pod):
            self._unseen[uid] = self.front.taken
        try:
            await self._client.merge_patch(_path(pod) + "/status", nomination(pod, node))
            self._tally.nominated(self._clock() - self._since.get(uid, started))
            log.info("nominated pod=%s node=%s ms=%.1f", _name(pod), node, (self._clock() - started) * 1000)
        except NotLeading:
            raise
        except FractileError as e:
            self._unseen.pop(uid, None)
            # The pod is gone, bound, or changed since it was seen: the watch will show its state in a moment.
            log.info("nomination refused pod=%s node=%s reason=%s", _name(pod), node, e)
            if not isinstance(e, ApiError) or e.code != 409:
                self._give_up(uid, Ended.UNWRITTEN)
                return
            self._reserved.give_back(uid, Ended.UNWRITTEN)
            now = self._pods.get(uid)
            if now is not None and now.metadata.resource_version != pod.metadata.resource_version:
                self._enqueue(uid, now)

    async def _write(self, pod: QueuedPod, write: Coroutine[None, None, None]) -> bool:
        try:
            await write
        except FractileError as e:
            log.warning("not written pod=%s reason=%s", _name(pod), e)
            return False
        return True

    # ── upkeep ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def look_again(self) -> None:
        """Give up reservations that kube-scheduler does not take and, if there is new room, retry some refused pods."""
        for uid in self._reserved.overdue(self._writing):
            log.info("nomination expired uid=%s node=%s", uid, self._reserved.node(uid))
            self._give_up(uid, Ended.EXPIRED)
        now = self._clock()
        for uid in [uid for uid, since in self._left.items() if now - since > _PASSED_BY]:
            del self._left[uid]
            if uid in self._reserved:
                self._insisted.add(uid)
                self._enqueue(uid, self._pods[uid])
        if self._room:
            self._room = False
            for uid in list(islice(self._refused, _AGAIN)):
                del self._refused[uid]
                self.front.forget(uid)  # it is not among those that kube-scheduler is about to take
                self._enqueue(uid, self._pods[uid])

    async def _clear_stale(self) -> None:
        """Remove nominations of pods that take the normal path: in kube-scheduler's sums they take the node's room from
        other pods."""
        now = self._clock()
        for uid in [uid for uid, since in self._stale.items() if now - since > _STALE]:
            del self._stale[uid]
            pod = self._pods.get(uid)
            if self._nominates and pod is not None and nominated_by_us(pod):
                await self._write(pod, self._client.merge_patch(_path(pod) + "/status", no_nomination(pod)))

    async def _may_write(self) -> bool:
        """Whether nominations and gates can be written. The rights are tested with a pod that does not exist: 403 means
        that they are missing, 404 that they are not."""
        path = paths.pod("fractile-system", "fractile-placement-trial")
        status = await self._is_allowed(self._client.merge_patch(f"{path}/status", _NOTHING))
        return await self._is_allowed(self._client.merge_patch(path, _NOTHING)) and status

    async def _is_allowed(self, write: Coroutine[None, None, None]) -> bool:
        try:
            await write
        except FractileError as e:
            if isinstance(e, ApiError) and e.code == 404:
                return True
            log.warning("no scheduling gates are set reason=%s", e)
        return False

    # ── small steps ──────────────────────────────────────────────────────────────────────────────────────────────────

    def _enqueue(self, uid: PodUID, pod: QueuedPod) -> None:
        if uid not in self._queued:
            self._queued.add(uid)
            key = not nominated_by_us(pod), -(pod.spec.priority or 0), next(self._arrivals), uid
            heapq.heappush(self._heap, key)
        self._work.set()

    def _next(self) -> PodUID | None:
        while self._heap:
            uid = heapq.heappop(self._heap)[-1]
            if uid in self._queued:
                self._queued.discard(uid)
                return uid
        return None

    def _give_up(self, uid: PodUID, why: Ended) -> None:
        """Let the pod take the normal path from now on."""
        self._normal.add(uid)
        self._insisted.discard(uid)
        self._left.pop(uid, None)
        self._stale[uid] = self._clock()
        self._reserved.give_back(uid, why)

    def _forget(self, uid: PodUID, why: Ended) -> None:
        self._pods.pop(uid, None)
        self._since.pop(uid, None)
        self.front.forget(uid)
        self._unseen.pop(uid, None)
        self._left.pop(uid, None)
        self._insisted.discard(uid)
        self._queued.discard(uid)
        self._refused.pop(uid, None)
        self._normal.discard(uid)
        self._stale.pop(uid, None)
        self._reserved.forget(uid, why)


def _path(pod: QueuedPod) -> str:
    return paths.pod(pod.metadata.namespace, pod.metadata.name)


def _name(pod: QueuedPod) -> str:
    return f"{pod.metadata.namespace}/{pod.metadata.name}"
