"""Keeps the ledger in step with the API: cards from ExtendedResources, holds from the annotations of bound pods.

A pod may be known from a single read before the watch shows it (``looked``). The answer may arrive after the news that
the pod is gone, or the pod may go while there is no watch. So the UIDs of the last pods that went are remembered, every
list is compared with what is held (``listed``), and pods that no watch has shown for long are read again (``unseen``).

The API is the truth after a restart. While running, a bound pod's hold is not changed by edits of its annotation:
only Fractile writes it, so any other change is reported as an event and undone by ``repair``.
"""

import logging
from collections import Counter
from collections.abc import Callable

import msgspec

from fractile.dialects.table import NAMES, parse_pod
from fractile.errors import WireError
from fractile.ledger.classes import ClassIndex
from fractile.ledger.ledger import Entry, Ledger
from fractile.ledger.precedence import Rank, rank
from fractile.model.card import GPU, Card
from fractile.model.placement import Placement
from fractile.model.quota import QuotaOwner, owner_of
from fractile.model.request import PodRequest
from fractile.model.units import CardUUID, MemoryUnit, NodeName, PodUID
from fractile.policy.cards.verify import mismatch
from fractile.watch.waiting_pods import WaitingPod, WaitingPods
from fractile.wire.files import device_file
from fractile.wire.fractile import extended_resource, placement, resource_class
from fractile.wire.fractile.extended_resource import ExtendedResource
from fractile.wire.fractile.resource_class import Invalid, ResourceClass
from fractile.wire.kubernetes.objects import Pod
from fractile.wire.kubernetes.queued import nominated_by_us

log = logging.getLogger(__name__)

Warn = Callable[[Pod, str, str], None]  # pod, reason of the event, message
Freed = Callable[[NodeName], None]
Shown = Callable[[ExtendedResource, Card], None]
NeedsRepair = Callable[[Pod], None]
Eased = Callable[[str], None]  # of a namespace
Named = Callable[[PodUID], Pod | None]  # a bound pod with at least its name


_DEPARTED = 20_000  # more than any API server deletes in the time of a call
_UNPLACED = (
    "the pod has no placement: it was bound without Fractile (by spec.nodeName, or by a scheduler that does not call "
    "Fractile), so it gets no card; delete it, and create it again without spec.nodeName"
)
_MOST_GPUS = 128  # per node: the ledger's arrays have as many rows as the node with the most cards


def _nobody_waits(namespace: str) -> None:
    """For programs that wake no pods."""


class _Shown(msgspec.Struct, frozen=True):
    """The card that an object stands for as long as it exists; ``uid`` is the object's."""

    uid: str
    node: NodeName
    card: CardUUID
    is_gpu: bool

    @property
    def counted(self) -> tuple[NodeName, bool]:
        return self.node, self.is_gpu


def _nameless(uid: PodUID) -> Pod | None:
    """For programs that keep no names."""


class Unseen(msgspec.Struct, frozen=True):
    """A pod known only from a single read, answered at ``since`` (the ledger's clock)."""

    namespace: str
    name: str
    since: float


