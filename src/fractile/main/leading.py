"""Which replica leads, and what the others answer meanwhile (docs/operate/high-availability.md).

    candidate ──the lease is ours──> term: rebuild, ready, serve ──lease lost, or told to end──> candidate, or the end

Everything that holds cluster state is rebuilt for each term, so that no earlier state can be acted on. The HTTP server
outlives terms; what it serves is switched. A term's writes pass its ``fence``, which checks immediately before each
write for how many seconds the lease still surely holds.
"""

import secrets
import socket
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import cast

import click
import msgspec
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from fractile.debug.figures import figures
from fractile.errors import FractileError
from fractile.extender.verbs import Verb
from fractile.globalplacement.counts import DecisionTally, QueueDepths
from fractile.kube.client import BIND_SECONDS, KubeClient
from fractile.kube.credentials import Credentials
from fractile.kube.lease import DEFAULT, LeaderElector, LeaseTiming
from fractile.kube.pacing import Clock
from fractile.ledger.ledger import Ledger
from fractile.main.grouped import grouped
from fractile.metrics.control_plane import page
from fractile.metrics.exposition import OPENMETRICS, TEXT, wants_openmetrics
from fractile.watch.waiting_pods import WaitingPods
from fractile.wire.kubernetes import extender as wire
from fractile.wire.output import debug_state

DEFAULT_LEASE = "fractile-system/fractile-control-plane"

QUIET = BIND_SECONDS + 0.5  # after a change of the lease nothing is admitted for this long: old writes may still arrive

WAITS = "this replica of Fractile does not lead; send the request to the one that is ready"


class LeaseOptions(msgspec.Struct, frozen=True):
    """``source``: NAMESPACE/NAME of the Lease; "" when there is only one replica, which then always leads."""

    source: str = ""
    identity: str = ""
    timing: LeaseTiming = DEFAULT


def lease_options(source: str, seconds: int) -> LeaseOptions:
    """The options, with an identity that is unique to this start of the program."""
    timing = LeaseTiming(duration=seconds, deadline=seconds * 2 / 3, retry=seconds / 6)
    return LeaseOptions(source, f"{socket.gethostname()}_{secrets.token_hex(4)}", timing)


def _source(_context: click.Context, _parameter: click.Parameter, text: str) -> str:
    namespace, slash, name = text.partition("/")
    if text and not (namespace and slash and name and "/" not in name):
        raise click.BadParameter(f"{text!r} is not NAMESPACE/NAME; give for instance {DEFAULT_LEASE}")
    return text


_OPTIONS = (
    click.option(
        "--lease",
        default=DEFAULT_LEASE,
        show_default=True,
        metavar="NAMESPACE/NAME",
        callback=_source,
        help="Lease by which one of several replicas leads (docs/operate/high-availability.md); "
        '"" when there is only one.',
    ),
    click.option(
        "--lease-seconds",
        type=click.IntRange(3, 60),
        default=int(DEFAULT.duration),
        show_default=True,
        metavar="SECONDS",
        help="How long after a leader's last answer another replica takes over.",
    ),
)


def _lease(lease: str, lease_seconds: int) -> LeaseOptions:
    return lease_options(lease, lease_seconds)


options = grouped("lease", _OPTIONS, _lease)


class LeadTerm(msgspec.Struct, frozen=True):
    """One term of leadership. ``left``: seconds for which it surely lasts; ``name`` stands in every Binding, "" without
    a lease. ``reached`` is called with the steps of a bind. ``quiet``: seconds after which no write of the former
    leader can arrive. ``unsettled`` is called at the end with whether a write of this term may still arrive."""

    left: Callable[[], float]
    name: str = ""
    reached: Callable[[str], None] = lambda step: None
    quiet: float = 0.0
    unsettled: Callable[[bool], None] = lambda unsettled: None

    def leading(self) -> bool:
        return self.left() > 0


class BindObserver:
    """Sees every step of a bind, and every look at the lease before a write. This one does nothing; those of
    ``lab.cluster.interrupted`` end or stop the process there."""

    def reached(self, step: str) -> None:
        """Called with the step's name: "assumed", "bound"."""

    def left(self, seconds: float) -> float:
        """Called with how long the lease surely lasts; returns the same."""
        return seconds


