"""The extender's HTTP side: bodies in, answers out, one log line per decision.

Every answer to kube-scheduler is a 200: it ignores the body of any other status, so the reason would be lost
(evidence/kube-scheduler.md#extender-protocol). Until the ledger is rebuilt each verb answers with an error, which makes
kube-scheduler retry.
"""

import logging
from collections.abc import Awaitable, Callable, Sequence
from itertools import chain
from time import perf_counter, time_ns

import msgspec
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from fractile.debug.trace_steps import Attribute, Trace, TraceStep
from fractile.dialects.table import NAMES, parse_pod
from fractile.errors import FractileError, WireError
from fractile.extender.bind import Binder
from fractile.extender.engine import Engine
from fractile.extender.expected import Expected
from fractile.extender.filter import BEST, filter_nodes
from fractile.extender.large import made_small, with_nodes
from fractile.extender.naming import Naming
from fractile.extender.nominated import keep_room
from fractile.extender.policies import NodePolicies, settled
from fractile.extender.preempt import Preemption
from fractile.extender.score import BINPACK, Ranking, rank, rank_by
from fractile.extender.verbs import USUAL_BODY, Verb
from fractile.globalplacement.placing import Placing
from fractile.ledger.classes import ClassIndex, resolved
from fractile.ledger.ledger import Ledger
from fractile.ledger.node_totals import NodeTotals
from fractile.model.refusal import Refusal
from fractile.model.request import PodRequest
from fractile.model.units import MemoryUnit, PodUID
from fractile.policy.cards.effort import Effort
from fractile.reconcile.nominations import Nominations
from fractile.wire.bounds import check_objects
from fractile.wire.kubernetes import extender as wire
from fractile.wire.kubernetes.extender import (
    AskedPod,
    BindingResult,
    ExtenderArgs,
    FilterResult,
    NodeList,
    PreemptionResult,
)
from fractile.wire.kubernetes.objects import ObjectMeta, Pod

log = logging.getLogger(__name__)

ALL_OF_THE_BEST = Naming()


