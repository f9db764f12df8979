"""The webhook's HTTP side: AdmissionReviews in, answers out, one log line per object that is changed or refused.

Failure rule: open. An object that cannot be read is let through unchanged, with a warning: filter and bind check its
request again. Only bodies that are not an AdmissionReview get a status other than 200.
"""

import logging
from collections.abc import Awaitable, Callable, Mapping
from time import perf_counter

import msgspec
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from fractile.admission.capacity import ClusterFit
from fractile.admission.hints import PolicyKnown, any_policy
from fractile.admission.intake import Intake, bad
from fractile.admission.mutate import Mutation, mutate_pod, mutate_quota, mutate_template, needs_classes
from fractile.admission.names import ClassNames
from fractile.admission.validate import AdmissionVerdict, Privileged, judge
from fractile.dialects.table import NAMES, RESOURCES
from fractile.errors import WireError
from fractile.model.units import MemoryUnit
from fractile.model.words import LONGEST_SENTENCE, quoted
from fractile.wire.bounds import check_members, check_objects
from fractile.wire.kubernetes import admission as wire
from fractile.wire.kubernetes.admission import AdmissionRequest
from fractile.wire.kubernetes.objects import Pod
from fractile.wire.kubernetes.queued import GATE

log = logging.getLogger(__name__)

PREFIX = "/admission"

Gate = Callable[[Pod, str], bool]  # pod and namespace


def no_gate(pod: Pod, namespace: str) -> bool:
    """The default gate: no pod is held back."""
    return False


_TEMPLATES: dict[tuple[str, str], tuple[str, ...]] = {
    ("", "PodTemplate"): ("template",),
    ("", "ReplicationController"): ("spec", "template"),
    ("apps", "Deployment"): ("spec", "template"),
    ("apps", "ReplicaSet"): ("spec", "template"),
    ("apps", "StatefulSet"): ("spec", "template"),
    ("apps", "DaemonSet"): ("spec", "template"),
    ("batch", "Job"): ("spec", "template"),
    ("batch", "CronJob"): ("spec", "jobTemplate", "spec", "template"),
}
"""The path of the pod template in each kind."""

_NOT_READY = "Fractile is starting and has not read the classes of the cluster yet; create the object again in a moment"


class Settings(msgspec.Struct, frozen=True):
    """``resources``: those of the served families; ``known_policy`` says whether a node policy of that name exists."""

    unit: MemoryUnit = MemoryUnit.MiB
    dialects: frozenset[str] = NAMES
    resources: frozenset[str] = RESOURCES
    privileged: Privileged = Privileged.REFUSE
    known_policy: PolicyKnown = any_policy


class WebhookApp:
    """Both verbs, from bytes to bytes. ``known`` says whether all cards and classes of the cluster have been read;
    ``scheduler_of`` which scheduler a namespace's GPU pods get, "" to leave it unchanged; ``names_node`` whether an
    administrator lets a namespace's pods name their node; ``gate`` which pods are held back until their node is chosen
    (docs/use/global-placement.md)."""

    def __init__(
        self,
        *,
        classes: ClassNames,
        cluster: ClusterFit,
        known: Callable[[], bool],
        scheduler_of: Callable[[str], str] = lambda _: "",
        names_node: Callable[[str], bool] = lambda _: False,
        gate: Gate = no_gate,
        settings: Settings | None = None,
    ) -> None:
        self._classes = classes
        self._cluster = cluster
        self._known = known
        self._scheduler_of = scheduler_of
        self._names_node = names_node
        self._gate = gate
        self._settings = settings or Settings()

    def mutate(self, body: bytes) -> bytes:
        """The answer with the patch. Raises WireError when the body is not an AdmissionReview."""
        started = perf_counter()
        check_objects(body)
        check_members(body)
        request = wire.decode(body)
        try:
            mutation = self._mutation(request)
        except WireError as e:
            return wire.allowed(request.uid, warnings=[_unread(request, e)])
        if mutation.refusal:
            _log("mutate", request, started, refused=mutation.refusal)
            return wire.refused(request.uid, mutation.refusal)
        if mutation.ops:
            _log("mutate", request, started, steps=len(mutation.ops))
        return wire.allowed(request.uid, patch=mutation.ops, warnings=mutation.warnings)

    def validate(self, body: bytes) -> bytes:
        """The answer with the verdict. Raises WireError when the body is not an AdmissionReview."""
        started = perf_counter()
        check_objects(body)
        check_members(body)
        request = wire.decode(body)
        try:
            verdict = self._verdict(request)
        except WireError as e:
            return wire.allowed(request.uid, warnings=[_unread(request, e)])
        if verdict.refusal:
            _log("validate", request, started, refused=verdict.refusal)
            return wire.refused(request.uid, verdict.refusal)
        return wire.allowed(request.uid, warnings=verdict.warnings)

    def _mutation(self, request: AdmissionRequest) -> Mutation:
        if _is_new_pod(request):
            return self._pod(request, wire.pod(request.object))
        if request.sub_resource or request.operation not in ("CREATE", "UPDATE"):
            return Mutation()
        if (request.kind.group, request.kind.kind) == ("", "ResourceQuota"):
            quota = wire.quota(request.object)
            return mutate_quota(quota, self._classes)
        path = _TEMPLATES.get((request.kind.group, request.kind.kind))
        if path is None:
            return Mutation()
        return mutate_template(wire.pod_inside(request.object, path), self._classes, (*path, "spec"))

    def _pod(self, request: AdmissionRequest, pod: Pod) -> Mutation:
        if needs_classes(pod) and not self._known():
            return Mutation(refusal=_NOT_READY)
        return mutate_pod(
            pod,
            self._classes,
            resources=self._settings.resources,
            scheduler=self._scheduler_of(request.namespace),
            gate=GATE if self._gate(pod, request.namespace) else "",
        )

    def _verdict(self, request: AdmissionRequest) -> AdmissionVerdict:
        if not _is_new_pod(request):
            return AdmissionVerdict()
        return judge(
            wire.pod(request.object),
            wire.guarded(request.object),
            cluster=self._cluster if self._known() else None,
            unit=self._settings.unit,
            groups=request.user_info.groups or (),
            dialects=self._settings.dialects,
            privileged=self._settings.privileged,
            names_node=self._names_node(request.namespace),
            known_policy=self._settings.known_policy,
        )


