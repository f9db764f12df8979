"""Follows a collection of the API server and reports each change, and each deletion exactly once.

    list ──> watch ──(cut, silent, damaged)──> watch from the last version ──(410)──> list, compare ──> watch ...

A watch alone is not enough: after a 410 the server cannot say what was deleted meanwhile, so the list is compared with
what was reported before. The reflector therefore remembers only (uid, resourceVersion) of every object: 15 MB for
50,000 pods, instead of hundreds for whole objects.

Failure rule: it never gives up and never forgets. While the server is away the view stays as it was; callers that must
not act on an old view check ``synced`` and the age of their own decisions. An exception of a callback is a bug and ends
``run``. After a list the new objects are reported before the vanished ones; receivers must tolerate both for a moment.
"""

import asyncio
import logging
import random
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Generic, NoReturn

import msgspec

from fractile.errors import ApiError, Unreachable, WireError
from fractile.kube.backoff import Backoff
from fractile.kube.client import SILENCE, EventType, K, KubeClient, WatchEvent, decode_leniently
from fractile.kube.pacing import Clock, Sleep
from fractile.wire.kubernetes.objects import ObjectMeta

INITIAL_EVENTS_END = "k8s.io/initial-events-end"

_LONG = 5.0  # seconds; a watch that lasted this long ended normally and is resumed without a wait
_STREAMING_TRIES = 2
_REFUSALS = 3  # after so many 5xx in a row the version itself may be the cause (etcd restored from a backup)

log = logging.getLogger(__name__)


class Gone(msgspec.Struct, frozen=True):
    """An object that no longer exists; ``uid`` distinguishes it from a later one of the same name."""

    namespace: str
    name: str
    uid: str


class _Known(msgspec.Struct, frozen=True, gc=False):
    uid: str
    version: str


_Key = tuple[str, str]
Listed = Callable[[set[str], float], None]  # UIDs, and when they were requested


def _nobody_compares(uids: set[str], asked: float) -> None:
    """For collections that are known only through the reflector."""


