"""The verbs of the Kubernetes API, typed. ``transport`` describes what each does when the server fails.

Objects are decoded straight into the structs of ``wire.kubernetes.objects``: undeclared fields are skipped without
building anything, which is where the usual clients spend their memory.
"""

import asyncio
import random
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from enum import StrEnum
from types import TracebackType
from typing import Generic, Protocol, Self, TypeVar

import msgspec

from fractile.errors import ApiError, WireError
from fractile.kube import paths
from fractile.kube.credentials import Credentials
from fractile.kube.pacing import Clock, Pacer, Sleep
from fractile.kube.transport import Fence, Repeat, Transport, open_fence, status_error
from fractile.wire.kubernetes.objects import ListMeta, ObjectMeta

T = TypeVar("T")


class KubeObject(Protocol):
    """What every object that is listed or watched has."""

    @property
    def metadata(self) -> ObjectMeta: ...


K = TypeVar("K", bound=KubeObject)
Body = msgspec.Struct | Mapping[str, object]

PAGE = 500  # objects; what the Kubernetes clients use
WATCH_SECONDS = 290  # after which the server ends the watch; its own default is 30 to 60 minutes
SILENCE = 90.0  # bookmarks come about once a minute, so a longer silence is a dead connection

BIND_SECONDS = 2  # after which the API server itself ends a Binding that it has received

_APPLY = "application/apply-patch+yaml"  # JSON is YAML
_MERGE = "application/merge-patch+json"
_STRATEGIC = "application/strategic-merge-patch+json"


class EventType(StrEnum):
    ADDED = "ADDED"
    MODIFIED = "MODIFIED"
    DELETED = "DELETED"
    BOOKMARK = "BOOKMARK"


class WatchEvent(msgspec.Struct, Generic[K], frozen=True):
    """One line of a watch. ``object`` is None for a BOOKMARK, and if its fields do not match those that ``K``
    declares."""

    type: EventType
    metadata: ObjectMeta
    object: K | None


class ListPage(msgspec.Struct, frozen=True):
    """One page of a list. Its items are not yet decoded and share the page's bytes: do not keep them.

    A page with ``first`` begins the list, perhaps again: earlier pages are then void.
    """

    first: bool
    resource_version: str
    items: list[msgspec.Raw]


class _RawPage(msgspec.Struct, frozen=True):
    metadata: ListMeta = ListMeta()
    items: list[msgspec.Raw] | None = None


class _Line(msgspec.Struct, frozen=True):
    type: str
    object: msgspec.Raw


class OnlyMeta(msgspec.Struct, frozen=True):
    """The part that all objects share; it decodes even if a kind's own struct does not."""

    metadata: ObjectMeta = ObjectMeta()


# What msgspec raises for bytes that do not match the type; it does not treat invalid UTF-8 as a DecodeError.
DAMAGED = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)

_line = msgspec.json.Decoder(_Line)
_page = msgspec.json.Decoder(_RawPage)
_only_meta = msgspec.json.Decoder(OnlyMeta)
_encoder = msgspec.json.Encoder()


