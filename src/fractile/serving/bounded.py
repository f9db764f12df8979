"""A connection that is limited in everything: bytes, seconds, and the memory of unanswered requests.

    head ──────────> body ──────────> answer ──────────> taken ──> idle, or closed
     5 s, 64 KiB      5 s, announced    60 s               10 s
                      and reserved                         while the peer takes nothing of it

Callers without a required certificate may not send a body: up to 2 MiB are read and discarded, so that a kube-scheduler
without a configured certificate can read why it is refused; a longer body is refused from its head.
Failure rule: closed. Exceeding a limit costs only the connection that does so.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

import msgspec
from uvicorn.config import Config
from uvicorn.server import ServerState

from fractile.door.door import Guest
from fractile.door.places import ConnectionPlace
from fractile.door.room import Room
from fractile.door.seldom import Seldom
from fractile.extender.verbs import USUAL_BODY
from fractile.extender.verbs import Verb as ExtenderVerb
from fractile.serving.clients import Clients, tell_refused
from fractile.serving.connections import KeptConnections
from fractile.serving.direct import Direct, Find, Verb

_AROUND = 64 * 2**10  # bytes of a request in addition to its body and head: chunk framing and trailers
_CLOSE = (b"connection", b"close")
_BUSY = "too many requests at once; try again"


class ConnectionLimits(msgspec.Struct, frozen=True):
    """Bytes and seconds of one connection. ``first``: from the handshake to the end of its first head. ``last``: the
    application's answer to a stranger ends the connection, so that it is taken within ``taking_seconds`` or dropped: a
    TLS transport does not tell how much is left of a page that was written in one go."""

    head: int = 64 * 2**10
    first: float = 5.0
    head_seconds: float = 5.0
    body_seconds: float = 5.0
    answer_seconds: float = 60.0
    taking_seconds: float = 10.0
    thrown_away: int = 2 * 2**20
    last: bool = False


class _Bytes(Protocol):
    """``hold`` is called before the bytes come, and returns the function that releases them; None: there is no room."""

    def hold(self, size: int, place: ConnectionPlace, /) -> Callable[[], None] | None: ...


class Bodies(msgspec.Struct, frozen=True):
    """Bytes. ``here``: of a body that is gathered here; ``through``: of one that the application reads, for which
    ``flat`` are reserved. ``room``: of all bodies being gathered; ``large``: the same for those above ``here``, each of
    which may have ``largest``."""

    here: int
    through: int
    room: _Bytes
    large: _Bytes | None = None
    largest: int = 0
    flat: int = 0


class Strangers:
    """Limits for all callers without a certificate together: requests in progress, and answers that are not taken."""

    def __init__(self, *, answered: int = 32, untaken: int = 16) -> None:
        self.answered = set[object]()
        self.refused = Seldom()
        self._most = answered
        self._untaken: dict[Guest, None] = {}
        self._most_untaken = untaken

    def has_room(self) -> bool:
        return len(self.answered) < self._most

    def waits(self, guest: Guest) -> None:
        """Record that a guest's answer is not taken; above the limit, the longest waiting connection is dropped."""
        self._untaken.setdefault(guest, None)
        if len(self._untaken) > self._most_untaken:
            first = next(iter(self._untaken))
            del self._untaken[first]
            first.drop()

    def takes(self, guest: Guest) -> None:
        self._untaken.pop(guest, None)


