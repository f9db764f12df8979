"""The webhook's own HTTPS server, next to the extender's in one event loop.

Every client in the cluster's network can connect, so connections are limited in number, in what they send, and in the
time until their request is complete: the extender shares this process's descriptors. Callers may keep a connection open
between requests, as the API server does: its own idle limit is 90 s and ours is longer, so that we do not close the
connection while it sends.

A review of usual size is answered where its bytes arrive (``serving.direct``): a pod's creation causes two reviews.
"""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Generator
from functools import partial

import msgspec
import uvicorn

from fractile.admission.app import WebhookApp, application, verbs
from fractile.admission.intake import Intake, IntakeLimits
from fractile.door.door import HandshakeTiming
from fractile.door.places import PlaceLimits
from fractile.serving import bounded
from fractile.serving.bounded import Bodies, Bounded, Strangers
from fractile.serving.direct import Find
from fractile.serving.door_server import Connections, DoorServer

USUAL = 256 * 2**10  # bytes of a review, which may have two objects; a pod is 2 to 20 kB
_AROUND = 2**20  # bytes of a request in addition to its body: head, chunk framing and trailers


class WebhookLimits(msgspec.Struct, frozen=True):
    """Connections, bytes and seconds."""

    connections: int = 512
    handshake: float = 5.0
    first_request: float = 5.0  # from the handshake to the end of its head
    head: int = 64 * 2**10
    idle: int = 120


async def serve(
    webhook: WebhookApp,
    listening: socket.socket,
    context: ssl.SSLContext,
    *,
    limits: WebhookLimits | None = None,
    bounds: IntakeLimits | None = None,
) -> None:
    """Serve on the socket until cancelled; requests in flight get three seconds to end."""
    server = _server(webhook, context, limits or WebhookLimits(), bounds or IntakeLimits())
    try:
        await server.serve(sockets=[listening])
    except asyncio.CancelledError:
        await server.shutdown(sockets=[listening])
        raise


def _server(webhook: WebhookApp, context: ssl.SSLContext, limits: WebhookLimits, bounds: IntakeLimits) -> "Server":
    intake = Intake(bounds)
    config = uvicorn.Config(
        app=application(webhook, intake),
        ws="none",
        log_config=None,
        access_log=False,
        lifespan="off",
        timeout_keep_alive=limits.idle,
        timeout_graceful_shutdown=3,
    )
    config.load()
    config.ssl = context
    make = partial(
        Bounded,
        find=_without_query(verbs(webhook).get),
        limits=bounded.ConnectionLimits(head=limits.head, first=limits.first_request, body_seconds=bounds.seconds),
        bodies=Bodies(here=min(USUAL, bounds.body), through=bounds.body + _AROUND, room=intake),
        strangers=Strangers(answered=limits.connections),  # the intake limits them
    )
    most = limits.connections  # the API server is one peer, or comes from the address of a node
    return Server(
        config,
        Connections(make),
        rules=PlaceLimits(strangers=most, known=0, each=most),
        timing=HandshakeTiming(handshake=limits.handshake),
    )


class Server(DoorServer):
    """Serves until it is cancelled; the program handles signals."""

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield


def _without_query(find: Find) -> Find:
    """Ignore the query: the API server adds its timeout to the path."""
    return lambda url: find(url.partition(b"?")[0])
