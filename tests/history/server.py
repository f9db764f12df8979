"""How the API server answers, and what it does though nobody hears of it.

    a write:  sent ──transit──> received, admitted ──at most its bound──> stored, perhaps twice ──> answered, or not

The bound is the API server's own: 34 s, or the ``timeout`` of the call where that is less. What is stored within it may
have been answered before with 500 ("timed out but committed"), or never. A call whose client is gone before it was
received is not done. An answer of 4xx is final: no copy of such a call is stored later.
"""

import asyncio
import hashlib
from collections import deque
from collections.abc import AsyncGenerator, Callable
from typing import Any

import msgspec

from fractile.errors import Unreachable
from fractile.kube.http import Cut, HTTPRequest
from tests.history.kernel import Kernel, Machine
from tests.history.store import PODS, Event, Object, Refused, Store

BOUND = 34.0  # seconds; kube-apiserver's for any write
_LEADER = "fractile.dev/leader"
_BOOKMARK = 60.0

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode


class Chance:
    """Draws that depend on what they are for, so that a history without some of its steps keeps the luck of others."""

    def __init__(self, seed: str) -> None:
        self._seed = seed
        self._counts: dict[str, int] = {}

    def unit(self, what: str) -> float:
        """From 0 to 1."""
        n = self._counts[what] = self._counts.get(what, 0) + 1
        digest = hashlib.blake2b(f"{self._seed}/{what}/{n}".encode(), digest_size=7).digest()
        return int.from_bytes(digest, "big") / 2**56

    def between(self, what: str, low: float, high: float) -> float:
        return low + self.unit(what) * (high - low)


class Weather(msgspec.Struct, kw_only=True):
    """``until``: by kind of trouble, in the kernel's time. ``bad``: of a hundred calls so many have their own.
    ``unsure``: of a hundred Bindings so many are answered with 500 and stored later all the same."""

    bad: float = 5.0
    unsure: float = 0.0
    lag: float = 0.05  # seconds, of a watch, on average
    until: dict[str, float]

    def has(self, kind: str, now: float) -> bool:
        return self.until.get(kind, 0.0) > now


