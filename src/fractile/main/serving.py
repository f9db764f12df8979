"""An HTTPS server inside a program's own event loop: errors of its options are sentences, a signal ends it in order."""

import asyncio
import contextlib
import logging
import os
import signal
import socket
import ssl
from collections.abc import Generator
from pathlib import Path

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from fractile.errors import SetupError
from fractile.main.clients import Clients, Introduced, KnownOnly
from fractile.main.connections import IDLE, Kept, joined

_BACKLOG = 2048
_LOOK_AGAIN = 30.0  # seconds between two looks at the certificate's files; kubelet renews mounted Secrets once a minute

log = logging.getLogger(__name__)


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
        self.cert = cert
        self.key = key
        self.clients = clients
        self.look_again = _LOOK_AGAIN
        if cert is not None and key is not None:
            _check(cert, key)
        if clients is not None:
            _check_clients(clients, tls=cert is not None)


async def serve(app: ASGIApp, options: Options) -> None:
    """Serve until SIGTERM or SIGINT; requests in flight get three seconds to end."""
    clients = options.clients
    kept = Kept(app, lambda: len(server.server_state.connections))
    with listening_socket(options) as listening:
        config = uvicorn.Config(
            app=KnownOnly(kept, clients.names) if clients else kept,
            http=joined(Introduced if clients else HttpToolsProtocol),
            ssl_ca_certs=str(clients.ca) if clients else None,
            ssl_cert_reqs=ssl.CERT_OPTIONAL if clients else ssl.CERT_NONE,  # probes bring none
            ssl_certfile=options.cert,
            ssl_keyfile=options.key,
            log_config=None,
            access_log=False,
            lifespan="off",
            timeout_graceful_shutdown=3,
            timeout_keep_alive=IDLE,
        )
        config.load()
        server = _Server(config)
        async with asyncio.TaskGroup() as tasks:
            renewing = tasks.create_task(_renewed(config.ssl, options)) if config.ssl else None
            await server.serve(sockets=[listening])
            if renewing:
                renewing.cancel()


async def _renewed(context: ssl.SSLContext, options: Options) -> None:
    """Read the certificate again whenever its file has changed: connections made from then on get the new one. A pair
    that does not fit together, as while one of two files is written, changes nothing."""
    cert, key = options.cert, options.key
    assert cert is not None
    assert key is not None
    seen = _version(cert, key)
    while True:
        await asyncio.sleep(options.look_again)
        if (now := _version(cert, key)) == seen:
            continue
        try:
            _check(cert, key)
            context.load_cert_chain(cert, key)
        except (OSError, ValueError, SetupError) as e:
            log.warning("certificate not renewed file=%s reason=%s", cert, e)
            continue
        seen = now
        log.info("certificate renewed file=%s", cert)


def _version(cert: Path, key: Path) -> tuple[bytes, bytes] | None:
    try:
        return cert.read_bytes(), key.read_bytes()
    except OSError:
        return None


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


def _check(cert: Path, key: Path) -> None:
    for file in (cert, key):
        if not file.is_file():
            raise SetupError(f"{file} does not exist; give the PEM file of the serving certificate or key")
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(cert, key, password=b"")
    except (OSError, ValueError) as e:
        raise SetupError(f"{cert} and {key} are not a PEM certificate and its key without a password ({e})") from None


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