class KubeClient:
    """An async context manager. ``qps`` and ``burst`` limit what all its callers send together; ``fence`` returns for
    how many seconds writes are allowed (``transport``)."""

    def __init__(
        self,
        credentials: Credentials,
        *,
        qps: float = 200,
        burst: int = 400,
        timeout: float = 30.0,
        page_size: int = PAGE,
        rng: random.Random | None = None,
        clock: Clock = time.monotonic,
        sleep: Sleep = asyncio.sleep,
        fence: Fence = open_fence,
    ) -> None:
        self.credentials = credentials
        self._page_size = page_size
        self._transport = Transport(
            credentials,
            pacer=Pacer(qps, burst, clock=clock, sleep=sleep),
            timeout=timeout,
            rng=rng or random.Random(),
            sleep=sleep,
            fence=fence,
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._transport.close()

    async def get(self, path: str, type: type[T]) -> T:
        return _decode(await self._transport.send("GET", path), type, path)

    async def list(
        self, path: str, type: type[T], *, label_selector: str = "", field_selector: str = "", cached: bool = False
    ) -> tuple[list[T], str]:
        """All objects, and the resourceVersion from which to watch. ``cached``: from the API server's memory, which is
        cheapest for it; they may be old."""
        decoder = msgspec.json.Decoder(type)
        items: list[T] = []
        version = ""
        found = self.pages(path, label_selector=label_selector, field_selector=field_selector, cached=cached)
        async with aclosing(found) as pages:
            async for page in pages:
                items = [] if page.first else items
                items += [_decode_with(decoder, raw, path) for raw in page.items]
                version = page.resource_version
        return items, version

    async def pages(
        self, path: str, *, label_selector: str = "", field_selector: str = "", cached: bool = False
    ) -> AsyncGenerator[ListPage, None]:
        """One consistent list, page by page; a ``cached`` one comes in one piece.

        When the server compacts the snapshot between two pages (410), the list restarts, in one piece.
        """
        selectors = _params(labelSelector=label_selector, fieldSelector=field_selector)
        params = {**selectors, **({"resourceVersion": "0"} if cached else {"limit": str(self._page_size)})}
        while True:
            first = "continue" not in params
            try:
                page = _decode_with(_page, await self._transport.send("GET", path, params=params), path)
            except ApiError as e:
                if first or e.code != 410:
                    raise
                params = selectors
                continue
            yield ListPage(first, page.metadata.resource_version, page.items or [])
            if not page.metadata.continue_:
                return
            params = {**params, "continue": page.metadata.continue_}

    async def watch(
        self,
        path: str,
        type: type[K],
        *,
        resource_version: str = "",
        label_selector: str = "",
        field_selector: str = "",
        initial_events: bool = False,
        silence: float = SILENCE,
    ) -> AsyncGenerator[WatchEvent[K], None]:
        """Events after ``resource_version`` until the server ends the stream; close it with ``aclosing``.

        ``initial_events`` requests the present objects first, as ADDED, then a BOOKMARK with the annotation
        k8s.io/initial-events-end (KEP-3157). Raises ApiError (410: the version is too old), Unreachable, and WireError
        for a line that is not an event; each ends the watch.
        """
        decoder = msgspec.json.Decoder(type)
        params = _params(
            watch="1",
            allowWatchBookmarks="true",
            timeoutSeconds=str(WATCH_SECONDS),
            resourceVersion=resource_version,
            labelSelector=label_selector,
            fieldSelector=field_selector,
            sendInitialEvents="true" if initial_events else "",
            resourceVersionMatch="NotOlderThan" if initial_events else "",
        )
        async with self._transport.stream(path, params=params, silence=silence) as pieces, aclosing(pieces):
            async for line in _lines(pieces):
                yield _event(line, decoder, path)

    async def create(self, path: str, body: Body) -> None:
        """POST to a collection. Repeated only after 429, so Unreachable leaves open whether the object exists."""
        await self._transport.send("POST", path, body=_encoder.encode(body), repeat=Repeat.REFUSED)

    async def replace(self, path: str, body: Body) -> None:
        """PUT. With metadata.resourceVersion it is a compare-and-swap: ApiError 409 when the object changed."""
        await self._transport.send("PUT", path, body=_encoder.encode(body), repeat=Repeat.REFUSED)

    async def merge_patch(self, path: str, body: Body, *, seconds: int = 0) -> None:
        """PATCH with a merge patch. ``seconds``: after which the API server itself ends the write; 0: its own limit."""
        params = _params(timeout=f"{seconds}s" if seconds else "")
        await self._transport.send("PATCH", path, params=params, body=_encoder.encode(body), content_type=_MERGE)

    async def strategic_patch(self, path: str, body: Body) -> None:
        """PATCH with a merge patch that merges lists by the key of their items; not for custom resources."""
        await self._transport.send("PATCH", path, body=_encoder.encode(body), content_type=_STRATEGIC)

    async def apply(self, path: str, body: Body, *, field_manager: str, force: bool = True) -> None:
        """Server-side apply: create the object or own these fields of it."""
        params = _params(fieldManager=field_manager, force="true" if force else "")
        await self._transport.send("PATCH", path, params=params, body=_encoder.encode(body), content_type=_APPLY)

    async def delete(
        self, path: str, *, uid: str = "", resource_version: str = "", grace_seconds: int | None = None
    ) -> None:
        """Delete the object; with ``uid`` only that incarnation of it, with ``resource_version`` only the version that
        was read (ApiError 409 for another).

        ``grace_seconds`` 0 removes a pod immediately, which only the kubelet of its node may do.
        """
        conditions = _params(uid=uid, resourceVersion=resource_version)
        options: dict[str, object] = {"preconditions": conditions} if conditions else {}
        if grace_seconds is not None:
            options["gracePeriodSeconds"] = grace_seconds
        await self._transport.send("DELETE", path, body=_encoder.encode(options) if options else None)

    async def bind(
        self,
        *,
        namespace: str,
        name: str,
        uid: str,
        node: str,
        annotations: dict[str, str],
        still_due: Callable[[], bool] = lambda: True,
    ) -> None:
        """Bind the pod and add the annotations, in one write (evidence/api-server.md#binding). Never repeated here.

        The request limits how long the API server may take (``timeout``; its default is 34 s), so that it is known when
        a write without an answer is either stored or never will be: the next leader waits for that. Unreachable: it may
        have happened. ApiError 409: another pod of that name, bound already, or being deleted. ``still_due`` is called
        when the write is about to go out; NotSent when it returns False.
        """
        body = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"namespace": namespace, "name": name, "uid": uid, "annotations": annotations},
            "target": {"apiVersion": "v1", "kind": "Node", "name": node},
        }
        path = paths.binding(namespace, name)
        await self._transport.send(
            "POST",
            path,
            params={"timeout": f"{BIND_SECONDS}s"},
            body=_encoder.encode(body),
            repeat=Repeat.NEVER,
            still_due=still_due,
        )