class Server:
    """``served`` counts the calls that are not about the Lease."""

    def __init__(
        self,
        kernel: Kernel,
        store: Store,
        chance: Chance,
        weather: Weather,
        say: Callable[[str], None] | None = None,
    ) -> None:
        self.kernel, self.store, self.chance, self.weather = kernel, store, chance, weather
        self._say = say
        self.served = 0
        self.policy = True
        self._watches: list[Watch] = []
        self._pages: dict[str, tuple[int, list[bytes]]] = {}
        store.told = self._tell

    # ── watches ──────────────────────────────────────────────────────────────────────────────────────────────────

    def watch(self, machine: Machine, path: str, revision: int) -> "Watch":
        found = Watch(self, machine, path)
        for event in self.store.since(path, revision):
            found.tell(event)
        self._watches.append(found)
        return found

    def unwatch(self, watch: "Watch") -> None:
        if watch in self._watches:
            self._watches.remove(watch)

    def cut_watches(self, pick: float) -> None:
        if self._watches:
            self._watches[int(pick * len(self._watches))].cut()

    def stall_watch(self, pick: float, seconds: float) -> None:
        if self._watches:
            self._watches[int(pick * len(self._watches))].stall(seconds)

    def _tell(self, path: str, event: Event) -> None:
        for watch in self._watches:
            if watch.path == path:
                watch.tell(event)

    # ── calls ────────────────────────────────────────────────────────────────────────────────────────────────────

    def take(self, call: "Call") -> None:
        """A call leaves its machine."""
        kernel, request = self.kernel, call.request
        what = f"{request.method} {request.path}"
        trouble = self._trouble(call, what)
        if self._say is not None and "/leases" not in what:
            self._say(f"{kernel.now:9.3f}    call {what} {trouble} {_target(request)}")
        if trouble == "cut":
            kernel.after(0.001, call.cut)
            return
        slow = 20.0 if self.weather.has("slow", kernel.now) else 1.0
        transit = self.chance.between(what, 0.0005, 0.01) * slow
        if trouble == "transit":
            transit = self.chance.between(what, 0.5, 10.0)
        kernel.after(transit, lambda: self._receive(call, what, trouble))

    def _trouble(self, call: "Call", what: str) -> str:
        now = self.kernel.now
        if self.weather.has("down", now) or call.dead:
            return "cut"
        if call.writes and self.weather.has("full", now):
            return "full"
        if call.binds and self.chance.unit(f"{what} unsure") * 100 < self.weather.unsure:
            return "timed out"
        draw = self.chance.unit(what) * 100
        if draw >= self.weather.bad:
            return ""
        kinds = _OF_WRITES if call.writes else _OF_READS
        return kinds[int(draw / self.weather.bad * len(kinds))]

    def _receive(self, call: "Call", what: str, trouble: str) -> None:
        """The call has arrived: admission sees the Lease as it is now."""
        if call.gone:
            return
        if "/leases" not in call.request.path:
            self.served += 1
        if trouble == "full":
            self._answer(call, what, 500, _status(500, "InternalError", "etcdserver: mvcc: database space exceeded"))
            return
        if trouble == "busy":
            self._answer(call, what, 429, _status(429, "TooManyRequests", "the server has received too many requests"))
            return
        if trouble == "error":
            self._answer(call, what, 500, _status(500, "InternalError", "etcdserver: leader changed"))
            return
        refused = self._admit(call)
        if refused is not None:
            self._answer(call, what, refused.code, _status(refused.code, refused.reason, refused.message))
            return
        bound = min(BOUND, _seconds(call.request.query.get("timeout", "")))
        took = self.chance.between(what, 0.0005, 0.01)
        if trouble == "late":
            took = self.chance.between(what, 0.05, bound)
        elif trouble in ("timed out", "silent", "lost answer"):
            took = self.chance.unit(what) * bound
        if trouble == "timed out":
            early = self.chance.between(what, 0, took)
            answer = _status(500, "InternalError", "etcdserver: request timed out")
            self.kernel.after(early, lambda: self._answer(call, what, 500, answer))
        elif trouble == "lost answer":
            self.kernel.after(self.chance.between(what, 0, took * 2), call.cut)
        if trouble == "twice":
            self.kernel.after(self.chance.between(what, 0, bound), lambda: self._again(call))
        quiet = trouble in ("timed out", "silent", "lost answer")
        late = 0.01
        if trouble == "overtaken" or self.weather.has("slow answers", self.kernel.now):
            late = 8.0
        self.kernel.after(min(took, bound), lambda: self._do(call, what, quiet=quiet, late=late))

    def _again(self, call: "Call") -> None:
        """The same write once more; nobody hears of it."""
        self._execute(call)

    def _do(self, call: "Call", what: str, *, quiet: bool, late: float) -> None:
        code, body = self._execute(call)
        if not quiet:
            self.kernel.after(self.chance.between(what, 0, late), lambda: call.answer(code, body))

    def _answer(self, call: "Call", what: str, code: int, body: bytes) -> None:
        self.kernel.after(self.chance.between(what, 0, 0.01), lambda: call.answer(code, body))

    def _admit(self, call: "Call") -> Refused | None:
        """The ValidatingAdmissionPolicy of Bindings and moves (deploy/manifests/34-leader.yaml)."""
        if not (self.policy and call.writes) or "/leases" in call.request.path:
            return None
        notes: dict[str, str] = _body(call.request)["metadata"].get("annotations") or {}
        spec: Object = self.store.lease["spec"] if self.store.lease else {}
        said = notes.get(_LEADER, "")
        if said == f"{spec.get('holderIdentity')}/{spec.get('leaseTransitions')}":
            return None
        return Refused(403, "Forbidden", f"the lead {said} is over")

    def _execute(self, call: "Call") -> tuple[int, bytes]:
        try:
            return 200, self._done(call.request)
        except Refused as e:
            return e.code, _status(e.code, e.reason, e.message)

    def _done(self, request: HTTPRequest) -> bytes:
        store, path = self.store, request.path
        if request.query.get("watch"):
            return b""
        if "/leases" in path:
            return self._lease(request)
        if path in store.collections:
            return self._list(path, request)
        parts = path.split("/")  # /api/v1/namespaces/default/pods/NAME[/binding]
        name = parts[6]
        if request.method == "POST" and parts[-1] == "binding":
            store.bind(name, _body(request))
            return b'{"kind":"Status","status":"Success"}'
        if request.method == "PATCH":
            patch = _body(request)["metadata"]
            uid, version = patch.get("uid", ""), patch.get("resourceVersion", "")
            return _encode(store.update(PODS, name, lambda pod: _merge(pod, patch), uid=uid, version=version))
        return _encode(store.read(PODS, name))

    def _lease(self, request: HTTPRequest) -> bytes:
        if request.method == "GET":
            if self.store.lease is None:
                raise Refused(404, "NotFound", "no lease")
            return _encode(self.store.lease)
        self.store.put_lease(_body(request), create=request.method == "POST")
        return _encode(self.store.lease)

    def _list(self, path: str, request: HTTPRequest) -> bytes:
        limit, token = int(request.query.get("limit", "0")), request.query.get("continue", "")
        if token:
            revision, items = self._pages.pop(token, (0, []))
            if not revision or self.chance.unit("continue") < 0.05:
                raise Refused(410, "Expired", "the continue token is too old")
        else:
            revision, items = self.store.revision, [_encode(o) for _, o in sorted(self.store.collections[path].items())]
        more = ""
        if limit and len(items) > limit:
            more = f"{revision}-{self.served}-{len(items)}"
            self._pages[more] = revision, items[limit:]
            items = items[:limit]
        head = _encode({"resourceVersion": str(revision), **({"continue": more} if more else {})})
        return b'{"metadata":' + head + b',"items":[' + b",".join(items) + b"]}"


