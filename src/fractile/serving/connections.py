"""Keeps kube-scheduler's connections: a new one is a TLS handshake, 1 to 2 ms of processor time here and as much there.

kube-scheduler sends filter and prioritize one after the other, and any number of binds at the same time, each over a
connection of its own. Of those that are idle it keeps two, Go's default, and closes every further one (net/http,
Transport.MaxIdleConnsPerHost), only to open another with the next bind. So the answer of a bind waits for a moment
where it would make a third idle connection: as a rule the next bind comes within milliseconds and takes one of them.
Nobody waits for the answer of a bind, since scheduling goes on meanwhile; the pod is bound already.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable

KEPT = 2  # idle connections that kube-scheduler keeps
PATIENCE = 0.5  # seconds; in flight are more and fewer binds from one tenth of a second to the next
# kube-scheduler gives an idle connection up after 90 s. If we were first, its next call could meet the closing
# connection, and it repeats no POST: the pod would have to wait for its next attempt.
IDLE = 120  # seconds


class KeptConnections:
    """Holds answers of binds back. ``come`` and ``gone`` tell it of all connections that may be kube-scheduler's: those
    of verbs, and those that nothing came over yet, which it opened for a call that found another. Who asks for metrics
    or health does not count: each would keep one of kube-scheduler's from being given back.
    """

    def __init__(self, *, patience: float = PATIENCE) -> None:
        self._connections = set[object]()
        self._patience = patience
        self._binds = 0  # that are under way
        self._held: deque[asyncio.Future[None]] = deque()

    def come(self, connection: object) -> None:
        """It is open."""
        self._connections.add(connection)

    def gone(self, connection: object) -> None:
        """It is closed, or somebody else's."""
        self._connections.discard(connection)
        self._let_go()

    async def held(self, bind: Awaitable[bytes]) -> bytes:
        """Its answer, when it may be given."""
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
        """Whether one more connection may become idle. Those of filter and prioritize count as idle: they soon are."""
        return len(self._connections) - self._binds < KEPT

    def _let_go(self) -> None:
        """A bind has taken a connection, or one is gone: one that is held may give its own back."""
        while self._held and self._room():
            first = self._held[0]
            waited = not first.done()  # else it has lost patience, or was given up, and does not know yet
            self._answer(first)
            if waited:
                return

    async def _end(self) -> None:
        """A bind is no longer under way: at once, when another lets it go, or when patience is over."""
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
        """Once for each that is held."""
        if turn in self._held:
            self._held.remove(turn)
            self._binds -= 1
            if not turn.done():
                turn.set_result(None)
