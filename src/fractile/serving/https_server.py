"""An HTTPS server inside a program's own event loop: wrong options give one-sentence errors, signals end it."""

import asyncio
import contextlib
import os
import signal
import socket
import ssl
from collections.abc import Generator
from functools import partial
from pathlib import Path

import uvicorn
from starlette.types import ASGIApp

from fractile.door.places import PlaceLimits
from fractile.errors import SetupError
from fractile.extender.verbs import MAX_BODY
from fractile.serving.bounded import Bounded, ConnectionLimits, Strangers, extender_bodies
from fractile.serving.certificate_files import LOOK_AGAIN, Pair
from fractile.serving.clients import Clients, KnownOnly
from fractile.serving.connections import IDLE, KeptConnections
from fractile.serving.direct import Find
from fractile.serving.door_server import Connections, DoorServer

_BACKLOG = 2048


class Options:
    """Where to serve and with which certificate. Raises SetupError, which names the ``option``, if that cannot work."""

    def __init__(
        self,
        listen: str,
        cert: Path | None,
        key: Path | None,
        *,
        option: str = "--listen",
        clients: Clients | None = None,
    ) -> None:
        host, separator, port = listen.rpartition(":")
        if not (separator and port.isascii() and port.isdigit() and int(port) < 2**16):
            raise SetupError(f"{option} {listen!r} is not HOST:PORT; write for example 0.0.0.0:8443")
        if (cert is None) != (key is None):
            raise SetupError("--tls-cert and --tls-key go together; give both or neither")
        self.address = (host.strip("[]"), int(port))
        self.listen = listen
        self.option = option
        self.pair = Pair(cert, key) if cert is not None and key is not None else None
        self.clients: Clients | None = None
        self.look_again = LOOK_AGAIN
        self.limits: ConnectionLimits | None = None
        self.rules: PlaceLimits | None = None
        if self.pair is not None:
            self.pair.check()
        self.set_clients(clients)

    def set_clients(self, clients: Clients | None) -> None:
        """Set the allowed callers. Raises SetupError when they cannot be verified."""
        if clients is not None:
            _check_clients(clients, tls=self.pair is not None)
        self.clients = clients


async def serve(app: ASGIApp, options: Options, find: Find = lambda path: None) -> None:
    """Serve until SIGTERM or SIGINT; requests in flight get three seconds to end. ``find``: verbs by path that need no
    application."""
    clients = options.clients
    with listening_socket(options) as listening:
        config = uvicorn.Config(
            app=KnownOnly(app, clients) if clients else app,
            proxy_headers=False,
            ws="none",
            ssl_ca_certs=str(clients.ca[0]) if clients else None,
            ssl_cert_reqs=ssl.CERT_OPTIONAL if clients else ssl.CERT_NONE,  # probes have no certificate
            ssl_certfile=options.pair.cert if options.pair else None,
            ssl_keyfile=options.pair.key if options.pair else None,
            log_config=None,
            access_log=False,
            lifespan="off",
            timeout_graceful_shutdown=3,
            timeout_keep_alive=IDLE,
        )
        config.load()
        if clients and config.ssl:
            clients.trust(config.ssl)
        server = _Server(config, _connections(find, clients, options.limits), rules=options.rules)
        async with asyncio.TaskGroup() as tasks:
            renewing = _renewing(tasks, config.ssl, options)
            await server.serve(sockets=[listening])
            if renewing:
                renewing.cancel()


def _renewing(tasks: asyncio.TaskGroup, context: ssl.SSLContext | None, options: Options) -> asyncio.Task[None] | None:
    if context is None or options.pair is None:
        return None
    return tasks.create_task(options.pair.renew(context, every=options.look_again))


def _connections(find: Find, clients: Clients | None, limits: ConnectionLimits | None) -> Connections:
    """Without certificates every caller is a stranger, and kube-scheduler keeps connections before their first use."""
    return Connections(
        partial(
            Bounded,
            find=find,
            kept=KeptConnections(),
            clients=clients,
            limits=limits or (ConnectionLimits(last=True) if clients else ConnectionLimits(first=IDLE)),
            bodies=extender_bodies(MAX_BODY),
            strangers=Strangers(),
        )
    )


class _Server(DoorServer):
    """Handles signals itself: uvicorn would end the process by the signal before our loops have ended."""

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.handle_exit, number, None)
        try:
            yield
        finally:
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.remove_signal_handler(number)


def _check_clients(clients: Clients, *, tls: bool) -> None:
    if not tls:
        raise SetupError("--client-ca needs --tls-cert and --tls-key: client certificates are presented over TLS only")
    clients.trust(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))


def listening_socket(options: Options) -> socket.socket:
    """A listening socket. Raises SetupError when that fails."""
    family = socket.AF_INET6 if ":" in options.address[0] else socket.AF_INET
    try:
        listening = socket.create_server(options.address, family=family, backlog=_BACKLOG)
    except OSError as e:
        why = os.strerror(e.errno) if e.errno and e.errno > 0 else str(e)
        raise SetupError(
            f"cannot listen on {options.listen}: {why}; give another address or port with {options.option}"
        ) from None
    # Connections inherit it. asyncio sets it only on sockets that name their protocol, which these do not; without it
    # the second part of an answer waits 40 ms for a Go client's delayed acknowledgement of the first.
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listening