_OF_WRITES = ("timed out", "silent", "lost answer", "late", "twice", "transit", "cut", "error", "busy")
_OF_READS = ("overtaken", "transit", "silent", "cut", "error", "busy")


class Call:
    """One exchange. ``gone``: its client waits no more, and its connection is closed."""

    def __init__(self, machine: Machine, request: HTTPRequest, *, dead: bool) -> None:
        self.request = request
        self.dead = dead
        self.gone = False
        self.writes = request.method != "GET"
        self.binds = request.path.endswith("/binding")
        self.result: asyncio.Future[tuple[int, bytes]] = machine.create_future()

    def answer(self, code: int, body: bytes) -> None:
        if not self.result.done():
            self.result.set_result((code, body))

    def cut(self) -> None:
        if not self.result.done():
            self.result.set_exception(Cut("the connection broke"))


class Watch:
    """A stream of events, each told at its time, in order."""

    def __init__(self, server: Server, machine: Machine, path: str) -> None:
        self.path = path
        self._server, self._machine = server, machine
        self._last = 0.0
        self._lines: deque[bytes | None] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self._open = True
        server.kernel.after(290.0, lambda: self._put(None))
        server.kernel.after(_BOOKMARK, self._bookmark)

    def tell(self, event: Event) -> None:
        server = self._server
        lag = server.chance.unit("lag") * 2 * server.weather.lag
        self._last = max(self._last, server.kernel.now + lag)
        server.kernel.at(self._last, lambda: self._put(event.line))

    def cut(self) -> None:
        self._put(None)

    def stall(self, seconds: float) -> None:
        self._last = max(self._last, self._server.kernel.now + seconds)

    async def pieces(self, silence: float | None) -> AsyncGenerator[bytes, None]:
        while True:
            while not self._lines:
                self._waiter = self._machine.create_future()
                try:
                    async with asyncio.timeout(silence):
                        await self._waiter
                except TimeoutError:
                    raise Unreachable(f"not a byte within {silence} s") from None
            line = self._lines.popleft()
            if line is None:
                return
            yield line

    def close(self) -> None:
        self._open = False
        self._server.unwatch(self)

    def _put(self, line: bytes | None) -> None:
        if not self._open:
            return
        if line is None:
            self._server.unwatch(self)
            self._open = False
        self._lines.append(line)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _bookmark(self) -> None:
        if self._open:
            meta = {"metadata": {"resourceVersion": str(self._server.store.revision)}}
            line = _encode({"type": "BOOKMARK", "object": meta}) + b"\n"
            self.tell(Event(self._server.store.revision, line))
            self._server.kernel.after(_BOOKMARK, self._bookmark)


class PlayedHttp:
    """Stands where ``fractile.kube.http.Http`` stands. ``dead``: the machine is gone, nothing leaves it."""

    def __init__(self, server: Server, machine: Machine) -> None:
        self._server, self._machine = server, machine
        self.dead = False

    async def send(self, request: HTTPRequest) -> "PlayedAnswer":
        if self.dead:
            raise Cut("the machine is gone")
        call = Call(self._machine, request, dead=self.dead)
        self._server.take(call)
        try:
            code, body = await call.result
        finally:
            call.gone = True
        if code == 200 and request.query.get("watch"):
            try:
                revision = int(request.query.get("resourceVersion", "0"))
                return PlayedAnswer(code, b"", self._server.watch(self._machine, request.path, revision))
            except Refused as e:
                return PlayedAnswer(e.code, _status(e.code, e.reason, e.message), None)
        return PlayedAnswer(code, body, None)

    async def close(self) -> None:
        """Nothing is kept."""

    def where(self, request: HTTPRequest) -> str:
        return f"{request.method} {request.path}"


class PlayedAnswer:
    """Stands where ``fractile.kube.http.HTTPResponse`` stands."""

    def __init__(self, status: int, body: bytes, watch: Watch | None) -> None:
        self.status, self.reason, self.headers = status, "", dict[str, str]()
        self._body, self._watch = body, watch

    async def read(self) -> bytes:
        return self._body

    def pieces(self, *, silence: float | None = None) -> AsyncGenerator[bytes, None]:
        assert self._watch is not None
        return self._watch.pieces(silence)

    def close(self) -> None:
        if self._watch is not None:
            self._watch.close()


def _target(request: HTTPRequest) -> str:
    return str(_body(request)["target"]["name"]) if request.path.endswith("/binding") else ""


def _body(request: HTTPRequest) -> Object:
    found: Any = _decode(request.body or b"{}")
    return found


def _merge(pod: Object, patch: Object) -> None:
    notes: dict[str, str | None] = patch.get("annotations") or {}
    for key, value in notes.items():
        if value is None:
            pod["metadata"]["annotations"].pop(key, None)
        else:
            pod["metadata"]["annotations"][key] = value


def _seconds(text: str) -> float:
    return float(text.removesuffix("s")) if text else BOUND


def _status(code: int, reason: str, message: str) -> bytes:
    return _encode({"kind": "Status", "code": code, "reason": reason, "message": message})
