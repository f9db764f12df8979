"""Keeps kube-scheduler's connections: a new one is a TLS handshake, 1 to 2 ms of processor time here and as much there.

kube-scheduler sends filter and prioritize one after the other, and any number of binds at the same time, each over a
connection of its own. Of those that are idle it keeps two, Go's default, and closes every further one (net/http,
Transport.MaxIdleConnsPerHost), only to open another with the next bind. So the answer of a bind waits for a moment
where it would make a third idle connection: as a rule the next bind comes within milliseconds and takes one of them.
Nobody waits for the answer of a bind, since scheduling goes on meanwhile; the pod is bound already.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, cast

from starlette.types import ASGIApp, Message, Receive, Scope, Send

KEPT = 2  # idle connections that kube-scheduler keeps
PATIENCE = 0.5  # seconds; in flight are more and fewer binds from one tenth of a second to the next
# kube-scheduler gives an idle connection up after 90 s. If we were first, its next call could meet the closing
# connection, and it repeats no POST: the pod would have to wait for its next attempt.
IDLE = 120  # seconds

_BIND = "/bind"


class Kept:
    """The application, with answers of binds held back. ``connections``: how many there are, whoever has them."""

    def __init__(self, app: ASGIApp, connections: Callable[[], int], *, patience: float = PATIENCE) -> None:
        self._app = app
        self._connections = connections
        self._patience = patience
        self._binds = 0  # that are under way
        self._held: deque[asyncio.Future[None]] = deque()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not scope["path"].endswith(_BIND):
            await self._app(scope, receive, send)
            return
        self._binds += 1
        self._let_go()
        under_way = True

        async def held(message: Message) -> None:
            nonlocal under_way
            if under_way:
                under_way = False
                await self._end()
            await send(message)

        try:
            await self._app(scope, receive, held)
        finally:
            if under_way:
                self._binds -= 1

    def _room(self) -> bool:
        """Whether one more connection may become idle. Those of filter and prioritize count as idle: they soon are."""
        return self._connections() - self._binds < KEPT

    def _let_go(self) -> None:
        """A bind has taken a connection: one that is held may give its own back."""
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


class Joined:
    """A transport that sends what is written to it in one go as soon as the loop comes round: uvicorn writes head and
    body of an answer apart, which would be two records of TLS and two system calls here, and two reads there."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._parts: list[bytes] = []

    def write(self, data: bytes) -> None:
        if not self._parts:
            asyncio.get_running_loop().call_soon(self._flush)
        self._parts.append(data)

    def writelines(self, parts: Iterable[bytes]) -> None:
        for part in parts:
            self.write(part)

    def close(self) -> None:
        self._flush()
        self._transport.close()

    def _flush(self) -> None:
        parts, self._parts = self._parts, []
        if parts:
            self._transport.write(b"".join(parts))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


def joined(protocol: type[asyncio.Protocol]) -> type[asyncio.Protocol]:
    """The protocol, with answers through ``Joined``."""

    def connection_made(self: asyncio.Protocol, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        protocol.connection_made(self, cast("asyncio.Transport", Joined(transport)))

    return type("JoinedProtocol", (protocol,), {"connection_made": connection_made})
