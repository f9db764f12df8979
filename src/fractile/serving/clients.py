"""Which callers may use the verbs of the extender: those with a certificate of an authority in ``--client-ca``.

A caller without one could have any waiting GPU pod bound to any node, with our rights and past kube-scheduler's own
checks (docs/operate/security.md); ``--insecure-open-extender`` permits that. Probes and metrics stay open: kubelet and
Prometheus have no certificate of that authority, and change nothing. Failure rule: closed; a certificate of another
authority, or an expired one, ends the handshake.
"""

import asyncio
import logging
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import msgspec
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from fractile.door.seldom import Seldom
from fractile.errors import SetupError
from fractile.wire.output.debug_state import PATH

OPEN = frozenset({"/healthz", "/readyz", "/metrics", PATH})  # the last requires a token (``main.debug_page``)
_SHOWN = 200  # characters of a path
_CALLER = "fractile.caller"  # in the state of a connection

OPEN_TO_ALL = (
    "the extender is open (--insecure-open-extender): "
    "any client that reaches the port may bind waiting GPU pods to any node"
)
_CLOSED = (
    "the extender answers only callers with a certificate: give --client-ca FILE (PEM, the CA that signed "
    "kube-scheduler's), --client-name system:kube-scheduler, --tls-cert and --tls-key, and give kube-scheduler its "
    "certificate with `fractile install-scheduler` or `scheduler-config` (--tls-cert, --tls-key); "
    'docs/operate/security.md, "The extender\'s door", has each step. --insecure-open-extender leaves it open to '
    "any client that reaches the port"
)

log = logging.getLogger(__name__)


class Clients(msgspec.Struct, frozen=True):
    """``ca``: the authorities, PEM. ``names``: common names that may call; empty: all from those authorities."""

    ca: tuple[Path, ...]
    names: tuple[str, ...] = ()

    def trust(self, context: ssl.SSLContext) -> None:
        """Make the context accept certificates of the authorities. Raises SetupError when a file holds none."""
        for file in self.ca:
            try:
                context.load_verify_locations(file)
            except (OSError, ValueError) as e:
                raise SetupError(f"{file} holds no PEM certificate of a CA ({e})") from None

    def refusal(self, caller: str | None) -> str:
        """Why a caller with that name in its certificate is refused; "" if it is not. None: it has no certificate."""
        if caller is None:
            return (
                "no client certificate: only callers with a certificate from a CA in --client-ca are answered; to give "
                "kube-scheduler a certificate, see docs/operate/install.md, section 3"
            )
        if self.names and caller not in self.names:
            return f"{caller[:80]!r} is not among the names in --client-name (docs/operate/security.md)"
        return ""


def clients_of(ca: tuple[Path, ...], names: tuple[str, ...], *, insecure: bool) -> Clients | None:
    """The allowed callers; None: all, which must be requested explicitly. Raises SetupError for a wrong combination."""
    if insecure and ca:
        raise SetupError("--client-ca and --insecure-open-extender exclude each other; leave one of them out")
    if names and not ca:
        raise SetupError("--client-name needs --client-ca, which names the authorities of those certificates")
    if not ca and not insecure:
        raise SetupError(_CLOSED)
    return Clients(ca, names) if ca else None


class Introduced(msgspec.Struct, frozen=True):
    """The common name of the caller's certificate; None: it has shown none."""

    name: str | None

    @property
    def state(self) -> dict[str, str | None]:
        """The state for the requests of its connection."""
        return {_CALLER: self.name}


def introduced(transport: asyncio.BaseTransport) -> Introduced:
    """The caller at the other end of the transport."""
    tls = transport.get_extra_info("ssl_object")
    found: Mapping[str, Any] | None = tls.getpeercert() if tls is not None else None
    return Introduced(_common_name(found) if found else None)


class KnownOnly:
    """The application, for allowed callers only."""

    def __init__(self, app: ASGIApp, clients: Clients) -> None:
        self._app = app
        self._clients = clients
        self._refused = Seldom()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in OPEN or not (why := self._refusal(scope)):
            await self._app(scope, receive, send)
            return
        tell_refused(self._refused, scope["path"], scope.get("client"), why)
        await PlainTextResponse(f"{why}\n", 403)(scope, receive, send)

    def _refusal(self, scope: Scope) -> str:
        return self._clients.refusal(cast("dict[str, str | None]", scope.get("state", {})).get(_CALLER))


def tell_refused(refused: Seldom, path: str, client: object, why: str) -> None:
    """Log refusals at most once in ten seconds, with their number."""
    if count := refused.happened():
        log.warning("caller refused path=%r client=%r reason=%r count=%d", path[:_SHOWN], client, why, count)


def _common_name(certificate: Mapping[str, Any]) -> str:
    subject = cast("tuple[tuple[tuple[str, str], ...], ...]", certificate.get("subject", ()))
    return next((value for part in subject for key, value in part if key == "commonName"), "")