class Reflector(Generic[K]):
    """Calls ``changed`` with each new state of an object and ``gone`` when it is deleted or leaves the selector.

    A pod that is deleted and recreated under its name is ``gone`` with the old uid, then ``changed`` with the new one,
    even if both happened unseen. ``synced`` is set when all objects of the first list have been reported.
    ``listed`` is called after each whole list with the UIDs of all that exist, and with the time of ``clock`` at which
    the list was requested: an object known before that time and not among them is gone, however it became known.
    ``streaming`` requests the list as a watch (sendInitialEvents), which saves memory on servers that support it.
    """

    def __init__(
        self,
        client: KubeClient,
        path: str,
        type: type[K],
        *,
        changed: Callable[[K], None],
        gone: Callable[[Gone], None],
        listed: Listed = _nobody_compares,
        label_selector: str = "",
        field_selector: str = "",
        streaming: bool = False,
        silence: float = SILENCE,
        backoff: Backoff | None = None,
        clock: Clock = time.monotonic,
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        self.synced = asyncio.Event()
        self._client = client
        self._path = path
        self._type = type
        self._changed = changed
        self._gone = gone
        self._listed = listed
        self._label_selector = label_selector
        self._field_selector = field_selector
        self._streaming_tries = _STREAMING_TRIES if streaming else 0
        self._silence = silence
        self._backoff = backoff or Backoff(rng=random.Random())
        self._clock = clock
        self._sleep = sleep
        self._version = ""  # of the last event; empty: a list is needed
        self._refusals = 0
        self._known: dict[_Key, _Known] = {}
        self._heard: float | None = None

    @property
    def path(self) -> str:
        return self._path

    @property
    def version(self) -> str:
        """The version from which the watch would resume; "" when a list is due."""
        return self._version

    @property
    def age(self) -> float | None:
        """Seconds since the last event, bookmark or whole list; None before the first."""
        return None if self._heard is None else self._clock() - self._heard

    def __len__(self) -> int:
        """Number of objects known now."""
        return len(self._known)

    async def run(self) -> NoReturn:
        """Follow forever; ends only by cancellation, or by an exception of a callback."""
        while True:
            started = self._clock()
            try:
                await self._cycle()
                wait = 0.0 if self._clock() - started > _LONG else self._backoff.next()
            except (ApiError, Unreachable, WireError) as e:
                wait = self._failed(e)
            await self._sleep(wait)

    async def _cycle(self) -> None:
        """Run one watch, after a list if there is no version to resume from."""
        if self._version:
            await self._follow()
        elif self._streaming_tries > 0:
            await self._try_streaming()
        else:
            await self._list()
            await self._follow()

    def _failed(self, error: ApiError | Unreachable | WireError) -> float:
        """Decide where to resume; returns how long to wait before that."""
        if isinstance(error, ApiError):
            self._refusals += 1
            if error.code in (400, 410, 422) or (error.code >= 500 and self._refusals >= _REFUSALS):
                self._version = ""
        wait = self._backoff.next()
        log.warning(
            "watch interrupted path=%s relist=%s wait_ms=%d reason=%s",
            self._path,
            not self._version,
            wait * 1000,
            error,
        )
        return wait

    async def _list(self) -> None:
        decoder = msgspec.json.Decoder(self._type)
        seen: set[_Key] = set()
        version, asked = "", self._clock()
        pages = self._client.pages(self._path, label_selector=self._label_selector, field_selector=self._field_selector)
        async with aclosing(pages):
            async for page in pages:
                if page.first:
                    seen.clear()
                for raw in page.items:
                    metadata, decoded = decode_leniently(decoder, raw, f"list of {self._path}")
                    seen.add(self._see(metadata, decoded))
                version = page.resource_version
        self._complete(seen, version, asked)

    async def _try_streaming(self) -> None:
        """Stream once. Streaming is abandoned when the server refuses it, or when its end mark is missing twice."""
        self._streaming_tries -= 1
        try:
            await self._stream()
        except ApiError as e:
            # 400, 422: older servers. 500: "RequestWatchProgress is disabled", an etcd before 3.4.31 or 3.5.13.
            if e.code in (400, 422, 500):
                self._streaming_tries = 0
            raise

    async def _stream(self) -> None:
        """List and watch in one stream; before the end mark its reports are incomplete."""
        seen: set[_Key] | None = set()
        asked = self._clock()
        async with aclosing(self._watch(initial_events=True)) as events:
            async for event in events:
                if seen is None:
                    self._step(event)
                elif event.type is not EventType.BOOKMARK:
                    self._apply(event)
                    seen.add((event.metadata.namespace, event.metadata.name))
                elif INITIAL_EVENTS_END in (event.metadata.annotations or {}):
                    # Objects deleted during the list are in ``seen`` but no longer known: they are not reported again.
                    self._complete(seen, event.metadata.resource_version, asked)
                    self._streaming_tries = _STREAMING_TRIES
                    seen = None

    async def _follow(self) -> None:
        async with aclosing(self._watch(initial_events=False)) as events:
            async for event in events:
                self._step(event)

    def _watch(self, *, initial_events: bool) -> AsyncGenerator[WatchEvent[K], None]:
        return self._client.watch(
            self._path,
            self._type,
            resource_version=self._version,
            label_selector=self._label_selector,
            field_selector=self._field_selector,
            initial_events=initial_events,
            silence=self._silence,
        )

    def _step(self, event: WatchEvent[K]) -> None:
        self._apply(event)
        self._version = event.metadata.resource_version
        self._heard = self._clock()
        self._refusals = 0
        self._backoff.reset()

    def _apply(self, event: WatchEvent[K]) -> None:
        if event.type is EventType.DELETED:
            self._forget((event.metadata.namespace, event.metadata.name))
        elif event.type is not EventType.BOOKMARK:
            self._see(event.metadata, event.object)

    def _complete(self, seen: set[_Key], version: str, asked: float) -> None:
        """Forget all objects that are not in ``seen``, which holds everything that exists at ``version``."""
        for key in [key for key in self._known if key not in seen]:
            self._forget(key)
        self._listed({known.uid for known in self._known.values()}, asked)
        self._version = version
        self._heard = self._clock()
        self.synced.set()

    def _see(self, metadata: ObjectMeta, decoded: K | None) -> _Key:
        key = (metadata.namespace, metadata.name)
        now = _Known(metadata.uid, metadata.resource_version)
        before = self._known.get(key)
        if before is not None and before.uid != now.uid:
            self._forget(key)
        if before != now:
            self._known[key] = now
            self._report(metadata, decoded)
        return key

    def _report(self, metadata: ObjectMeta, decoded: K | None) -> None:
        if decoded is None:
            log.error("object ignored path=%s name=%s reason=malformed", self._path, metadata.name)
        else:
            self._changed(decoded)

    def _forget(self, key: _Key) -> None:
        known = self._known.pop(key, None)
        if known is not None:
            self._gone(Gone(key[0], key[1], known.uid))
