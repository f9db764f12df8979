"""Who may call the verbs of the extender: with ``--client-ca``, whoever has a certificate of that authority.

A caller without one could have any waiting pod bound to any node, by our rights, past kube-scheduler's own checks
(docs/security.md). Probes and metrics stay open: kubelet and Prometheus bring no certificate of that authority, and
change nothing. Failure rule: closed; a certificate of another authority, or one that has expired, ends the handshake.
"""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import msgspec
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from fractile.wire.debug_state import PATH

OPEN = frozenset({"/healthz", "/readyz", "/metrics", PATH})  # the last asks for a token (main.debugging)
_CALLER = "fractile.caller"  # in the state of a connection

log = logging.getLogger(__name__)


class Clients(msgspec.Struct, frozen=True):
    """``ca``: the authority, PEM. ``names``: common names that may call; empty: every one of that authority."""

    ca: Path
    names: tuple[str, ...] = ()


class Introduced(HttpToolsProtocol):
    """A connection that remembers the common name of the caller's certificate; None: it has brought none."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]  # uvicorn's
        super().connection_made(transport)
        tls = transport.get_extra_info("ssl_object")
        found: Mapping[str, Any] | None = tls.getpeercert() if tls is not None else None
        self.app_state = {**self.app_state, _CALLER: _common_name(found) if found else None}


class KnownOnly:
    """The application, for callers that may call it."""

    def __init__(self, app: ASGIApp, names: Sequence[str] = ()) -> None:
        self._app = app
        self._names = frozenset(names)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in OPEN or not (why := self._refusal(scope)):
            await self._app(scope, receive, send)
            return
        log.warning("caller refused path=%r client=%r reason=%r", scope["path"], scope.get("client"), why)
        await PlainTextResponse(f"{why}\n", 403)(scope, receive, send)

    def _refusal(self, scope: Scope) -> str:
        caller = cast("dict[str, str | None]", scope.get("state", {})).get(_CALLER)
        if caller is None:
            return "this needs a client certificate of the authority in --client-ca (docs/security.md)"
        if self._names and caller not in self._names:
            return f"{caller[:80]!r} is none of the callers of --client-name"
        return ""


def _common_name(certificate: Mapping[str, Any]) -> str:
    subject = cast("tuple[tuple[tuple[str, str], ...], ...]", certificate.get("subject", ()))
    return next((value for part in subject for key, value in part if key == "commonName"), "")
