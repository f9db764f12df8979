"""Accepts connections, and spends nothing on a connection before its first bytes arrive.

    accepted ──first bytes──> waits for its turn ──TLS handshake──> protocol
       │ a socket only          │ rate limited           │ memory, 1 to 2 ms of the processor
       └───────────── dropped when it is too slow, or when newer ones need its place ──────────────┘

uvloop's and asyncio's own servers begin a handshake for every connection, without a limit. Failure rule: an accept that
fails (no descriptors left) drops the oldest stranger, and is retried shortly.
"""

import asyncio
import logging
import socket
import ssl
from asyncio import Task, TimerHandle
from collections.abc import Callable

import msgspec

from fractile.door.places import ConnectionPlace, PlaceLimits, Places, peer_of
from fractile.door.seldom import HANDSHAKES
from fractile.door.turns import WaitingLine

_AT_ONCE = 64  # connections accepted before the loop runs other callbacks
_AGAIN = 0.1  # seconds after an accept that failed

log = logging.getLogger(__name__)


class HandshakeTiming(msgspec.Struct, frozen=True):
    """``handshake``: seconds from the accept to its end. ``pace``: handshakes a second, ``burst``: how many may begin
    together."""

    handshake: float = 5.0
    pace: float = 400.0
    burst: float = 32.0


class Guest(ConnectionPlace):
    """A connection, to which its protocol reports its state. Repeated calls are harmless."""

    __slots__ = ("_door", "_end", "_task", "_timer", "_waiting", "transport")

    def __init__(self, door: "Door", sock: socket.socket, peer: str) -> None:
        super().__init__(peer)
        self._door = door
        self._waiting: socket.socket | None = sock
        self._task: Task[None] | None = None
        self._timer: TimerHandle | None = None
        self.transport: asyncio.WriteTransport | None = None

    def opened(self, transport: asyncio.WriteTransport, *, known: bool) -> None:
        """The handshake is over."""
        self.transport = transport
        self.calm()
        if known:
            self._door.introduce(self)

    def asked(self) -> None:
        """A whole request has arrived."""
        self._door.places.touch(self)

    def left(self) -> None:
        """The connection is closed."""
        self.calm()
        self._door.places.leave(self)

    def drop(self) -> None:
        self.left()
        if self._waiting is not None:
            self._door.forget(self, self._waiting)
            self._waiting = None
        elif self.transport is not None:
            self.transport.abort()
        elif self._task is not None:
            self._task.cancel()

    def within(self, seconds: float) -> None:
        """Drop it after ``seconds`` unless ``calm`` is called before."""
        self.calm()
        self._timer = self._door.loop.call_later(seconds, self.drop)

    def calm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def taken(self) -> socket.socket | None:
        """Hand its socket to the code that serves it; None when it has been dropped."""
        sock, self._waiting = self._waiting, None
        return sock

    def served_by(self, task: "Task[None]") -> None:
        self._task = task


