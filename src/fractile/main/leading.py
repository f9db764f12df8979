"""Who leads among the replicas, and what the others answer meanwhile (docs/high-availability.md).

    candidate ──the lease is ours──> term: rebuild, ready, serve ──lease lost, or told to end──> candidate, or the end

Everything that knows something of the cluster is made anew for each term, so nothing of an earlier one can be acted on.
The HTTP server outlives terms; what it serves is switched. A term's writes pass its ``fence``: the seconds for which
the lease surely holds, asked right before each.
"""

import os
import secrets
import signal
import socket
from collections.abc import Awaitable, Callable
from typing import cast

import click
import msgspec
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from fractile.errors import FractileError
from fractile.kube.client import KubeClient
from fractile.kube.credentials import Credentials
from fractile.kube.lease import LeaderElector
from fractile.wire import extender as wire

DEFAULT_LEASE = "fractile-system/fractile-control-plane"
PAUSE_AT = "FRACTILE_TEST_PAUSE_AT"  # environment: "allowed"; the process stops itself, once, after a fence let it pass

WAITS = "this replica of fractile waits until it leads; ask the one that is ready"


class LeaseOptions(msgspec.Struct, frozen=True):
    """``source``: NAMESPACE/NAME of the Lease; "" when there is one replica only, which then always leads."""

    source: str = ""
    identity: str = ""


def _lease(_context: click.Context, _parameter: click.Parameter, text: str) -> LeaseOptions:
    namespace, slash, name = text.partition("/")
    if text and not (namespace and slash and name and "/" not in name):
        raise click.BadParameter(f"{text!r} is not NAMESPACE/NAME; give for instance {DEFAULT_LEASE}")
    return LeaseOptions(text, f"{socket.gethostname()}_{secrets.token_hex(4)}")


option = click.option(
    "--lease",
    default=DEFAULT_LEASE,
    show_default=True,
    metavar="NAMESPACE/NAME",
    callback=_lease,
    help='Lease by which one of several replicas leads (docs/high-availability.md); "" when there is never but one.',
)


class Term(msgspec.Struct, frozen=True):
    """One lead. ``left``: seconds for which it surely lasts; ``name`` stands in every Binding, "" without a lease."""

    left: Callable[[], float]
    name: str = ""

    def leading(self) -> bool:
        return self.left() > 0


ALWAYS = Term(lambda: float("inf"))


class Stage:
    """What the HTTP server serves now: the application of a term, or that of a replica that waits."""

    def __init__(self) -> None:
        self._idle = _idle()
        self._shown: ASGIApp | None = None

    def show(self, app: ASGIApp) -> None:
        self._shown = app

    def clear(self) -> None:
        self._shown = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await (self._shown or self._idle)(scope, receive, send)


async def in_terms(options: LeaseOptions, access: Credentials, work: Callable[[Term], Awaitable[None]]) -> None:
    """Wait for the lead, work, and again, until cancelled; the lease is given back then."""
    if not options.source:
        await work(ALWAYS)
        return
    namespace, _, name = options.source.partition("/")
    async with KubeClient(access, timeout=5.0) as client:  # the lease's own: no fence, and no others to wait for
        elector = LeaderElector(client, namespace=namespace, name=name, identity=options.identity)
        left = _watched(lambda: elector.left, os.environ.get(PAUSE_AT, ""))
        while True:
            await elector.run(lambda: work(Term(left, elector.term)))


def sentence_of(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """What a person can act on, if the errors hold such a thing; else all of them."""
    known = group.subgroup(FractileError)
    error: BaseException = known or group
    while known is not None and isinstance(error, BaseExceptionGroup):
        error = cast("BaseExceptionGroup[BaseException]", error).exceptions[0]
    return error


def _watched(left: Callable[[], float], pause: str) -> Callable[[], float]:
    """For tests: the process is stopped between the check and the write, where a kernel may stop it too."""
    if pause != "allowed":
        return left
    paused: list[bool] = []

    def stopping() -> float:
        now = left()
        if not paused:
            paused.append(True)
            os.kill(os.getpid(), signal.SIGSTOP)
        return now

    return stopping


def _idle(prefix: str = "/scheduler") -> Starlette:
    """Alive, not ready; kube-scheduler is told to come again, if it comes here at all."""

    async def verb(request: Request) -> Response:
        error = wire.encode([]) if request.url.path.endswith("/prioritize") else wire.encode_error(WAITS)
        return Response(error, media_type="application/json")

    async def healthz(_: Request) -> Response:
        return PlainTextResponse("ok")

    async def waits(_: Request) -> Response:
        return PlainTextResponse(WAITS, 503)

    verbs = [Route(f"{prefix}/{name}", verb, methods=["POST"]) for name in ("filter", "prioritize", "preempt", "bind")]
    return Starlette(routes=[*verbs, Route("/healthz", healthz), Route("/readyz", waits), Route("/metrics", waits)])