class CardHandlers:
    """Reports of the agents -> cards of the ledger. ``shown`` is called with each valid one, after the ledger.

    A card stays on its node as long as its object exists: one that was moved to another machine counts there once the
    old object is gone and a new one is created. The API server's own rules refuse other changes too, but may be of an
    older version. The number of devices per node is limited: an agent's token can create any number of objects.
    """

    def __init__(self, ledger: Ledger, *, freed: Freed, shown: Shown = lambda resource, card: None) -> None:
        self._ledger = ledger
        self._freed = freed
        self._shown = shown
        self._known: dict[str, _Shown] = {}  # by the object's name, since a deletion carries nothing else
        self._counts = Counter[tuple[NodeName, bool]]()
        self._crowded: set[NodeName] = set()  # nodes for which this was logged

    def changed(self, resource: ExtendedResource) -> None:
        name = resource.metadata.name
        try:
            node, card = extended_resource.to_card(resource)
            withheld = extended_resource.withheld(resource)
        except WireError as e:
            log.warning("card ignored object=%s reason=%s", name, e)
            return
        now = _Shown(resource.metadata.uid, node, card.uuid, card.type == GPU)
        before = self._known.get(name)
        if before is not None and before != now:
            if before.uid == now.uid:
                log.warning("card ignored object=%s node=%s reason=%r", name, node, f"it is on node {before.node}")
                return
            self.gone(name)
            before = None
        if before is None and not self._has_room(now):
            return
        self._known[name] = now
        self._ledger.put_card(node, card)
        self._ledger.withhold(card.uuid, withheld)
        self._shown(resource, card)
        self._freed(node)

    def gone(self, name: str) -> None:
        known = self._known.pop(name, None)
        if known is not None:
            self._counts[known.counted] -= 1
            if self._counts[known.counted] <= 0:
                del self._counts[known.counted]
            self._ledger.drop_card(known.card)
            self._ledger.withhold(known.card, None)

    def _has_room(self, new: _Shown) -> bool:
        """Whether the node may have one more device of the kind; if so, it is counted."""
        most = _MOST_GPUS if new.is_gpu else device_file.MOST
        if self._counts[new.counted] >= most:
            if new.node not in self._crowded:
                log.warning("cards ignored node=%s reason=%r", new.node, f"it has {most} devices of the kind already")
            self._crowded.add(new.node)
            return False
        self._counts[new.counted] += 1
        return True


class ClassHandlers:
    """ResourceClasses -> classes of the index. ``changed_class`` is called with each class whose meaning changed, but
    not for deleted ones, since pods that wait for them keep waiting."""

    def __init__(self, index: ClassIndex, *, changed_class: Callable[[str], None] = lambda name: None) -> None:
        self._index = index
        self._changed_class = changed_class

    def changed(self, resource: ResourceClass) -> None:
        found = resource_class.decode(resource)
        if isinstance(found, Invalid):
            log.warning("class ignored class=%s reason=%s", resource.metadata.name, found.message)
            self._index.spoil(resource.metadata.name, found.message)
        elif self._index.put(found):
            self._changed_class(found.name)

    def gone(self, name: str) -> None:
        self._index.drop(name)