class Bounded(Direct):
    """``guest`` is its place at the door; ``strangers`` is shared by all connections of a server."""

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
        *,
        find: Find,
        guest: Guest,
        limits: ConnectionLimits,
        bodies: Bodies,
        strangers: Strangers,
        kept: KeptConnections | None = None,
        clients: Clients | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop, find=find, kept=kept, clients=clients)
        self._guest = guest
        self._limits = limits
        self._bodies = bodies
        self._strangers = strangers
        self._known = False
        self._give: Callable[[], None] | None = None  # releases the bytes that its request holds
        self._large: Callable[[bytearray], Awaitable[bytes]] | None = None
        self._received = 0  # bytes of the current request
        self._most = limits.head
        self._whole = bytearray()  # a large body
        self._thrown = False  # the body of this request is discarded
        self._again = False  # not the first request

    # ── the connection ───────────────────────────────────────────────────────────────────────────────────────────────

    def connection_made(self, transport: asyncio.Transport) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]  # uvicorn's
        super().connection_made(transport)
        self._known = self._clients is not None and self._allowed
        self._guest.opened(transport, known=self._known)
        if not self._known:
            self._guest.within(self._limits.first)

    def connection_lost(self, exc: Exception | None) -> None:
        self._done()
        self._strangers.takes(self._guest)
        self._guest.left()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._over:
            return
        self._received += len(data)
        super().data_received(data)
        if self._received > self._most and not self.transport.is_closing():
            self.transport.abort()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._guest.within(self._limits.taking_seconds)
        if not self._known:
            self._strangers.waits(self._guest)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._guest.calm()
        self._strangers.takes(self._guest)

    # ── a request ────────────────────────────────────────────────────────────────────────────────────────────────────

    def on_message_begin(self) -> None:
        cycle = self.cycle
        if cycle is not None and not cycle.response_complete:  # pyright: ignore[reportUnnecessaryComparison]  # None at first
            self._over = True  # our callers never send a request before the answer to the last one
            self.transport.abort()
            raise ValueError("pipelined")  # the parser stops
        super().on_message_begin()
        if not self._busy:
            self._most = self._received + self._limits.head
            if self._known or self._again or self._limits.first > self._limits.head_seconds:
                self._guest.within(self._limits.head_seconds)

    def on_headers_complete(self) -> None:
        if self._busy:
            return
        length = self._length()
        self._most = self._limits.head + _AROUND + self._bodies.through
        self._guest.within(self._limits.body_seconds)
        if self._allowed or length == 0:
            self._taken_in()
        elif length is None or length > self._limits.thrown_away:
            self._refuse_caller(413, "; and its body is too large")
        else:
            self._thrown = True
            self._most = self._limits.head + _AROUND + length

    def on_body(self, body: bytes) -> None:
        if self._over or self._thrown:
            return
        if self._large is not None:
            self._whole += body
            return
        super().on_body(body)

    def on_message_complete(self) -> None:
        if self._busy:
            return
        self._received = 0
        self._again = True
        self._guest.asked()
        self._guest.within(self._limits.answer_seconds)
        if self._over:
            return
        if self._thrown:
            self._refuse_caller(403)
        elif self._large is not None:
            self._answer_large()
        else:
            if self._verb is not None:
                self._done()
            super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        if not self.transport.is_closing():
            super().send_400_response(msg)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._answered()

    def _taken_in(self) -> None:
        """Accept a request of an allowed caller, or one without a body."""
        if not self._known and not self._strangers.has_room():
            self._refuse(503, _BUSY)
            return
        ends = self._limits.last and not self._known
        if ends:
            self.headers.append(_CLOSE)  # uvicorn adds the same to its answer
        super().on_headers_complete()
        if ends and self._verb is None and not self._over:
            self.cycle.keep_alive = False

    def _asked(self) -> Verb | None:
        """The verb if there is room for its body; a request without room is refused before its body comes."""
        verb = super()._asked()
        if verb is None:
            return self._left_to_application()
        length = self._length() or 0
        if length > self._bodies.here:
            return self._unusual(verb, length)
        if not self._reserve(self._bodies.room, length):
            return self._left_to_application()
        self._most = self._limits.head + _AROUND + length
        return verb

    def _left_to_application(self) -> None:
        """Leave the request to the application; it holds ``flat`` bytes, whatever it sends."""
        flat = self._bodies.flat if self._length() != 0 else 0
        if flat and not self._reserve(self._bodies.room, flat):
            self._refuse(503, _BUSY)
        elif not self._known:
            self._strangers.answered.add(self)

    def _unusual(self, verb: Verb, length: int) -> Verb | None:
        """Handle a body that is larger than usual; the application handles those of a webhook."""
        room = self._bodies.large
        if room is None:
            return self._left_to_application()
        large = verb.large if isinstance(verb, ExtenderVerb) else None
        if large is None or length > self._bodies.largest:
            self._too_large(verb)
        elif not self._reserve(room, length):
            self._refuse(503, _BUSY)
        else:
            self._most = self._limits.head + _AROUND + length
            self._large = large
            return verb
        return None

    def _answer_large(self) -> None:
        large, self._large, self._verb = self._large, None, None
        assert large is not None
        body, self._whole = self._whole, bytearray()
        self._busy = True
        task = self.loop.create_task(self._later(large(body)))
        task.add_done_callback(self.tasks.discard)
        self.tasks.add(task)

    def _answer(self, body: bytes) -> None:
        super()._answer(body)
        self._answered()

    def _answered(self) -> None:
        """The whole answer is written; if the peer has not taken it yet, its time limit stays."""
        self._done()
        if self.transport.is_closing():
            self._guest.within(self._limits.taking_seconds)
        elif not self.flow.write_paused:
            self._guest.calm()

    # ── refusals ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def _too_large(self, verb: Verb) -> None:
        assert isinstance(verb, ExtenderVerb)
        self._last = True
        self._over = True
        self._answer(verb.too_large())

    def _refuse_caller(self, status: int, more: str = "") -> None:
        assert self._clients is not None
        why = f"{self._clients.refusal(self._caller)}{more}"
        tell_refused(self._strangers.refused, self.url.decode("ascii", "replace"), self.client, why)
        self._refuse(status, why)

    def _refuse(self, status: int, text: str) -> None:
        self._over = True
        if self.transport.is_closing():
            return
        body = f"{text}\n".encode()
        reason = {403: "Forbidden", 413: "Content Too Large", 503: "Service Unavailable"}[status]
        retry = "retry-after: 1\r\n" if status == 503 else ""
        head = f"HTTP/1.1 {status} {reason}\r\ncontent-type: text/plain; charset=utf-8\r\n{retry}connection: close\r\n"
        self.transport.write(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
        self.transport.close()

    # ── bytes ────────────────────────────────────────────────────────────────────────────────────────────────────────

    def _length(self) -> int | None:
        """Announced bytes of the body; None: it comes in chunks, or the length is unknown."""
        headers = dict(self.headers)
        if b"transfer-encoding" in headers:
            return None
        length = headers.get(b"content-length", b"0")
        return int(length) if length.isdigit() and len(length) < 20 else None

    def _reserve(self, room: _Bytes, size: int) -> bool:
        self._done()
        self._give = room.hold(size, self._guest)
        return self._give is not None

    def _done(self) -> None:
        """Release everything that its request holds."""
        self._strangers.answered.discard(self)
        give, self._give = self._give, None
        if give is not None:
            give()


def extender_bodies(largest: int) -> Bodies:
    """Limits of the extender: several small bodies at a time, and one large body, such as 5,000 whole nodes."""
    return Bodies(
        here=USUAL_BODY,
        through=USUAL_BODY,
        room=Room(16 * USUAL_BODY),
        large=Room(largest),
        largest=largest,
        flat=USUAL_BODY,
    )