class Extender:
    """The four verbs, from bytes to bytes. ``ready`` says whether the ledger is rebuilt; ``node_policy`` is the
    cluster's default for pods that name none, used when no ``policies`` are given."""

    def __init__(
        self,
        *,
        ledger: Ledger,
        binder: Binder,
        expected: Expected,
        unit: MemoryUnit,
        ready: Callable[[], bool],
        dialects: frozenset[str] = NAMES,
        node_policy: str = BINPACK,
        classes: ClassIndex | None = None,
        policies: NodePolicies | None = None,
        preemption: Preemption | None = None,
        nominations: Nominations | None = None,
        placing: Placing | None = None,
        trace: Trace | None = None,
        naming: Naming = ALL_OF_THE_BEST,
        undecided: Callable[[PodUID], None] = lambda uid: None,
    ) -> None:
        self._undecided = undecided
        self._naming = naming
        self._trace = trace
        self._placing = placing
        self._preemption = preemption
        self._nominations = nominations
        self._ledger = ledger
        self._classes = ClassIndex(ledger) if classes is None else classes
        self._binder = binder
        self._expected = expected
        self._unit = unit
        self._dialects = dialects
        self._policies = policies or NodePolicies(ledger, Engine(ledger, NodeTotals()), cluster=node_policy)
        self.ready = ready

    def filter(self, body: bytes) -> bytes:
        if not self.ready():
            return wire.encode(FilterResult(error=_NOT_READY))
        started = perf_counter()
        try:
            check_objects(body)
            args = wire.decode_args(body)
            names = wire.names_of(args)
            wire.check_names(names)
        except WireError as e:
            log.warning("filter refused reason=%s", e)
            return wire.encode(FilterResult(error=str(e)))
        assert args.pod is not None
        self._missed(args.pod, names)
        request = resolved(parse_pod(args.pod, self._unit, self._dialects), self._classes)
        result = self._filtered(args.pod, request, names)
        if self._nominations is not None and isinstance(request, PodRequest):
            result = keep_room(result, args.pod, request, self._ledger, self._nominations)
        if isinstance(request, PodRequest) and len(names) > BEST:
            result = self._fewer(args.pod, request, result)
        _log_filter(args, names, result, started)
        if self._trace is not None:
            fit = len(result.node_names or ())
            self._tell("filter", args.pod, started, error=_first_reason(result), asked=len(names), fit=fit)
        return wire.encode(_in_the_form_asked(args, result))

    def prioritize(self, body: bytes) -> bytes:
        """Score the nodes. kube-scheduler swallows errors here; an empty list contributes nothing."""
        if not self.ready():
            return wire.encode([])
        started = perf_counter()
        try:
            check_objects(body)
            args = wire.decode_args(body)
            names = wire.names_of(args)
            wire.check_names(names)
        except WireError as e:
            log.warning("prioritize refused reason=%s", e)
            return wire.encode([])
        assert args.pod is not None
        request = resolved(parse_pod(args.pod, self._unit, self._dialects), self._classes)
        if not isinstance(request, PodRequest):
            return wire.encode_scores(names, [0] * len(names))
        ranking = self._ranked(args.pod, request, names)
        if ranking.best:
            self._expected.put(request.uid, ranking.best, ranking.memory, ranking.coming)
        _log_prioritize(args.pod, names, ranking, started)
        if self._trace is not None:
            self._tell("prioritize", args.pod, started, asked=len(names), best=ranking.best or "")
        return wire.encode_scores(names, ranking.scores.tolist())

    def _tell(self, name: str, pod: Pod, started: float, *, error: str = "", **attributes: Attribute) -> None:
        assert self._trace is not None
        meta, ended = pod.metadata, time_ns()
        began = ended - int((perf_counter() - started) * 1e9)
        self._trace(TraceStep(name, meta.uid, f"{meta.namespace}/{meta.name}", began, ended, error, attributes))

    def _missed(self, pod: Pod, names: Sequence[str]) -> None:
        """Report a node that global placement chose, but that kube-scheduler does not ask about: it does not fit."""
        uid = PodUID(pod.metadata.uid)
        if self._placing is not None and (node := self._placing.asked(uid)) is not None and node not in names:
            self._placing.missed(uid)

    def _filtered(self, pod: Pod, request: PodRequest | Refusal | None, names: list[str]) -> FilterResult:
        effort = Effort(dead_ends=self._ledger.dead_ends)
        if not isinstance(request, PodRequest) or len(names) <= BEST:
            # Policies do not affect which nodes fit, only which are named.
            result = filter_nodes(request, names, self._ledger, effort=effort)
        else:
            asking = self._policies.asking(pod, request)
            standing = self._policies.standing(asking, self._expected.coming(request.uid))
            asked = settled(request, asking)
            result = filter_nodes(asked, names, self._ledger, asking.plain, standing=standing, effort=effort)
        if effort.unfinished and isinstance(request, PodRequest):
            self._undecided(request.uid)  # otherwise the pod would not be retried for some minutes
        return result

    def _fewer(self, pod: AskedPod, request: PodRequest, result: FilterResult) -> FilterResult:
        """Keep only the nodes that can win, or that are wanted: ``naming``."""
        names = result.node_names or []
        if len(names) < 2 or not self._naming.concerns(pod):
            return result
        ranking = self._ranked(pod, request, names)
        if not ranking.best:
            return result  # the choice is left to kube-scheduler
        chosen = self._naming.chosen(pod, names, ranking.scores)
        if chosen == [ranking.best]:  # kube-scheduler will not ask for scores
            self._expected.put(request.uid, ranking.best, ranking.memory, ranking.coming)
        return msgspec.structs.replace(result, node_names=chosen)

    def _ranked(self, pod: Pod, request: PodRequest, names: Sequence[str]) -> Ranking:
        asking = self._policies.asking(pod, request)
        standing = self._policies.standing(asking, self._expected.coming(request.uid))
        self._policies.remember(asking)
        by_policy = None if standing is None or not names else rank_by(standing, names, self._ledger)
        hints = self._expected.others(request.uid)
        return by_policy or rank(settled(request, asking), names, self._ledger, hints, asking.plain)

    def preempt(self, body: bytes) -> bytes:
        """Answer a preemption call. It has no field for an error; without knowledge, no eviction is claimed to help."""
        if not self.ready() or self._preemption is None:
            return wire.encode(PreemptionResult())
        started = perf_counter()
        try:
            check_objects(body)
            args = wire.decode_preemption(body)
        except WireError as e:
            log.warning("preempt refused reason=%s", e)
            return wire.encode(PreemptionResult())
        assert args.pod is not None
        self._missed(args.pod, ())
        request = resolved(parse_pod(args.pod, self._unit, self._dialects), self._classes)
        if request is None:
            return wire.encode(PreemptionResult(args.proposed()))  # asks for none of our resources
        known = isinstance(request, PodRequest)
        victims = self._preemption.victims(args.pod, request, args.proposed()) if known else {}
        log.info(
            "preempt pod=%r asked=%d helps=%d victims=%d ms=%.2f",
            f"{args.pod.metadata.namespace}/{args.pod.metadata.name}",
            len(args.proposed()),
            len(victims),
            min((len(v.pods or ()) for v in victims.values()), default=0),
            (perf_counter() - started) * 1000,
        )
        if self._trace is not None:
            self._tell("preempt", args.pod, started, asked=len(args.proposed()), helps=len(victims))
        return wire.encode(PreemptionResult(victims))

    async def filter_large(self, body: bytearray) -> bytes:
        """``filter`` for a body with whole node objects."""
        if not self.ready():
            return wire.encode(FilterResult(error=_NOT_READY))
        try:
            small = await made_small(body)
        except WireError as e:
            log.warning("filter refused bytes=%d reason=%s", len(body), e)
            return wire.encode(FilterResult(error=str(e)))
        return with_nodes(self.filter(small.body), small, body)

    async def prioritize_large(self, body: bytearray) -> bytes:
        try:
            return self.prioritize((await made_small(body)).body)
        except WireError as e:
            log.warning("prioritize refused bytes=%d reason=%s", len(body), e)
            return wire.encode([])

    async def preempt_large(self, body: bytearray) -> bytes:
        try:
            return self.preempt((await made_small(body)).body)
        except WireError as e:
            log.warning("preempt refused bytes=%d reason=%s", len(body), e)
            return wire.encode(PreemptionResult())

    async def bind(self, body: bytes) -> bytes:
        if not self.ready():
            return wire.encode(BindingResult(_NOT_READY))
        started = perf_counter()
        try:
            check_objects(body)
            args = wire.decode_binding(body)
            self._expected.discard(PodUID(args.pod_uid))
            if self._placing is not None:
                self._placing.begun(PodUID(args.pod_uid), args.node)
            try:
                refusal = await self._binder.bind(args)
            finally:  # cards may have been reserved for the pod while the call was under way
                if self._placing is not None:
                    self._placing.begun(PodUID(args.pod_uid), args.node)
            self._policies.forget(PodUID(args.pod_uid))
            self._policies.soon()  # kube-scheduler does not wait for this
        except FractileError as e:
            log.warning("bind failed reason=%s", e)
            return wire.encode(BindingResult(str(e)))
        error = refusal.message if refusal else ""
        log.info(
            "bind pod=%r node=%r error=%r ms=%.2f",
            f"{args.pod_namespace}/{args.pod_name}",
            args.node,
            error,
            (perf_counter() - started) * 1000,
        )
        if self._trace is not None:
            named = Pod(metadata=ObjectMeta(namespace=args.pod_namespace, name=args.pod_name, uid=args.pod_uid))
            self._tell("bind", named, started, error=error, **{_NODE: args.node})
        return wire.encode(BindingResult(error))