class PodHandlers:
    """Pods -> waiting pods and holds of the ledger. ``freed`` is called with nodes that have new room, ``eased`` with
    namespaces that hold less than before; ``named`` finds the pod for an event."""

    def __init__(
        self,
        *,
        ledger: Ledger,
        waiting: WaitingPods,
        unit: MemoryUnit,
        warn: Warn,
        freed: Freed,
        needs_repair: NeedsRepair,
        dialects: frozenset[str] = NAMES,
        eased: Eased = _nobody_waits,
        named: Named = _nameless,
    ) -> None:
        self._named = named
        self._ledger = ledger
        self._dialects = dialects
        self._eased = eased
        self._waiting = waiting
        self._unit = unit
        self._warn = warn
        self._freed = freed
        self._needs_repair = needs_repair
        # The last pods that went, the oldest first; with the time at which the API server itself said so, if it did.
        self._departed: dict[PodUID, float | None] = {}
        self._outdated: dict[PodUID, Pod] = {}  # what a watch has shown of such pods since
        self._unseen: dict[PodUID, Unseen] = {}

    def changed(self, pod: Pod) -> None:
        """Handle a pod that appeared or changed, according to the watch or a list."""
        uid = PodUID(pod.metadata.uid)
        if self._departed.get(uid) is not None:  # a watch that was silent shows what was before the deletion
            self._outdated[uid] = pod
            return
        self._departed.pop(uid, None)
        self._unseen.pop(uid, None)
        try:
            self._apply(pod, uid)
        except Exception:  # a bug, which the caller reports: a card that is held must not look free
            self._charge_as_written(pod, uid)
            raise

    def looked(self, pod: Pod) -> None:
        """Handle the result of a single read; ignored if the pod is known to have gone in the meantime."""
        uid = PodUID(pod.metadata.uid)
        if uid in self._departed:
            return
        if uid in self._unseen or (self._waiting.find(uid) is None and self._ledger.entry(uid) is None):
            self._unseen[uid] = Unseen(pod.metadata.namespace, pod.metadata.name, self._ledger.now())
        self._apply(pod, uid)

    def unseen(self, seconds: float) -> list[tuple[PodUID, Unseen]]:
        """Pods read that long ago that no watch has shown since: they may have been gone already."""
        limit = self._ledger.now() - seconds
        return [(uid, read) for uid, read in self._unseen.items() if read.since <= limit]

    def listed(self, uids: set[str], asked: float) -> None:
        """Handle a complete list of pods, requested at ``asked`` (the ledger's clock): all others are gone.

        A pod that was read later than that may be newer than the list: the watch will show it, or it is ``unseen``.
        """
        for uid, pod in [item for item in self._outdated.items() if item[0] in uids]:
            if (self._departed[uid] or 0.0) < asked:
                del self._departed[uid], self._outdated[uid]
                self.changed(pod)
        younger = {uid for uid, read in self._unseen.items() if read.since >= asked}
        there = uids | younger
        held = [uid for uid, entry in self._ledger.entries() if uid not in there and entry.since < asked]
        # These hold no charge: one that is newer than the list comes back with the watch.
        others = [uid for uid in self._ledger.conflicts() if uid not in there]
        waiting = [pod.uid for pod in self._waiting.oldest_first() if pod.uid not in there]
        for uid in [*waiting, *(uid for uid in self._unseen if uid not in there)]:
            self._waiting.discard(uid)
            self._unseen.pop(uid, None)
        for uid in others + held:
            log.warning("hold of a pod that does not exist uid=%s", uid)
            self.gone(uid)

    def _apply(self, pod: Pod, uid: PodUID) -> None:
        if pod.finished:
            self.gone(uid)
        elif pod.spec.node_name:
            self._waiting.discard(uid)
            self._bound(pod, uid)
        else:
            self._unbound(pod, uid)

    def _charge_as_written(self, pod: Pod, uid: PodUID) -> None:
        """Charge a bound pod whose request cannot be read by its placement, which only the control plane writes."""
        text = (pod.metadata.annotations or {}).get(placement.ANNOTATION)
        if pod.finished or not pod.spec.node_name or text is None:
            return
        try:
            written = placement.decode(text)
        except WireError:
            return
        if written.node == pod.spec.node_name:
            self._ledger.observe(uid, written, rank=_rank(pod))

    def written(self, uid: PodUID, bound: Placement, owner: QuotaOwner) -> None:
        """Handle the API server's answer that it has stored a Binding."""
        entry = self._ledger.entry(uid)
        if entry is not None and entry.placement == bound:
            self._ledger.confirm(uid)
        elif uid not in self._departed:  # the hold was given up, or replaced, while the write was on its way
            self._ledger.observe(uid, bound, owner)

    def deleted(self, uid: PodUID) -> None:
        """Handle a pod of which the API server itself says that it does not exist. No event brings it back, only a
        later list, as after etcd was restored from a backup."""
        self.gone(uid)
        self._departed[uid] = self._ledger.now()

    def gone(self, uid: PodUID) -> None:
        """Release what a finished or deleted pod held, and charge pods that found no room before."""
        self._departed[uid] = self._departed.pop(uid, None)
        self._outdated.pop(uid, None)
        self._unseen.pop(uid, None)
        if len(self._departed) > _DEPARTED:
            oldest = next(iter(self._departed))
            del self._departed[oldest]
            self._outdated.pop(oldest, None)
        self._waiting.discard(uid)
        entry = self._ledger.release(uid)
        if entry is None:
            return
        log.info("released uid=%s node=%s", uid, entry.placement.node)
        self._ended(entry)

    def give_back(self, uid: PodUID) -> None:
        """End an assumption whose Binding will not come, and wake pods that wait for its cards."""
        entry = self._ledger.forget(uid)
        if entry is not None:
            self._ended(entry)

    def _ended(self, entry: Entry) -> None:
        """Handle a hold that ended: its cards are free, and its namespace may hold others."""
        self.freed(entry.placement.node)
        self._eased(entry.owner.namespace)

    def freed(self, node: NodeName) -> None:
        """Charge pods that could not be charged before, and wake those that wait."""
        for other, claimed in self._ledger.stirred().items():
            self._ledger.observe(other, claimed)
        self._displaced()
        self._freed(node)

    def _unbound(self, pod: Pod, uid: PodUID) -> None:
        request = parse_pod(pod, self._unit, self._dialects)
        if request is None:
            return
        meta = pod.metadata
        self._waiting.put(
            WaitingPod(
                uid,
                meta.namespace,
                meta.name,
                meta.creation_timestamp or "",
                request,
                priority=pod.spec.priority or 0,
                nominated="" if nominated_by_us(pod) else pod.status.nominated_node_name,
                gated=bool(pod.spec.scheduling_gates),
            )
        )

    def _bound(self, pod: Pod, uid: PodUID) -> None:
        request = parse_pod(pod, self._unit, self._dialects)
        if not isinstance(request, PodRequest):
            return
        claimed = self._claimed(pod, request)
        if isinstance(claimed, Placement):
            refusal = self._ledger.observe(uid, claimed, owner_of(request), _rank(pod))
            self._displaced()
            elsewhere = self._ledger.misplaced(claimed)
            if refusal is not None and self._ledger.before_move(uid, claimed, version=pod.metadata.version):
                self._needs_repair(pod)  # it is written again if the move can no longer be stored
            elif refusal is not None:
                self._reject(pod, uid, refusal.message)
            elif elsewhere is not None:
                self._warn(
                    pod, "CardElsewhere", f"This pod holds a card that another node reports: {elsewhere.message}"
                )
        else:
            self._reject(pod, uid, claimed)
        if placement.CHOICE_ANNOTATION in (pod.metadata.annotations or {}):
            self._needs_repair(pod)

    def _displaced(self) -> None:
        """Warn pods that gave way to one that was granted the same cards before them."""
        for uid in self._ledger.displaced():
            log.warning("hold gives way uid=%s", uid)
            pod = self._named(uid)
            if pod is not None:
                self._warn(
                    pod, "PlacementIgnored", "Another pod was granted the same cards before; delete one of the two pods"
                )

    def _claimed(self, pod: Pod, request: PodRequest) -> Placement | str:
        """The placement that the pod's annotation claims, or what is wrong with it."""
        text = (pod.metadata.annotations or {}).get(placement.ANNOTATION)
        if text is None:
            return _UNPLACED
        try:
            claimed = placement.decode(text)
        except WireError as e:
            return str(e)
        if claimed.node != pod.spec.node_name:
            return f"its placement names node {claimed.node}, it runs on {pod.spec.node_name}"
        wrong = mismatch(request, claimed)
        return claimed if wrong is None else f"its placement does not match its request: {wrong}"

    def _reject(self, pod: Pod, uid: PodUID, reason: str) -> None:
        log.warning("placement rejected pod=%s/%s reason=%s", pod.metadata.namespace, pod.metadata.name, reason)
        entry = self._ledger.entry(uid)
        held = entry is not None and entry.placement.node == pod.spec.node_name
        self._warn(pod, "PlacementIgnored", _told(reason, held=held))
        if entry is None:
            return
        if entry.placement.node == pod.spec.node_name:
            self._ledger.confirm(uid)
            self._needs_repair(pod)
        else:  # another program bound it, so the Binding that was assumed here can no longer succeed
            self.give_back(uid)


def _told(reason: str, *, held: bool) -> str:
    """The event's message. ``held``: the ledger knows the pod's placement, so the annotation is repaired."""
    if reason != _UNPLACED:
        return f"Fractile rejects this pod's {placement.ANNOTATION}: {reason}"
    return f"the pod's {placement.ANNOTATION} is missing; Fractile writes it again" if held else reason


def _rank(pod: Pod) -> Rank:
    """The pod's rank, from when it was granted its cards."""
    created = pod.metadata.creation_timestamp or ""
    return rank(waits=not pod.status.has_run, bound=pod.status.bound_at, created=created)
