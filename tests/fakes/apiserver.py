"""A fake Kubernetes API server at the wire: real HTTP on loopback, in the test's own event loop.

    async with FakeApiServer() as server:
        pod = server.create(paths.pods("default"), {"metadata": {"name": "p"}, "spec": {...}})
        async with KubeClient(server.credentials()) as client: ...
        assert server.writes() == ["POST /api/v1/namespaces/default/pods/p/binding"]

Any group, version and plural is served. Faults are injected per request (``inject``). What it answers is held to the
real kube-apiserver by tests/contract.
"""

import asyncio
import json
import ssl
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

import msgspec

from fractile.kube.credentials import Credentials
from fractile.kube.tokens import TokenSource
from tests.fakes.http1 import Exchange, Server
from tests.fakes.store import Change, Json, Place, Refusal, Store, as_dict, place, selector

_END = "k8s.io/initial-events-end"


@dataclass
class Fault:
    """What goes wrong with the next ``times`` requests that match (method, substring of the path, watch or not)."""

    method: str = ""
    path: str = ""
    watch: bool | None = None
    times: int = 1
    delay: float = 0.0  # seconds before anything happens
    status: int = 0  # answer this instead of serving the request ...
    body: bytes = b""  # ... with this text; empty: a metav1.Status
    headers: dict[str, str] = field(default_factory=dict[str, str])
    drop: Literal["", "before", "after"] = ""  # cut the connection before or after the request is carried out
    cut_after: int = -1  # serve, but cut the connection after so many bytes of the answer's body
    drip: float = 0.0  # seconds between the bytes of the answer's body
    line: bytes = b""  # send this line first in a watch
    silent: bool = False  # open the watch, then never say a word

    def matches(self, exchange: Exchange) -> bool:
        return (
            self.times > 0
            and self.method in ("", exchange.method)
            and self.path in exchange.path
            and self.watch in (None, _is_watch(exchange))
        )


@dataclass
class Recorded:
    method: str
    path: str
    query: dict[str, str]
    status: int = 0  # 0: no answer was sent (yet)
    body: bytes = b""