def _is_new_pod(request: AdmissionRequest) -> bool:
    """Whether a pod is created; later its request cannot change (KEP-1287 resizes only CPU and memory)."""
    kind = request.kind
    return (kind.group, kind.kind, request.sub_resource, request.operation) == ("", "Pod", "", "CREATE")


def _unread(request: AdmissionRequest, error: WireError) -> str:
    kind, name, reason = quoted(request.kind.kind), quoted(request.name), quoted(str(error), LONGEST_SENTENCE)
    log.warning("object not read kind=%r name=%r reason=%s", kind, name, reason)
    return f"Fractile could not read this {kind} and left it unchanged: {reason}"


def _log(verb: str, request: AdmissionRequest, started: float, *, steps: int = 0, refused: str = "") -> None:
    log.info(
        "%s kind=%s name=%r steps=%d refused=%r ms=%.2f",
        verb,
        request.kind.kind[:40],
        f"{request.namespace}/{request.name}"[:320],
        steps,
        quoted(refused, LONGEST_SENTENCE),
        (perf_counter() - started) * 1000,
    )


def application(webhook: WebhookApp, intake: Intake | None = None) -> Starlette:
    """The webhook's routes."""
    return Starlette(routes=routes(webhook, intake or Intake()))


def verbs(webhook: WebhookApp) -> Mapping[bytes, Callable[[bytes], bytes | None]]:
    """Both verbs by path, for answers that bypass the application. They return None on any error: the application then
    handles the request again and reports the error."""
    return {
        f"{PREFIX}/mutate".encode(): _or_none(webhook.mutate),
        f"{PREFIX}/validate".encode(): _or_none(webhook.validate),
    }


def _or_none(answer: Callable[[bytes], bytes]) -> Callable[[bytes], bytes | None]:
    def answered(body: bytes) -> bytes | None:
        try:
            return answer(body)
        except Exception:
            log.debug("review handed over to the application", exc_info=True)
            return None

    return answered


def routes(webhook: WebhookApp, intake: Intake) -> list[Route]:
    async def healthz(_: Request) -> Response:
        return PlainTextResponse("ok")

    return [
        Route(f"{PREFIX}/mutate", _verb(webhook.mutate, intake), methods=["POST"]),
        Route(f"{PREFIX}/validate", _verb(webhook.validate, intake), methods=["POST"]),
        Route(f"{PREFIX}/healthz", healthz),
    ]


def _verb(answer: Callable[[bytes], bytes], intake: Intake) -> Callable[[Request], Awaitable[Response]]:
    """The endpoint of one verb. It survives every body: a bug is logged, and the API server goes on without us."""

    async def endpoint(request: Request) -> Response:
        body = await intake.read(request)
        if isinstance(body, Response):
            return body
        try:
            return _json(answer(body))
        except WireError as e:
            return bad(e)
        except Exception:
            log.exception("webhook failed path=%s", request.url.path)
            return PlainTextResponse("internal error in Fractile; see its log", 500)

    return endpoint


def _json(body: bytes) -> Response:
    return Response(body, media_type="application/json")
