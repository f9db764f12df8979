"""An HTTPS server inside a program's own event loop: errors of its options are sentences, a signal ends it in order."""

import asyncio
import contextlib
import os
import signal
import socket
import ssl
from collections.abc import Generator
from pathlib import Path

import uvicorn
from starlette.types import ASGIApp

from fractile.errors import SetupError

_BACKLOG = 2048


class Options:
    """Where to serve and with which certificate; SetupError, which names the ``option``, when that cannot work."""

    def __init__(self, listen: str, cert: Path | None, key: Path | None, *, option: str = "--listen") -> None:
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
        if cert is not None and key is not None:
            _check(cert, key)


async def serve(app: ASGIApp, options: Options) -> None:
    """Serve until SIGTERM or SIGINT; requests in flight get three seconds to end."""
    with listening_socket(options) as listening:
        config = uvicorn.Config(
            app=app,
            ssl_certfile=options.cert,
            ssl_keyfile=options.key,
            log_config=None,
            access_log=False,
            lifespan="off",
            timeout_graceful_shutdown=3,
        )
        await _Server(config).serve(sockets=[listening])


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
