"""An HTTPS server inside a program's own event loop: errors of its options are sentences, a signal ends it in order."""

import asyncio
import contextlib
import os
import signal
import socket
import ssl
from collections.abc import Generator
from pathlib import Path
from typing import cast

import uvicorn
from starlette.types import ASGIApp

from fractile.errors import SetupError
from fractile.main.clients import Clients, KnownOnly
from fractile.main.connections import IDLE, Kept
from fractile.main.direct import Find, direct
from fractile.main.pair import LOOK_AGAIN, Pair

_BACKLOG = 2048


class Options:
    """Where to serve and with which certificate; SetupError, which names the ``option``, when that cannot work."""

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
        self.clients = clients
        self.look_again = LOOK_AGAIN
        if self.pair is not None:
            self.pair.check()
        if clients is not None:
            _check_clients(clients, tls=cert is not None)


async def serve(app: ASGIApp, options: Options, find: Find = lambda path: None) -> None:
    """Serve until SIGTERM or SIGINT; requests in flight get three seconds to end. ``find``: verbs by their path that
    need no application."""
    clients = options.clients
    with listening_socket(options) as listening:
        config = uvicorn.Config(
            app=KnownOnly(app, clients) if clients else app,
            http=cast("type[asyncio.Protocol]", direct(find, Kept(), clients)),
            proxy_headers=False,
            ssl_ca_certs=str(clients.ca) if clients else None,
            ssl_cert_reqs=ssl.CERT_OPTIONAL if clients else ssl.CERT_NONE,  # probes bring none
            ssl_certfile=options.pair.cert if options.pair else None,
            ssl_keyfile=options.pair.key if options.pair else None,
            log_config=None,
            access_log=False,
            lifespan="off",
            timeout_graceful_shutdown=3,
            timeout_keep_alive=IDLE,
        )
        config.load()
        server = _Server(config)
        async with asyncio.TaskGroup() as tasks:
            renewing = _renewing(tasks, config.ssl, options)
            await server.serve(sockets=[listening])
            if renewing:
                renewing.cancel()


def _renewing(tasks: asyncio.TaskGroup, context: ssl.SSLContext | None, options: Options) -> asyncio.Task[None] | None:
    if context is None or options.pair is None:
        return None
    return tasks.create_task(options.pair.renew(context, every=options.look_again))


class _Server(uvicorn.Server):
    """uvicorn's own handling ends the process by the signal that stopped the server, before our loops have ended."""

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
        raise SetupError("--client-ca needs --tls-cert and --tls-key: certificates are shown over TLS only")
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_verify_locations(clients.ca)
    except (OSError, ValueError) as e:
        raise SetupError(f"{clients.ca} holds no PEM certificate of an authority ({e})") from None


def listening_socket(options: Options) -> socket.socket:
    """A socket that listens; SetupError when it cannot."""
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
