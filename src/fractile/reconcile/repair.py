"""Rewrites a bound pod's annotation when it differs from the ledger, or when kubelet chose other cards.

Kubelet decides which card, the ledger how much (docs/concepts/architecture.md). The agent reports kubelet's choice in
``fractile.dev/kubelet-choice``; the ledger moves the hold there if the cards have room, and only then is the placement
rewritten and the container started. Without room the pod stays as it is and its event says why.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable

from fractile.dialects.table import NAMES, assigned_annotations, parse_pod, placement_annotations, slices_held
from fractile.errors import ApiError, FractileError, WireError
from fractile.kube import paths
from fractile.kube.client import BIND_SECONDS, KubeClient
from fractile.ledger.classes import ClassIndex, resolve
from fractile.ledger.ledger import Entry, Ledger
from fractile.model.placement import Placement, Slice
from fractile.model.refusal import Refusal
from fractile.model.request import PodRequest
from fractile.model.units import MemoryUnit, PodUID
from fractile.policy.cards.verify import barred, mismatch
from fractile.reconcile.faults import Faults
from fractile.watch.event_handlers import Warn
from fractile.wire.fractile import placement
from fractile.wire.fractile.placement import LEADER
from fractile.wire.kubernetes.objects import Pod

log = logging.getLogger(__name__)

_RETRY = 2.0  # seconds between two attempts after a failure or a lack of room


class Repair:
    """A queue of pods to check; ``run`` works it off. ``term`` names the term of leadership under which it writes, so
    that the API server refuses late writes of a former leader; "" where no other replica can lead."""

    def __init__(
        self,
        *,
        ledger: Ledger,
        client: KubeClient,
        unit: MemoryUnit,
        warn: Warn,
        wall_ns: Callable[[], int],
        dialects: frozenset[str] = NAMES,
        classes: ClassIndex | None = None,
        term: Callable[[], str] = lambda: "",
        faults: Faults | None = None,
    ) -> None:
        self._faults = faults or Faults()
        self._term = term
        self._ledger = ledger
        self._classes = ClassIndex(ledger) if classes is None else classes
        self._dialects = dialects
        self._client = client
        self._unit = unit
        self._warn = warn
        self._wall_ns = wall_ns
        self._pods: dict[PodUID, Pod] = {}  # the latest state of each
        self._refused: dict[PodUID, str] = {}  # pods whose cards are taken -> the reason in their event
        self._work = asyncio.Event()

    def request(self, pod: Pod) -> None:
        self._pods[PodUID(pod.metadata.uid)] = pod
        self._work.set()

    def begin(self) -> None:
        """Charge moves that are under way, once all pods are known and before room is given to other pods.

        The former leader may have started them, and its last write may still arrive."""
        for uid, pod in self._pods.items():
            with self._faults.apart("repair", pod.metadata.namespace, pod.metadata.name):
                entry, request = self._ledger.entry(uid), parse_pod(pod, self._unit, self._dialects)
                if entry is not None and isinstance(request, PodRequest):
                    self._move(uid, pod, request, entry)

    async def run(self) -> None:
        """Start this only when all pods are known: one that is unknown may hold the card that kubelet chose."""
        while True:
            await self._work.wait()
            self._work.clear()
            for uid, pod in list(self._pods.items()):
                settled = True  # a bug would fail again
                with self._faults.apart("repair", pod.metadata.namespace, pod.metadata.name):
                    settled = await self._settle(uid, pod)
                if settled and self._pods.get(uid) is pod:
                    del self._pods[uid]
            if self._pods:
                await asyncio.sleep(_RETRY)
                self._work.set()

    async def _settle(self, uid: PodUID, pod: Pod) -> bool:
        """Make the annotation agree with the ledger; False when it has to be retried."""
        try:
            # 1. The pod as it is now: it may have changed since it was refused.
            pod = await self._client.get(_path(pod), Pod) if uid in self._refused else pod
            entry = self._ledger.entry(uid)
            request = parse_pod(pod, self._unit, self._dialects)
            if pod.metadata.uid != uid or entry is None or not isinstance(request, PodRequest):
                return self._done(uid)  # finished in the meantime
            # 2. Move the hold to kubelet's choice, if the agent has reported one, it is valid, and there is room.
            self._end_move(uid, pod)
            wrong = self._move(uid, pod, request, self._ledger.entry(uid) or entry)
            if wrong:
                return self._told(uid, pod, wrong)
            # 3. One write: the placement that the ledger holds.
            await self._write(uid, pod, request)
        except FractileError as e:
            log.warning("repair failed pod=%s/%s reason=%s", pod.metadata.namespace, pod.metadata.name, e)
            return isinstance(e, ApiError) and e.code in (404, 409, 422) and self._done(uid)
        return self._done(uid)

    def _move(self, uid: PodUID, pod: Pod, request: PodRequest, entry: Entry) -> str | None:
        """Move the hold to the cards that kubelet chose; returns why that is impossible, None when it is done."""
        choice = self._choice(pod, request)
        if choice is None or choice == entry.placement:
            return None
        wrong = self._barred(request, entry.placement, choice)
        refusal = None if wrong else self._ledger.move(uid, choice, version=pod.metadata.version)
        return wrong or (refusal.message if refusal else None)

    def _end_move(self, uid: PodUID, pod: Pod) -> None:
        """End the move if this version of the pod shows that it was not stored and no longer can be."""
        text = (pod.metadata.annotations or {}).get(placement.ANNOTATION)
        try:
            shown = placement.decode(text) if text is not None else None
        except WireError:  # it was edited; the next write corrects it
            return
        if shown is not None:
            self._ledger.stayed(uid, shown, version=pod.metadata.version)

    def _done(self, uid: PodUID) -> bool:
        self._refused.pop(uid, None)
        return True

    def _told(self, uid: PodUID, pod: Pod, reason: str) -> bool:
        """Keep the pod in the queue until there is room; its event is sent once per reason."""
        if self._refused.get(uid) != reason:
            self._refused[uid] = reason
            self._warn(pod, "CardTaken", f"kubelet chose other cards than planned, and {reason}")
        return False

    async def _write(self, uid: PodUID, pod: Pod, request: PodRequest) -> None:
        entry = self._ledger.entry(uid)
        if entry is None:
            return
        cards = self._ledger.cards(entry.placement.node)
        annotations: dict[str, str | None] = {
            **placement_annotations(request, entry.placement, cards=cards, unit=self._unit, now_ns=self._wall_ns()),
            **_already_assigned(pod, request),
            placement.ANNOTATION: placement.encode(entry.placement),
            placement.CHOICE_ANNOTATION: None,
            LEADER: self._term() or None,
        }
        # The UID makes the server refuse the patch for a later pod of the same name; the version makes it refuse one
        # that arrives after a later patch.
        meta = {"uid": uid, "resourceVersion": pod.metadata.resource_version, "annotations": annotations}
        body = {"metadata": {k: v for k, v in meta.items() if v}}
        await self._client.merge_patch(_path(pod), body, seconds=BIND_SECONDS)
        if (now := self._ledger.entry(uid)) is not None and now.placement == entry.placement:
            self._ledger.moved(uid, version=pod.metadata.version)
        log.info(
            "placement rewritten pod=%s/%s node=%s", pod.metadata.namespace, pod.metadata.name, entry.placement.node
        )

    def _barred(self, request: PodRequest, held: Placement, choice: Placement) -> str | None:
        """What rules out kubelet's choice, whatever is free: a card that does not belong to the class, or amounts other
        than those that the class gave when the pod was bound."""
        cards = self._ledger.cards(choice.node)
        known = resolve(request, self._classes)
        if isinstance(known, Refusal):
            return known.message
        for asked in request.containers:
            if not asked.request.device_class:
                continue
            chosen, given = choice.slices_for(asked), held.slices_for(asked)
            if _amounts(slices_held(asked, {s.card: 1 for s in chosen}, cards, given)) != _amounts(chosen):
                return f"container {asked.container} would have other amounts than it was given"
        return barred(known, choice, cards)

    def _choice(self, pod: Pod, request: PodRequest) -> Placement | None:
        text = (pod.metadata.annotations or {}).get(placement.CHOICE_ANNOTATION)
        if text is None:
            return None
        try:
            choice = placement.decode(text)
        except WireError as e:
            log.warning("choice ignored pod=%s/%s reason=%s", pod.metadata.namespace, pod.metadata.name, e)
            return None
        if choice.node != pod.spec.node_name or mismatch(request, choice) is not None:
            return None
        return choice


def _amounts(slices: Iterable[Slice]) -> list[tuple[str, int, int, int]]:
    return sorted((s.card, s.memory, s.cores, s.shares) for s in slices)


def _path(pod: Pod) -> str:
    return paths.pod(pod.metadata.namespace, pod.metadata.name)


def _already_assigned(pod: Pod, request: PodRequest) -> dict[str, str]:
    """Keep what the agent wrote when the containers got their cards."""
    present = pod.metadata.annotations or {}
    said = assigned_annotations(request)
    return said if said and all(present.get(key) == value for key, value in said.items()) else {}