_NODE = "k8s.node.name"
_NOT_READY = "Fractile is rebuilding its ledger; it will be ready in a moment"


def _in_the_form_asked(args: ExtenderArgs, result: FilterResult) -> FilterResult:
    """A kube-scheduler that sent node objects expects the fitting ones back as objects."""
    if args.node_names is not None or args.nodes is None or result.node_names is None:
        return result
    fitting = set(result.node_names)
    items = [raw for raw in args.nodes.items or () if wire.node_name(raw) in fitting]
    return FilterResult(node_names=None, failed=result.failed, unresolvable=result.unresolvable, nodes=NodeList(items))


def _log_filter(args: ExtenderArgs, names: list[str], result: FilterResult, started: float) -> None:
    if not log.isEnabledFor(logging.INFO):
        return
    assert args.pod is not None
    log.info(
        "filter pod=%r asked=%d fit=%d reason=%r ms=%.2f",
        f"{args.pod.metadata.namespace}/{args.pod.metadata.name}",
        len(names),
        len(result.node_names or ()),
        _first_reason(result),
        (perf_counter() - started) * 1000,
    )


def _first_reason(result: FilterResult) -> str:
    """Why no node fits; "" when one does."""
    return "" if result.node_names else next(chain(result.failed.values(), result.unresolvable.values()), "")


