"""``GET /debug/state`` of the control plane: for clients that the API server allows, or with a local file's token.

    no token 401 ─ not over TLS 403 ─ token of --debug-token-file 200 ─ the API server: stranger 401, no 403, silent 503

Failure rule: closed. A token is never logged, and none is accepted from a connection that others can read.
"""

import ipaddress
import logging
import math
import secrets
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click
import msgspec
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.types import Receive, Scope, Send

from fractile.debug.debug_state import LeadParts, believed
from fractile.debug.process_state import process_state
from fractile.errors import SetupError
from fractile.kube.credentials import Credentials
from fractile.kube.pacing import Clock
from fractile.kube.review import May, Reviewer
from fractile.main.leading import LeadTerm, LeaseOptions
from fractile.wire.output import debug_state
from fractile.wire.output.debug_state import PATH, ControlPlaneState, LeadState

Command = TypeVar("Command", bound=Callable[..., Any])

log = logging.getLogger(__name__)

_WHO = "a token whose user may `get` the path /debug/state (ClusterRole fractile:debug)"
_ANSWERS = {
    May.STRANGER: (401, "the API server does not accept this token, or the token has expired; create a new one"),
    May.NO: (403, f"the API server does not allow it; this needs {_WHO}"),
    May.UNKNOWN: (
        503,
        "the API server does not answer, so the token cannot be checked; try again, or use the token of "
        "--debug-token-file",
    ),
}


class Debug:
    """An ASGI application. ``state`` is what it shows; a term of leadership sets its own."""

    def __init__(
        self,
        reviewer: Reviewer,
        *,
        token_file: Path | None,
        idle: Callable[[float], ControlPlaneState],
        clock: Clock = time.monotonic,
    ) -> None:
        self._reviewer = reviewer
        self._token_file = token_file
        self._idle = idle
        self._clock = clock
        self._began = clock()
        self._shown: Callable[[], ControlPlaneState] | None = None

    def lead(self, term: LeadTerm, known: LeadParts, ready: Callable[[], bool]) -> None:
        """Show the state of that term."""
        self.show(lambda: _led(self._idle(self._uptime()), term, known, ready=ready()))

    def show(self, state: Callable[[], ControlPlaneState]) -> None:
        self._shown = state

    def clear(self) -> None:
        self._shown = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await (await self._answer(Request(scope, receive)))(scope, receive, send)

    async def _answer(self, request: Request) -> Response:
        if request.method not in ("GET", "HEAD"):
            return _refusal(405, "this page is read-only")
        status, why = await self._why_not(request)
        if why:
            log.warning("debug refused client=%r status=%d reason=%r", _client(request), status, why)
            return _refusal(status, why)
        log.info("debug shown client=%r", _client(request))
        state = self._shown() if self._shown else self._idle(self._uptime())
        return Response(debug_state.encode(state), media_type="application/json", headers={"cache-control": "no-store"})

    def _uptime(self) -> float:
        return round(self._clock() - self._began, 3)

    async def _why_not(self, request: Request) -> tuple[int, str]:
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        token = token.strip()
        if scheme.lower() != "bearer" or not token:
            return 401, f"this needs `Authorization: Bearer TOKEN` with {_WHO}"
        if not (token.isascii() and token.isprintable()):
            return 401, "this is not a token"
        if request.url.scheme != "https" and not _is_local(request):
            return (
                403,
                "a token must not be sent unencrypted; serve with --tls-cert, or send the request from the machine "
                "itself",
            )
        if self._is_local_token(token):
            return 200, ""
        return _ANSWERS.get(await self._reviewer.may(token, path=PATH), (200, ""))

    def _is_local_token(self, token: str) -> bool:
        """Compare with the file, which is read each time because it may be changed at any time."""
        if self._token_file is None:
            return False
        try:
            known = self._token_file.read_bytes().strip()
        except OSError as e:
            log.warning("debug token unreadable file=%s reason=%r", self._token_file, e.strerror)
            return False
        return len(known) >= _SHORTEST and secrets.compare_digest(known, token.encode())


_SHORTEST = 16  # bytes of a token in a file


def option(command: Command) -> Command:
    """Add the option of the command line."""
    added = click.option(
        "--debug-token-file",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="A client with the token in this file may read /debug/state, even while the API server is unavailable.",
    )
    return added(command)


def debugging(access: Credentials, lease: LeaseOptions, token_file: Path | None) -> Debug:
    """The debug page. Raises SetupError when the token file cannot be used."""
    check_token_file(token_file)

    def idle(uptime: float) -> ControlPlaneState:
        lead = LeadState(lease=lease.source, identity=lease.identity, leading=False, ready=False)
        return ControlPlaneState(time=time.time(), process=process_state(uptime=uptime), lead=lead)

    return Debug(Reviewer(access), token_file=token_file, idle=idle)


def _led(idle: ControlPlaneState, term: LeadTerm, known: LeadParts, *, ready: bool) -> ControlPlaneState:
    left = term.left()
    lead = msgspec.structs.replace(
        idle.lead,
        leading=left > 0,
        ready=ready,
        left=round(left, 3) if math.isfinite(left) else None,
        term=term.name,
    )
    return believed(known, lead=lead, process=idle.process, time=idle.time, now=time.monotonic())


def check_token_file(file: Path | None) -> None:
    """Raises SetupError when the file cannot be used."""
    if file is None:
        return
    try:
        known = file.read_bytes().strip()
    except OSError as e:
        raise SetupError(f"--debug-token-file {file} cannot be read: {e.strerror}") from None
    if len(known) < _SHORTEST:
        raise SetupError(f"--debug-token-file {file} holds fewer than {_SHORTEST} characters; write a longer token")


def _refusal(status: int, why: str) -> Response:
    headers = {"www-authenticate": "Bearer"} if status == 401 else {}
    return PlainTextResponse(f"{why}\n", status, headers={**headers, "connection": "close"})


def _client(request: Request) -> str:
    return request.client.host if request.client else ""


def _is_local(request: Request) -> bool:
    try:
        return ipaddress.ip_address(_client(request)).is_loopback
    except ValueError:
        return False