class Door:
    """A listening socket. ``make`` makes the protocol of a connection. ``context``: with TLS. ``close`` and
    ``wait_closed`` as in asyncio's servers; open connections are not closed."""

    def __init__(
        self,
        listening: socket.socket,
        make: Callable[[Guest], asyncio.Protocol],
        *,
        context: ssl.SSLContext | None = None,
        rules: PlaceLimits | None = None,
        timing: HandshakeTiming | None = None,
    ) -> None:
        self.places = Places(rules or PlaceLimits())
        self.loop = asyncio.get_running_loop()
        self._listening = listening
        self._make = make
        self._context = context
        self._timing = timing or HandshakeTiming()
        self._turns = WaitingLine[Guest]()
        self._first = WaitingLine[Guest]()  # from addresses of known callers: before all others
        self._credit = self._timing.burst
        self._counted = self.loop.time()
        self._next: TimerHandle | None = None
        self._tasks = set[Task[None]]()
        self._closed = False

    def open(self) -> None:
        self._listening.setblocking(False)
        self.loop.add_reader(self._listening.fileno(), self._accept)

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self.loop.remove_reader(self._listening.fileno())
        if self._next is not None:
            self._next.cancel()
        for place in self.places.all():
            if isinstance(place, Guest) and place.transport is None:
                place.drop()

    async def wait_closed(self) -> None:
        """Returns immediately: there is nothing to wait for."""

    def introduce(self, guest: Guest) -> None:
        self._drop(self.places.introduce(guest))

    def forget(self, guest: Guest, sock: socket.socket) -> None:
        """Close a connection that is not served: a flood must leave nothing behind."""
        self._turns.leave(guest)
        self._first.leave(guest)
        self.loop.remove_reader(sock.fileno())
        sock.close()

    def _drop(self, places: list[ConnectionPlace]) -> None:
        for place in places:
            log.debug("connection dropped peer=%s known=%s", place.peer, place.is_known)
            place.drop()

    def _accept(self) -> None:
        for _ in range(_AT_ONCE):
            try:
                sock, address = self._listening.accept()
            except (BlockingIOError, InterruptedError):
                return
            except ConnectionError:
                continue  # the peer has already disconnected
            except OSError as e:
                self._pause(e)
                return
            self._come(sock, address)

    def _pause(self, error: OSError) -> None:
        log.warning("no connection accepted reason=%s", error)
        if (oldest := self.places.oldest()) is not None:
            self._drop([oldest])
        self.loop.remove_reader(self._listening.fileno())
        self.loop.call_later(_AGAIN, self._resume)

    def _resume(self) -> None:
        if not self._closed:
            self.open()

    def _come(self, sock: socket.socket, address: object) -> None:
        sock.setblocking(False)
        guest = Guest(self, sock, peer_of(address))
        guest.within(self._timing.handshake)
        self._drop(self.places.come(guest))
        if self._context is None:
            self._serve(guest)
        else:
            self.loop.add_reader(sock.fileno(), self._spoke, guest, sock)

    def _spoke(self, guest: Guest, sock: socket.socket) -> None:
        """The first bytes have arrived."""
        self.loop.remove_reader(sock.fileno())
        (self._first if self.places.is_home(guest.peer) else self._turns).wait(guest)
        self._give_turns()

    def _give_turns(self) -> None:
        """Begin as many handshakes as the pace allows now; schedule the others."""
        now = self.loop.time()
        self._credit = min(self._timing.burst, self._credit + (now - self._counted) * self._timing.pace)
        self._counted = now
        while (turns := self._first or self._turns) and self._credit >= 1:
            self._credit -= self._serve(turns.next())
        if turns and self._next is None:
            self._next = self.loop.call_later((1 - self._credit) / self._timing.pace, self._later)

    def _later(self) -> None:
        self._next = None
        self._give_turns()

    def _serve(self, guest: Guest) -> bool:
        """Returns False if it has been dropped meanwhile."""
        sock = guest.taken()
        if sock is None:
            return False
        task = self.loop.create_task(self._handshake(guest, sock))
        guest.served_by(task)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return True

    async def _handshake(self, guest: Guest, sock: socket.socket) -> None:
        tls = self._context is not None
        seconds = self._timing.handshake if tls else None
        try:
            await self.loop.connect_accepted_socket(
                lambda: self._make(guest),
                sock,
                ssl=self._context,
                ssl_handshake_timeout=seconds,
                ssl_shutdown_timeout=seconds,
            )
        except (OSError, TimeoutError) as e:  # ssl.SSLError is an OSError
            _tell(guest, e)
            guest.left()
        except asyncio.CancelledError:
            guest.left()
            sock.close()  # in case no transport owns it yet


def _tell(guest: Guest, error: Exception) -> None:
    """Log a TLS failure, such as a certificate of another authority; a peer that only hangs up is logged at debug."""
    if not isinstance(error, ssl.SSLError) or isinstance(error, (ssl.SSLEOFError, ssl.SSLZeroReturnError)):
        log.debug("no connection peer=%s reason=%s", guest.peer, error)
    elif count := HANDSHAKES.happened():
        log.warning("TLS handshake failed peer=%s reason=%r count=%d", guest.peer, str(error), count)