def _log_prioritize(pod: Pod, names: Sequence[str], ranking: Ranking, started: float) -> None:
    if log.isEnabledFor(logging.INFO):
        log.info(
            "prioritize pod=%r asked=%d best=%r ms=%.2f",
            f"{pod.metadata.namespace}/{pod.metadata.name}",
            len(names),
            ranking.best or "",
            (perf_counter() - started) * 1000,
        )


def verbs(extender: Extender, *, prefix: str = "/scheduler") -> tuple[Verb, ...]:
    """The calls of kube-scheduler."""
    return (
        Verb(f"{prefix}/filter", extender.filter, wire.encode_error, extender.filter_large),
        Verb(f"{prefix}/prioritize", extender.prioritize, lambda _: wire.encode([]), extender.prioritize_large),
        Verb(
            f"{prefix}/preempt",
            extender.preempt,
            lambda _: wire.encode(PreemptionResult()),
            extender.preempt_large,
        ),
        Verb(f"{prefix}/bind", extender.bind, wire.encode_error),
    )


def application(
    extender: Extender, *, prefix: str = "/scheduler", more: Sequence[Route] = (), warning: str = ""
) -> Starlette:
    """The routes of the extender and of the probes, and ``more`` routes. ``warning``: shown by the readiness page."""
    well = f"ok; insecure: {warning}" if warning else "ok"

    async def healthz(_: Request) -> Response:
        return PlainTextResponse("ok")

    async def readyz(_: Request) -> Response:
        return PlainTextResponse(well) if extender.ready() else PlainTextResponse("rebuilding the ledger", 503)

    return Starlette(
        routes=[
            *(Route(verb.path, _endpoint(verb), methods=["POST"]) for verb in verbs(extender, prefix=prefix)),
            Route("/healthz", healthz),
            Route("/readyz", readyz),
            *more,
        ]
    )


def _endpoint(verb: Verb) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(request: Request) -> Response:
        """Serve a body that came in pieces, or otherwise than kube-scheduler sends it: of usual size only."""
        body = bytearray()
        async for chunk in request.stream():
            body += chunk
            if len(body) > USUAL_BODY:
                return _json(verb.too_large())
        return _json(await verb.wholly(bytes(body)))

    return endpoint


def _json(body: bytes) -> Response:
    return Response(body, media_type="application/json")
