"""Keeps kube-scheduler's connections: a new one is a TLS handshake, 1 to 2 ms of processor time on each side.

kube-scheduler sends filter and prioritize one after the other, and any number of binds in parallel, each over its own
connection. It keeps two idle connections, Go's default, and closes further idle ones (net/http,
Transport.MaxIdleConnsPerHost), only to open another with the next bind. So the answer of a bind is delayed briefly when
it would create a third idle connection: usually the next bind comes within milliseconds and takes one of them.
The delay harms nothing: scheduling continues meanwhile, and the pod is bound already.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable

KEPT = 2  # idle connections that kube-scheduler keeps
PATIENCE = 0.5  # seconds; the number of binds in flight varies from one tenth of a second to the next
# kube-scheduler closes an idle connection after 90 s. If we closed it first, its next call could meet the closing
# connection, and it does not repeat a POST: the pod would have to wait for its next attempt.
IDLE = 120  # seconds


class KeptConnections:
    """Delays answers of binds. ``come`` and ``gone`` must be called for all connections that may be kube-scheduler's:
    those of verbs, and unused ones, which it opened for a call that then took another. Connections for metrics or
    health do not count: each would keep one of kube-scheduler's from becoming idle.
    """

    def __init__(self, *, patience: float = PATIENCE) -> None:
        self._connections = set[object]()
        self._patience = patience
        self._binds = 0  # under way
        self._held: deque[asyncio.Future[None]] = deque()

    def come(self, connection: object) -> None:
        """The connection is open."""
        self._connections.add(connection)

    def gone(self, connection: object) -> None:
        """The connection is closed, or is not kube-scheduler's."""
        self._connections.discard(connection)
        self._let_go()

    async def held(self, bind: Awaitable[bytes]) -> bytes:
        """The answer of the bind, once it may be given."""
        self._binds += 1
        self._let_go()
        under_way = True
        try:
            answer = await bind
            under_way = False
            await self._end()
        finally:
            if under_way:
                self._binds -= 1
        return answer

    def _room(self) -> bool:
        """Whether one more connection may become idle. Those of filter and prioritize count: they soon will be."""
        return len(self._connections) - self._binds < KEPT

    def _let_go(self) -> None:
        """A bind has taken a connection, or one is gone: release one held answer."""
        while self._held and self._room():
            first = self._held[0]
            waited = not first.done()  # otherwise it timed out or was cancelled, and its task has not run since
            self._answer(first)
            if waited:
                return

    async def _end(self) -> None:
        """End a bind: immediately if there is room, else when another releases it or when patience is over."""
        if self._room():
            self._binds -= 1
            return
        loop = asyncio.get_running_loop()
        turn = loop.create_future()
        self._held.append(turn)
        timer = loop.call_later(self._patience, self._answer, turn)
        try:
            await turn
        finally:
            timer.cancel()
            self._answer(turn)

    def _answer(self, turn: asyncio.Future[None]) -> None:
        """Release a held answer; only the first call counts."""
        if turn in self._held:
            self._held.remove(turn)
            self._binds -= 1
            if not turn.done():
                turn.set_result(None)
