"""The webhook's own HTTPS server, beside the extender's in one event loop.

Everybody in the cluster's network can connect, so connections are bounded in number, in what they send, and in the time
until they have said what they want: the extender shares this process's descriptors. Callers that keep a connection open
between requests, as the API server does, may: its own limit is 90 s, ours is longer, so it is not us who closes while
it sends.

A review of usual size is answered where its bytes arrive (``main.direct``): a pod that is created is two of them.
"""

import asyncio
import contextlib
import socket
import ssl
from asyncio import TimerHandle
from collections.abc import Callable, Generator
from functools import partial
from typing import Any, cast

import msgspec
import uvicorn
from uvicorn.config import Config
from uvicorn.server import ServerState

from fractile.admission.app import Webhook, application, verbs
from fractile.admission.intake import Bounds, Intake
from fractile.main.direct import Direct, Find

USUAL = 256 * 2**10  # bytes of a review, which may have two objects; a pod is 2 to 20 kB
_AROUND = 2**20  # bytes of a request beside its body: head, chunks and what comes after them


class Limits(msgspec.Struct, frozen=True):
    """Connections, bytes and seconds."""

    connections: int = 512
    handshake: float = 5.0
    first_request: float = 5.0  # from the handshake to the end of its head
    head: int = 64 * 2**10
    idle: int = 120


async def serve(
    webhook: Webhook,
    listening: socket.socket,
    context: ssl.SSLContext,
    *,
    limits: Limits | None = None,
    bounds: Bounds | None = None,
) -> None:
    """Serve on the socket until cancelled; requests in flight get three seconds to end."""
    server = Server(webhook, context, limits or Limits(), bounds or Bounds())
    try:
        await server.serve(sockets=[listening])
    except asyncio.CancelledError:
        await server.shutdown(sockets=[listening])
        raise


class Server(uvicorn.Server):
    """Serves until it is cancelled; signals are the program's business."""

    def __init__(self, webhook: Webhook, context: ssl.SSLContext, limits: Limits, bounds: Bounds) -> None:
        intake = Intake(bounds)
        self._context = context
        self._limits = limits
        make = partial(Bounded, limits=limits, bounds=bounds, intake=intake, find=verbs(webhook).get)
        self._protocol: Callable[..., asyncio.Protocol] = make
        super().__init__(
            uvicorn.Config(
                app=application(webhook, intake),
                http=cast("type[asyncio.Protocol]", make),
                log_config=None,
                access_log=False,
                lifespan="off",
                timeout_keep_alive=limits.idle,
                timeout_graceful_shutdown=3,
            )
        )

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """As uvicorn does, but with a time limit for the handshake, which it has none for."""
        await self.lifespan.startup()
        loop = asyncio.get_running_loop()
        self.servers = [
            await loop.create_server(
                self._connection, sock=one, ssl=self._context, ssl_handshake_timeout=self._limits.handshake
            )
            for one in sockets or ()
        ]
        self.started = True

    def _connection(self) -> asyncio.Protocol:
        return self._protocol(self.config, self.server_state, self.lifespan.state)


class Bounded(Direct):
    """A connection that is closed when there are too many, when it does not ask in time, and when it sends too much."""

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
        *,
        limits: Limits,
        bounds: Bounds,
        intake: Intake,
        find: Find,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop, find=_without_query(find))
        self._limits = limits
        self._bounds = bounds
        self._intake = intake
        self._deadline: TimerHandle | None = None
        self._reserved = 0  # bytes of the intake, for a body that is answered here
        self._received = 0  # bytes of a request
        self._in_head = True

    def connection_made(self, transport: asyncio.Transport) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]  # uvicorn's
        super().connection_made(transport)
        if len(self.connections) > self._limits.connections:
            transport.abort()
            return
        self._within(self._limits.first_request)

    def data_received(self, data: bytes) -> None:
        self._received += len(data)
        super().data_received(data)
        most = self._limits.head if self._in_head else self._bounds.body + _AROUND
        if self._received > most:
            self.transport.abort()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_head = True

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._in_time()
        super().on_headers_complete()
        if self._reserved:
            self._within(self._bounds.seconds)

    def on_message_complete(self) -> None:
        self._received = 0
        if self._reserved:
            self._in_time()
            self._release()
        super().on_message_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        self._in_time()
        self._release()
        super().connection_lost(exc)

    def _asked(self) -> Callable[[bytes], Any] | None:
        """Only what is usual and has room; of all else the application says what is wrong with it."""
        verb = super()._asked()
        if verb is None:
            return None
        length = int(dict(self.headers)[b"content-length"])
        if length > min(USUAL, self._bounds.body) or not self._intake.take(length):
            return None
        self._reserved = length
        return verb

    def _release(self) -> None:
        self._intake.give(self._reserved)
        self._reserved = 0

    def _within(self, seconds: float) -> None:
        self._deadline = self.loop.call_later(seconds, self.transport.abort)

    def _in_time(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


def _without_query(find: Find) -> Find:
    """The API server adds its timeout to the path."""
    return lambda url: find(url.partition(b"?")[0])
