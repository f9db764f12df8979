"""The webhook's own HTTPS server, beside the extender's in one event loop.

Everybody in the cluster's network can connect, so connections are bounded in number, and in the time until they have
said what they want: the extender shares this process's descriptors. Callers that keep a connection open between
requests, as the API server does, may: its own limit is 90 s, ours is longer, so it is not us who closes while it sends.
"""

import asyncio
import contextlib
import socket
import ssl
from asyncio import TimerHandle
from collections.abc import Generator

import msgspec
import uvicorn
from starlette.applications import Starlette
from uvicorn.protocols.http.h11_impl import H11Protocol


class Limits(msgspec.Struct, frozen=True):
    """Connections, and seconds."""

    connections: int = 512
    handshake: float = 5.0
    first_request: float = 5.0  # from the handshake to the end of its head
    idle: int = 120


class Server(uvicorn.Server):
    """Serves until it is cancelled; signals are the program's business. ``serve(sockets=[...])``."""

    def __init__(self, app: Starlette, context: ssl.SSLContext, limits: Limits | None = None) -> None:
        self.limits = limits or Limits()
        bounds = self.limits

        class Bounded(_Bounded):
            limits = bounds

        super().__init__(
            uvicorn.Config(
                app=app,
                http=Bounded,
                log_config=None,
                access_log=False,
                lifespan="off",
                timeout_keep_alive=self.limits.idle,
                timeout_graceful_shutdown=3,
            )
        )
        self._context = context
        self._protocol = Bounded

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """As uvicorn does, but with a time limit for the handshake, which it has none for."""
        await self.lifespan.startup()
        loop = asyncio.get_running_loop()
        self.servers = [
            await loop.create_server(
                self._connection, sock=one, ssl=self._context, ssl_handshake_timeout=self.limits.handshake
            )
            for one in sockets or ()
        ]
        self.started = True

    def _connection(self) -> asyncio.Protocol:
        return self._protocol(config=self.config, server_state=self.server_state, app_state=self.lifespan.state)


class _Bounded(H11Protocol):
    """A connection that is closed when there are too many, or when it does not ask in time."""

    limits = Limits()
    _waiting: TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]  # uvicorn's
        super().connection_made(transport)
        if len(self.connections) > self.limits.connections:
            transport.abort()
            return
        self._waiting = self.loop.call_later(self.limits.first_request, transport.abort)

    def handle_events(self) -> None:
        super().handle_events()
        if self.cycle is not None:  # pyright: ignore[reportUnnecessaryComparison]  # it is, before the first request
            self._asked()

    def connection_lost(self, exc: Exception | None) -> None:
        self._asked()
        super().connection_lost(exc)

    def _asked(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None


async def serve(
    app: Starlette, listening: socket.socket, context: ssl.SSLContext, limits: Limits | None = None
) -> None:
    """Serve on the socket until cancelled; requests in flight get three seconds to end."""
    server = Server(app, context, limits)
    try:
        await server.serve(sockets=[listening])
    except asyncio.CancelledError:
        await server.shutdown(sockets=[listening])
        raise