def _params(**given: str) -> dict[str, str]:
    return {name: value for name, value in given.items() if value}


def _decode(body: bytes, type: type[T], path: str) -> T:
    return _decode_with(msgspec.json.Decoder(type), body, path)


def _decode_with(decoder: msgspec.json.Decoder[T], body: bytes | msgspec.Raw, path: str) -> T:
    try:
        return decoder.decode(body)
    except DAMAGED as e:
        raise WireError(_not_kubernetes(path, e)) from None


def _not_kubernetes(path: str, error: Exception) -> str:
    return f"the answer to {path} is not the JSON of a Kubernetes API server ({error}); check the server address"


async def _lines(pieces: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    rest: list[bytes] = []
    async for piece in pieces:
        *whole, tail = piece.split(b"\n")
        for line in whole:
            yield b"".join([*rest, line])
            rest.clear()
        if tail:
            rest.append(tail)
    if rest:
        yield b"".join(rest)


def _event(line: bytes, decoder: msgspec.json.Decoder[K], path: str) -> WatchEvent[K]:
    try:
        raw = _line.decode(line)
        if raw.type == "ERROR":
            raise status_error(raw.object) or WireError(f"the watch of {path} ended with an unknown error")
        kind = EventType(raw.type)
        if kind is EventType.BOOKMARK:
            return WatchEvent(kind, _only_meta.decode(raw.object).metadata, None)
        metadata, decoded = decode_leniently(decoder, raw.object, f"watch of {path}")
    except (msgspec.DecodeError, RecursionError, ValueError) as e:
        raise WireError(f"a line of the watch of {path} is not an event: {e}") from None
    return WatchEvent(kind, metadata, decoded)


def decode_leniently(decoder: msgspec.json.Decoder[K], raw: msgspec.Raw, source: str) -> tuple[ObjectMeta, K | None]:
    """The object, or None when its fields do not match the type: one such object must not stop a stream.

    Raises WireError when it does not even have metadata, which no API server sends: the answer is damaged.
    """
    try:
        decoded = decoder.decode(raw)
    except DAMAGED:
        try:
            return _only_meta.decode(raw).metadata, None
        except DAMAGED as e:
            raise WireError(f"an object in the {source} is damaged: {e}") from None
    return decoded.metadata, decoded