class ServedStage:
    """What the HTTP server serves now: the application of a term, or that of a waiting replica; and ``debug``, which
    outlives both. ``tally``: the counts of a waiting replica."""

    def __init__(
        self, debug: ASGIApp | None = None, tally: DecisionTally | None = None, *, insecure_open: bool = False
    ) -> None:
        self._debug = debug
        self._idle = _idle(tally or DecisionTally(), insecure_open=insecure_open)
        self._shown: ASGIApp | None = None
        self._verbs: dict[bytes, Verb] = {}

    def show(self, app: ASGIApp, verbs: Iterable[Verb] = ()) -> None:
        """``verbs``: those that need no application (``serving.direct``)."""
        self._shown = app
        self._verbs = {verb.path.encode(): verb for verb in verbs}

    def clear(self) -> None:
        self._shown = None
        self._verbs = {}

    def verb(self, path: bytes) -> Verb | None:
        """The verb of that path, if one is served now."""
        return self._verbs.get(path)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._debug is not None and scope["type"] == "http" and scope["path"] == debug_state.PATH:
            await self._debug(scope, receive, send)
        else:
            await (self._shown or self._idle)(scope, receive, send)


async def in_terms(
    lease: LeaseOptions, access: Credentials, work: Callable[[LeadTerm], Awaitable[None]], observer: BindObserver
) -> None:
    """Wait for the lead, work, and repeat, until cancelled; the lease is then released."""
    if not lease.source:
        await work(LeadTerm(lambda: float("inf"), reached=observer.reached))
        return
    namespace, _, name = lease.source.partition("/")
    async with KubeClient(access, timeout=5.0) as client:  # only for the lease: no fence, no waiting for other calls
        elector = LeaderElector(client, namespace=namespace, name=name, identity=lease.identity, timing=lease.timing)
        await one_after_another(elector, work, left=lambda: observer.left(elector.left), reached=observer.reached)


async def one_after_another(
    elector: LeaderElector,
    work: Callable[[LeadTerm], Awaitable[None]],
    *,
    left: Callable[[], float],
    reached: Callable[[str], None] = lambda step: None,
    clock: Clock = time.monotonic,
) -> None:
    """Run one term after the other, until cancelled. Leftover tasks of an earlier term cannot write in a later one."""
    while True:
        lead = _Lead(left, clock)

        async def one(lead: _Lead = lead) -> None:
            quiet = QUIET if elector.inherited else 0.0
            lead.inherit(quiet)
            try:
                await work(LeadTerm(lead.left, elector.term, reached, quiet, lead.leave))
            finally:
                lead.over = True

        await elector.run(one, settled=lead.settled)


class _Lead:
    """The state of one term, while it lasts and when it is over."""

    def __init__(self, left: Callable[[], float], clock: Clock) -> None:
        self._left = left
        self._clock = clock
        self._unsettled = False
        self._quiet_from = float("-inf")
        self.over = False

    def left(self) -> float:
        return 0.0 if self.over else self._left()

    def inherit(self, quiet: float) -> None:
        """Record that writes of the former leader may still arrive for so many seconds."""
        self._quiet_from = self._clock() + quiet

    def leave(self, unsettled: bool) -> None:
        self._unsettled = unsettled

    def settled(self) -> bool:
        """Whether the next leader need not wait: neither for our writes, nor for those that we had to wait for."""
        return not self._unsettled and self._clock() >= self._quiet_from


def sentence_of(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The first error that a person can act on, if there is one; otherwise the whole group."""
    known = group.subgroup(FractileError)
    error: BaseException = known or group
    while known is not None and isinstance(error, BaseExceptionGroup):
        error = cast("BaseExceptionGroup[BaseException]", error).exceptions[0]
    return error


def _idle(tally: DecisionTally, *, insecure_open: bool, prefix: str = "/scheduler") -> Starlette:
    """The application of a waiting replica: alive, not ready; kube-scheduler's calls are refused."""

    async def verb(request: Request) -> Response:
        error = wire.encode([]) if request.url.path.endswith("/prioritize") else wire.encode_error(WAITS)
        # kube-scheduler keeps its connections, and a Service sends only new ones to the current leader.
        return Response(error, media_type="application/json", headers={"connection": "close"})

    async def healthz(_: Request) -> Response:
        return PlainTextResponse("ok")

    async def waits(_: Request) -> Response:
        return PlainTextResponse(WAITS, 503)

    no_cards, no_pods = Ledger(time.monotonic), WaitingPods()

    async def metrics(request: Request) -> Response:
        """Not ready and without data: sums over the replicas are those of the leader."""
        openmetrics = wants_openmetrics(request.headers.get("accept", ""))
        counted = tally.figures(QueueDepths())
        made = page(
            figures(no_cards, no_pods, ready=False, quota_problem="", placement=counted, insecure_open=insecure_open)
        )
        kind = OPENMETRICS if openmetrics else TEXT
        return Response(made.render(openmetrics=openmetrics), headers={"content-type": kind})

    verbs = [Route(f"{prefix}/{name}", verb, methods=["POST"]) for name in ("filter", "prioritize", "preempt", "bind")]
    return Starlette(routes=[*verbs, Route("/healthz", healthz), Route("/readyz", waits), Route("/metrics", metrics)])
