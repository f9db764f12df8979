"""The pods of this node: a view kept by a watch, and fresh reads for every decision about one pod.

The view answers "which pods are candidates" and "what else is on this card"; a decision about a pod is always based on
a GET of that pod, since its annotation may be newer than any watch.
"""

import asyncio
import functools
import time
from collections.abc import Iterable, Iterator

import msgspec
from msgspec import structs

from fractile.dialects import table
from fractile.errors import ApiError, Unreachable, WireError
from fractile.kube import paths
from fractile.kube.client import KubeClient
from fractile.kube.pacing import Clock
from fractile.kube.reflector import Gone, Reflector
from fractile.model.card import GPU, Card
from fractile.model.placement import Charge, Placement, charges
from fractile.model.refusal import Refusal
from fractile.model.request import PodRequest
from fractile.model.units import CardUUID, MemoryUnit, NodeName, PodUID
from fractile.wire.fractile import placement as placement_wire
from fractile.wire.fractile.isolation import STATE
from fractile.wire.kubernetes.objects import Pod
from fractile.wire.kubernetes.pod_mounts import MountingPod

_READ = frozenset({placement_wire.ANNOTATION, placement_wire.CHOICE_ANNOTATION, STATE})
_GET = 6.0  # seconds; kubelet itself waits for us meanwhile
_PODS = 256  # whose placements are kept decoded; a node runs 110 by default, or 250 if configured so
_LEARNED = 60.0  # seconds; a watch shows a pod within milliseconds, unless the API server is away


class PodWithRequest(msgspec.Struct, frozen=True):
    """A pod of the view, with its request: None when no dialect claims it."""

    pod: Pod
    request: PodRequest | None


class NodePods:
    """``changed`` and ``gone`` are the reflector's callbacks. For a moment it may know two pods of one name."""

    def __init__(
        self,
        client: KubeClient,
        *,
        node: NodeName,
        unit: MemoryUnit,
        dialects: frozenset[str] = table.NAMES,
        clock: Clock = time.monotonic,
    ) -> None:
        self._client = client
        self._unit = unit
        self._dialects = dialects
        self._clock = clock
        self.node = node
        self._version = 0
        self._seen: dict[PodUID, PodWithRequest] = {}
        self._learned: dict[PodUID, tuple[PodWithRequest, float]] = {}
        self._named: dict[tuple[str, str], set[PodUID]] = {}  # of both; each pod is looked up at every admission
        self._reflector: Reflector[Pod] | None = None

    def follow(self) -> Reflector[Pod]:
        """The watch that keeps the view; the program runs it."""
        self._reflector = Reflector(
            self._client,
            paths.pods(),
            Pod,
            changed=self.changed,
            gone=self.gone,
            field_selector=f"spec.nodeName={self.node}",
        )
        return self._reflector

    @property
    def complete(self) -> bool:
        """Whether the view has been complete once."""
        return self._reflector is None or self._reflector.synced.is_set()

    async def synced(self, timeout: float) -> bool:
        """Whether the view is complete; waits ``timeout`` seconds for it."""
        if self._reflector is None:
            return True
        try:
            async with asyncio.timeout(timeout):
                await self._reflector.synced.wait()
        except TimeoutError:
            return False
        return True

    @property
    def version(self) -> int:
        """Changes whenever the view may have changed."""
        self._forget()
        return self._version

    def changed(self, pod: Pod) -> None:
        self._version += 1
        uid = PodUID(pod.metadata.uid)
        self._seen[uid] = self._kept(pod)
        self._learned.pop(uid, None)
        self._name(pod)

    def gone(self, gone: Gone) -> None:
        self._version += 1
        self._seen.pop(PodUID(gone.uid), None)
        self._unname((gone.namespace, gone.name), PodUID(gone.uid))

    def learn(self, pod: Pod) -> None:
        """Count a pod that the watch may not have shown yet. If it never does, the pod is gone, and is forgotten."""
        uid = PodUID(pod.metadata.uid)
        if uid not in self._seen:
            self._version += 1
            self._learned[uid] = self._kept(pod), self._clock() + _LEARNED
            self._name(pod)

    def __iter__(self) -> Iterator[PodWithRequest]:
        self._forget()
        return iter([*self._seen.values(), *(seen for seen, _ in self._learned.values())])

    def by_uid(self, uid: PodUID) -> PodWithRequest | None:
        self._forget()
        learned = self._learned.get(uid)
        return self._seen.get(uid) or (learned[0] if learned else None)

    def by_name(self, namespace: str, name: str) -> list[PodWithRequest]:
        found = (self.by_uid(uid) for uid in sorted(self._named.get((namespace, name), ())))
        return [seen for seen in found if seen is not None]

    def _forget(self) -> None:
        """Drop the pods that were learned and never shown."""
        if not self._learned:
            return
        now = self._clock()
        for uid in [uid for uid, (_, until) in self._learned.items() if until <= now]:
            self._version += 1
            meta = self._learned.pop(uid)[0].pod.metadata
            self._unname((meta.namespace, meta.name), uid)

    def _kept(self, pod: Pod) -> PodWithRequest:
        request = self.request(pod)
        return PodWithRequest(pod if request is not None else _slim(pod), request)

    def _name(self, pod: Pod) -> None:
        meta = pod.metadata
        self._named.setdefault((meta.namespace, meta.name), set()).add(PodUID(meta.uid))

    def _unname(self, name: tuple[str, str], uid: PodUID) -> None:
        uids = self._named.get(name, set())
        if uid not in self._learned and uid not in self._seen:
            uids.discard(uid)
        if not uids:
            self._named.pop(name, None)

    def active(self) -> frozenset[PodUID]:
        """The pods whose containers may still run."""
        return frozenset(PodUID(s.pod.metadata.uid) for s in self if not s.pod.finished)

    def request(self, pod: Pod) -> PodRequest | None:
        """The pod's request. A malformed request never gets a placement, so it counts as none."""
        parsed = table.parse_pod(pod, self._unit, self._dialects)
        return None if isinstance(parsed, Refusal) else parsed

    async def fresh(self, namespace: str, name: str) -> MountingPod | None:
        """The pod as the API server has it now; None when there is none. Raises ApiError, Unreachable as the client
        does."""
        try:
            async with asyncio.timeout(_GET):
                pod = await self._client.get(paths.pod(namespace, name), MountingPod)
        except TimeoutError:
            raise Unreachable(f"the API server did not answer within {_GET:.0f} s") from None
        except ApiError as e:
            if e.code == 404:
                return None
            raise
        return pod

    async def annotate(self, pod: Pod, annotations: dict[str, str | None]) -> None:
        """Set annotations of exactly this incarnation of the pod (the UID is a precondition); None removes one."""
        meta = pod.metadata
        body = {"metadata": {"uid": meta.uid, "annotations": annotations}}
        try:
            async with asyncio.timeout(_GET):
                await self._client.merge_patch(paths.pod(meta.namespace, meta.name), body)
        except TimeoutError:
            raise Unreachable(f"the API server did not answer within {_GET:.0f} s") from None