class FakeApiServer:
    """An async context manager. Objects are read and written directly by ``create``, ``get``, ``merge``, ``delete``."""

    def __init__(self, *, tls: ssl.SSLContext | None = None, tokens: set[str] | None = None) -> None:
        self.store = Store()
        self.requests: list[Recorded] = []
        self.tokens = tokens  # the bearer tokens that are let in; None: everybody
        self.streaming_lists = True  # False: as with an etcd that is too old for sendInitialEvents
        self.bookmark_every = 60.0  # seconds
        self.reviews: dict[str, bool] = {}  # whether the bearer of a token may get what he asks about
        self.leader = ""  # path of the Lease that Bindings are held against, as by the policy leader.fractile.dev
        self._faults: list[Fault] = []
        self._tls = tls
        self._server = Server(self._handle, tls=tls)
        self._watchers: set[asyncio.Event] = set()
        self._bookmarks = 0
        self._pages: dict[str, list[Json]] = {}
        self.store.changed.append(self._wake)

    async def __aenter__(self) -> Self:
        await self._server.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._server.stop()

    @property
    def url(self) -> str:
        return f"{'https' if self._tls else 'http'}://127.0.0.1:{self._server.port}"

    def credentials(self, *, token: TokenSource | None = None, tls: ssl.SSLContext | None = None) -> Credentials:
        return Credentials(self.url, token=token, tls=tls)

    def write_kubeconfig(self, path: Path) -> Path:
        """A kubeconfig for programs that are given a file."""
        config = {
            "current-context": "fake",
            "clusters": [{"name": "fake", "cluster": {"server": self.url}}],
            "contexts": [{"name": "fake", "context": {"cluster": "fake"}}],
        }
        path.write_bytes(msgspec.json.encode(config))
        return path

    # What tests do to the server

    def inject(self, *faults: Fault) -> None:
        """Let each fault happen from now on. Copies are counted down, since a parametrised test may run twice."""
        self._faults += [replace(fault) for fault in faults]

    def heal(self) -> None:
        """Forget the faults that did not happen yet."""
        self._faults.clear()

    def compact(self) -> None:
        """Forget history and unfinished lists: the next resume or page gets 410."""
        self.store.compact()
        self._pages.clear()

    def bookmark(self) -> None:
        """Send a bookmark to every watch now."""
        self._bookmarks += 1
        self._wake()

    async def cut_connections(self) -> None:
        """Break every connection and listen on, as a restart of the server does."""
        port = self._server.port
        await self._server.stop()
        await self._server.start(port)

    async def stop(self) -> None:
        """Go away; the port then refuses connections."""
        await self._server.stop()

    async def restart(self) -> None:
        await self._server.start(self._server.port)

    def create(self, path: str, body: Any) -> Json:
        """Store an object as it is given, status included; ``path`` is that of the collection."""
        given: Json = json.loads(msgspec.json.encode(body))
        at = place(path)
        made = self.store.create(at, given)
        if "status" in given and made.get("status") != given["status"]:
            at = Place(at.group, at.plural, made["metadata"].get("namespace", ""), made["metadata"]["name"], "status")
            made = self.store.merge(at, {"status": given["status"]})
        return made

    def get(self, path: str) -> Json:
        return self.store.get(place(path))

    def all(self, path: str) -> list[Json]:
        return self.store.select(place(path), lambda _: True)

    def merge(self, path: str, patch: Json) -> Json:
        return self.store.merge(place(path), patch)

    def delete(self, path: str) -> None:
        self.store.delete(place(path))

    def watching(self) -> int:
        """How many watches are open; one that was closed is noticed at the next bookmark, which this sends."""
        self.bookmark()
        return len(self._watchers)

    def writes(self, *, path: str = "") -> list[str]:
        """The writing requests so far, as ``POST /api/v1/...``."""
        return [f"{r.method} {r.path}" for r in self.requests if r.method != "GET" and path in r.path]

    # Serving

    async def _handle(self, exchange: Exchange) -> None:
        fault = next((f for f in self._faults if f.matches(exchange)), Fault())
        fault.times -= 1
        self._faults = [f for f in self._faults if f.times > 0]
        recorded = Recorded(exchange.method, exchange.path, exchange.query, body=exchange.body)
        self.requests.append(recorded)
        try:
            await self._serve(exchange, fault)
        finally:
            recorded.status = exchange.status

    async def _serve(self, exchange: Exchange, fault: Fault) -> None:
        if fault.delay:
            await asyncio.sleep(fault.delay)
        if fault.drop == "before":
            exchange.cut()
        if fault.status:
            body = fault.body or _encode(Refusal(fault.status, "Injected", "injected by the test").status)
            await exchange.answer(fault.status, body, fault.headers)
            return
        exchange.cut_after, exchange.drip = fault.cut_after, fault.drip
        try:
            self._authorize(exchange)
            if _is_watch(exchange):
                await self._watch(exchange, place(exchange.path), fault)
                return
            status, body = self._carry_out(exchange)
        except Refusal as refusal:
            status, body = refusal.code, refusal.status
        if fault.drop == "after":
            exchange.cut()
        await exchange.answer(status, _encode(body))

    def _authorize(self, exchange: Exchange) -> None:
        token = exchange.headers.get("authorization", "").removeprefix("Bearer ")
        if self.tokens is not None and token not in self.tokens:
            raise Refusal(401, "Unauthorized", "Unauthorized")

    def _carry_out(self, exchange: Exchange) -> tuple[int, Json]:
        at = place(exchange.path)
        match exchange.method, exchange.headers.get("content-type", ""):
            case "GET", _:
                return 200, self.store.get(at) if at.name else self._list(exchange, at)
            case "POST", _ if at.plural == "selfsubjectaccessreviews":
                return 201, self._review(exchange)
            case "POST", _ if at.subresource == "binding":
                self._check_leader(at, _body(exchange))
                self.store.bind(at, _body(exchange))
                return 201, {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}
            case "POST", _ if at.subresource == "eviction":
                options = as_dict(_body(exchange).get("deleteOptions"))
                self.store.delete(at, uid=as_dict(options.get("preconditions")).get("uid", ""))
                return 201, {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}
            case "POST", _:
                return 201, self.store.create(at, _body(exchange))
            case "PUT", _:
                return 200, self.store.replace(at, _body(exchange))
            case "PATCH", "application/merge-patch+json":
                return 200, self.store.merge(at, _body(exchange))
            case "PATCH", "application/strategic-merge-patch+json":
                return 200, self.store.strategic(at, _body(exchange))
            case "PATCH", "application/apply-patch+yaml":
                manager, force = exchange.query.get("fieldManager", ""), exchange.query.get("force") == "true"
                if not manager:
                    raise Refusal(422, "Invalid", "fieldManager: Required value: is required for apply patch")
                applied, created = self.store.apply(at, _body(exchange), manager=manager, force=force)
                return (201 if created else 200), applied
            case "PATCH", _:
                raise Refusal(415, "UnsupportedMediaType", "the body of the request was in an unknown format")
            case "DELETE", _:
                body = _body(exchange) if exchange.body else {}
                asked = as_dict(body.get("preconditions"))
                version = asked.get("resourceVersion", "")
                return 200, self.store.delete(at, uid=asked.get("uid", ""), version=version)
            case _:
                raise Refusal(405, "MethodNotAllowed", "the server does not allow this method on the resource")

    def _review(self, exchange: Exchange) -> Json:
        token = exchange.headers.get("authorization", "").removeprefix("Bearer ")
        if token not in self.reviews:
            raise Refusal(401, "Unauthorized", "Unauthorized")
        asked = as_dict(_body(exchange)["spec"])
        return {"kind": "SelfSubjectAccessReview", "spec": asked, "status": {"allowed": self.reviews[token]}}

    def _check_leader(self, at: Place, binding: Json) -> None:
        said = as_dict(as_dict(binding.get("metadata")).get("annotations")).get("fractile.dev/leader")
        if not self.leader or said is None:
            return
        spec = self.get(self.leader)["spec"]
        if said != f"{spec.get('holderIdentity') or ''}/{spec.get('leaseTransitions') or 0}":
            raise Refusal(
                403,
                "Forbidden",
                f"pods \"{at.name}\" is forbidden: ValidatingAdmissionPolicy 'leader.fractile.dev' with binding "
                "'leader.fractile.dev' denied request: another replica of fractile leads now; kube-scheduler asks it "
                "in a moment",
            )

    def _list(self, exchange: Exchange, at: Place) -> Json:
        token = exchange.query.get("continue", "")
        limit = int(exchange.query.get("limit") or 0)
        if token:
            rest = self._pages.get(token)
            if rest is None:
                raise Refusal(
                    410, "Expired", "The provided continue parameter is too old to display a consistent list result."
                )
            version = token.partition(".")[0]
        else:
            rest = self.store.select(at, selector(at, exchange.query))
            version = str(self.store.version)
        meta: Json = {"resourceVersion": version}
        if limit and len(rest) > limit:
            meta["continue"] = f"{version}.{len(self._pages)}"
            meta["remainingItemCount"] = len(rest) - limit
            self._pages[meta["continue"]] = rest[limit:]
            rest = rest[:limit]
        return {"kind": f"{at.kind}List", "apiVersion": at.api_version, "metadata": meta, "items": rest}

    # Watching

    async def _watch(self, exchange: Exchange, at: Place, fault: Fault) -> None:
        query = exchange.query
        matches = selector(at, query)
        initial = query.get("sendInitialEvents") == "true"
        if initial and query.get("resourceVersionMatch") != "NotOlderThan":
            raise Refusal(422, "Invalid", "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan")
        text = query.get("resourceVersion", "")
        if text and not text.isdigit():
            raise Refusal(500, "", f'resourceVersion: Invalid value: "{text}": invalid syntax')
        await exchange.begin()
        if fault.line:
            await exchange.send(fault.line + b"\n")
        if fault.silent:
            await asyncio.Event().wait()
        stream = _Stream(exchange, at, matches)
        try:
            async with asyncio.timeout(float(query.get("timeoutSeconds") or 1800)):
                await self._follow(stream, int(text or 0), initial=initial)
        except TimeoutError:
            pass
        except Refusal as refusal:
            await stream.send("ERROR", refusal.status)
        await exchange.end()

    async def _follow(self, stream: "_Stream", version: int, *, initial: bool) -> None:
        if initial and not self.streaming_lists:
            raise Refusal(500, "InternalError", "required storage feature RequestWatchProgress is disabled")
        bookmarks = stream.exchange.query.get("allowWatchBookmarks") in ("true", "1")
        woken = asyncio.Event()
        self._watchers.add(woken)
        try:
            if initial or not version:
                present = self.store.select(stream.at, stream.matches)
                version = self.store.version
                for o in present:
                    await stream.send("ADDED", o)
                if initial and bookmarks:
                    await stream.bookmark(version, {_END: "true"})
            sent_bookmarks = self._bookmarks
            while True:
                # ``woken`` may be stale here, never late: nothing is awaited between reading and clearing it.
                woken.clear()
                changes, version = self._changes(stream, version)
                for change in changes:
                    await stream.change(change)
                if bookmarks and sent_bookmarks < self._bookmarks:
                    sent_bookmarks = self._bookmarks
                    await stream.bookmark(version)
                if not await _wait(woken, self.bookmark_every) and bookmarks:
                    await stream.bookmark(version)
        finally:
            self._watchers.discard(woken)

    def _changes(self, stream: "_Stream", version: int) -> tuple[list[Change], int]:
        if version < self.store.oldest:
            raise Refusal(410, "Expired", f"too old resource version: {version} ({self.store.oldest})")
        if version > self.store.version:  # a version of the future is waited for
            return [], version
        return list(self.store.since(version, stream.at)), self.store.version

    def _wake(self) -> None:
        for woken in self._watchers:
            woken.set()


