"""Events where users look for them: ``kubectl describe pod`` and ``kubectl get events``.

Failure rule: events are best effort. ``emit`` never waits and never raises; an event that cannot be sent in time, or is
refused, is dropped and counted. A repeated event raises the count of the existing one, and one object and reason make
at most ten events: from then on the last one gets the new text (as client-go aggregates).
``kubectl describe node`` finds the events of a node by its UID, so the UID is read if the caller does not know it.
"""

import asyncio
import hashlib
import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Literal, NoReturn

import msgspec

from fractile.errors import ApiError, FractileError
from fractile.kube import paths
from fractile.kube.client import KubeClient
from fractile.kube.pacing import Clock, Pacer, Sleep
from fractile.model.request import PodRequest
from fractile.model.words import printable
from fractile.wire.kubernetes.objects import Node, Pod

_WAITING = 1000  # distinct events not yet sent
_REMEMBERED = 4096  # events whose count may still be raised; the server forgets them after an hour
_PER_REASON = 10
_QPS, _BURST = 20, 100
_MAX_MESSAGE = 1024  # characters; the limit of the API

EventKind = Literal["Normal", "Warning"]

log = logging.getLogger(__name__)


class ObjectRef(msgspec.Struct, frozen=True):
    """The object that an event is about. ``namespace`` is empty for cluster-scoped objects."""

    kind: str
    namespace: str
    name: str
    uid: str
    api_version: str = "v1"


Subject = Pod | Node | PodRequest | ObjectRef


class _Text(msgspec.Struct, frozen=True):
    """The properties by which two events are the same."""

    about: ObjectRef
    reason: str
    message: str
    type: EventKind


class _Waiting(msgspec.Struct):
    count: int
    first: datetime
    last: datetime


class _Sent(msgspec.Struct):
    name: str
    count: int


class EventRecorder:
    """Queues events; ``run`` sends them. ``dropped`` counts those that were never sent."""

    def __init__(
        self,
        client: KubeClient,
        component: str,
        *,
        clock: Clock = time.monotonic,
        sleep: Sleep = asyncio.sleep,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self.dropped = 0
        self._client = client
        self._component = component
        self._now = now
        self._pacer = Pacer(_QPS, _BURST, clock=clock, sleep=sleep)
        self._waiting: OrderedDict[_Text, _Waiting] = OrderedDict()
        self._sent: OrderedDict[_Text, _Sent] = OrderedDict()
        self._reasons: OrderedDict[tuple[ObjectRef, str], list[str]] = OrderedDict()  # names of the created events
        self._work = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()

    def emit(self, about: Subject, reason: str, message: str, type: EventKind = "Warning") -> None:
        """Report that ``reason`` (CamelCase, constant) happened to the object, in a sentence for its owner."""
        text = _Text(_reference(about), reason, printable(message[:_MAX_MESSAGE]), type)
        now = self._now()
        waiting = self._waiting.get(text)
        if waiting is not None:
            waiting.count += 1
            waiting.last = now
        elif len(self._waiting) < _WAITING:
            self._waiting[text] = _Waiting(1, now, now)
            self._work.set()
            self._idle.clear()
        else:
            self.dropped += 1

    async def run(self) -> NoReturn:
        """Send forever; ends only by cancellation."""
        while True:
            await self._work.wait()  # no timeout: there is nothing to do until an event is emitted
            self._work.clear()
            while self._waiting:
                await self._pacer.wait()  # meanwhile repeats are still counted into the same event
                text, waiting = self._waiting.popitem(last=False)
                await self._send(text, waiting)
            self._idle.set()

    async def flush(self, timeout: float) -> None:
        """Wait until all is sent, at most ``timeout`` seconds; for the end of a program, while ``run`` still runs."""
        try:
            async with asyncio.timeout(timeout):
                await self._idle.wait()
        except TimeoutError:
            log.warning("events not sent in time waiting=%d", len(self._waiting))

    async def _send(self, text: _Text, waiting: _Waiting) -> None:
        try:
            await self._raise_or_create(text, waiting)
        except FractileError as e:
            self.dropped += waiting.count
            log.warning("event dropped object=%s reason=%s error=%s", text.about.name, text.reason, e)

    async def _raise_or_create(self, text: _Text, waiting: _Waiting) -> None:
        namespace = text.about.namespace or "default"  # where the API expects events of cluster-scoped objects
        sent = self._sent.get(text)
        if sent is not None:
            patch = {"count": sent.count + waiting.count, "lastTimestamp": _stamp(waiting.last)}
            if await self._patch(namespace, sent.name, patch):
                sent.count += waiting.count
                self._sent.move_to_end(text)
                return
            del self._sent[text]  # it expired; create a new one
        names = self._names(text)
        if len(names) >= _PER_REASON:
            patch = {"message": text.message, "lastTimestamp": _stamp(waiting.last)}
            if await self._patch(namespace, names[-1], patch):
                return
            names.clear()
        name = self._name(text, waiting)
        about = await self._complete(text.about)
        await self._client.create(paths.events(namespace), self._body(text, about, waiting, namespace, name))
        names.append(name)
        self._sent[text] = _Sent(name, waiting.count)
        _forget_old(self._sent)

    async def _patch(self, namespace: str, name: str, patch: Mapping[str, object]) -> bool:
        """Patch the event; False when it no longer exists."""
        try:
            await self._client.merge_patch(paths.event(namespace, name), patch)
        except ApiError as e:
            if e.code != 404:
                raise
            return False
        return True

    async def _complete(self, about: ObjectRef) -> ObjectRef:
        """Add the UID of a node that was named without it; an event without a UID is better than none."""
        if about.kind != "Node" or about.uid:
            return about
        try:
            node = await self._client.get(paths.node(about.name), Node)
        except FractileError:
            return about
        return _reference(node)

    def _names(self, text: _Text) -> list[str]:
        names = self._reasons.setdefault((text.about, text.reason), [])
        self._reasons.move_to_end((text.about, text.reason))
        _forget_old(self._reasons)
        return names

    def _name(self, text: _Text, waiting: _Waiting) -> str:
        digest = hashlib.sha256(msgspec.json.encode((text, self._component, waiting.first))).hexdigest()[:16]
        return f"{text.about.name[:230].rstrip('-.')}.{digest}"

    def _body(self, text: _Text, about: ObjectRef, waiting: _Waiting, namespace: str, name: str) -> dict[str, object]:
        return {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": name, "namespace": namespace},
            "involvedObject": {
                "apiVersion": about.api_version,
                "kind": about.kind,
                "namespace": about.namespace,
                "name": about.name,
                "uid": about.uid,
            },
            "reason": text.reason,
            "message": text.message,
            "type": text.type,
            "source": {"component": self._component},
            "reportingComponent": self._component,
            "count": waiting.count,
            "firstTimestamp": _stamp(waiting.first),
            "lastTimestamp": _stamp(waiting.last),
        }


def _reference(about: Subject) -> ObjectRef:
    match about:
        case ObjectRef():
            return about
        case PodRequest():
            return ObjectRef("Pod", about.namespace, about.name, about.uid)
        case Pod():
            return ObjectRef("Pod", about.metadata.namespace, about.metadata.name, about.metadata.uid)
        case Node():
            return ObjectRef("Node", "", about.metadata.name, about.metadata.uid)


def _forget_old(memory: OrderedDict[_Text, _Sent] | OrderedDict[tuple[ObjectRef, str], list[str]]) -> None:
    if len(memory) > _REMEMBERED:
        memory.popitem(last=False)


def _stamp(time: datetime) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ")