def _slim(pod: Pod) -> Pod:
    """A pod that requests nothing of ours, without its unused annotations and labels: they may have 256 KiB and more,
    and a node may have hundreds of such pods."""
    meta = pod.metadata
    annotations = {key: value for key, value in (meta.annotations or {}).items() if key in _READ}
    return structs.replace(pod, metadata=structs.replace(meta, annotations=annotations or None, labels=None))


def placement_of(pod: Pod) -> Placement | None:
    """The placement in the pod's annotation; None when it has none. WireError when it cannot be read."""
    text = (pod.metadata.annotations or {}).get(placement_wire.ANNOTATION)
    return None if text is None else _decoded(text)


@functools.lru_cache(maxsize=_PODS)  # PreStart reads those of all pods of the node, which rarely change
def _decoded(text: str) -> Placement:
    return placement_wire.decode(text)


@functools.lru_cache(maxsize=_PODS)
def _charged(text: str) -> tuple[NodeName, tuple[Charge, ...]]:
    placement = _decoded(text)
    return placement.node, charges(placement)


def charged(pods: Iterable[PodWithRequest], *, node: NodeName, besides: PodUID) -> Iterator[Charge]:
    """What the other active pods were given of the node's cards; unreadable annotations do not count."""
    for seen in pods:
        if seen.pod.finished or seen.pod.metadata.uid == besides:
            continue
        text = (seen.pod.metadata.annotations or {}).get(placement_wire.ANNOTATION)
        try:
            where, given = _charged(text) if text is not None else ("", ())
        except WireError:
            continue
        if where == node:
            yield from given


def room(cards: Iterable[Card], pods: NodePods) -> dict[CardUUID, int]:
    """What the node's pods leave of each card: MiB, or shares of a non-GPU device."""
    left = {card.uuid: int(card.memory) if card.type == GPU else card.shares for card in cards}
    for charge in charged(pods, node=pods.node, besides=PodUID("")):
        if charge.card in left:
            left[charge.card] -= charge.shares or charge.memory
    return left