@dataclass
class _Stream:
    """The lines of one watch."""

    exchange: Exchange
    at: Place
    matches: Any

    async def change(self, change: Change) -> None:
        """Tell the change as this watch's selector sees it: an object that leaves it is DELETED."""
        was = change.before is not None and self.matches(change.before)
        now = change.after is not None and self.matches(change.after)
        if now:
            await self.send("MODIFIED" if was else "ADDED", change.after)
        elif was:
            assert change.before is not None
            metadata = {**change.before["metadata"], "resourceVersion": str(change.version)}
            await self.send("DELETED", {**change.before, "metadata": metadata})

    async def bookmark(self, version: int, annotations: dict[str, str] | None = None) -> None:
        metadata: Json = {"resourceVersion": str(version)}
        if annotations:
            metadata["annotations"] = annotations
        await self.send("BOOKMARK", {"kind": self.at.kind, "apiVersion": self.at.api_version, "metadata": metadata})

    async def send(self, kind: str, o: Json | None) -> None:
        await self.exchange.send(_encode({"type": kind, "object": o}) + b"\n")


def _is_watch(exchange: Exchange) -> bool:
    return exchange.method == "GET" and exchange.query.get("watch") in ("1", "true")


def _body(exchange: Exchange) -> Json:
    try:
        body: object = json.loads(exchange.body)
    except ValueError:
        raise Refusal(400, "BadRequest", "the object provided is unrecognized") from None
    found = as_dict(body)
    if not found:
        raise Refusal(400, "BadRequest", "the object provided is unrecognized")
    return found


def _encode(body: Json) -> bytes:
    return msgspec.json.encode(body)


async def _wait(event: asyncio.Event, seconds: float) -> bool:
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return False
    return True
