"""AdmissionReview, version admission.k8s.io/v1: the API server's request before it stores an object, and the answer.

The object stays raw until it is needed: a pod is decoded into the struct that all of Fractile uses, and once more into
the few fields that only admission reads. A patch is JSON Patch (RFC 6902), base64 in the answer.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Literal, TypeVar

import msgspec

from fractile.errors import WireError
from fractile.model.words import LONGEST_SENTENCE, printable, quoted
from fractile.wire.kubernetes.objects import KubeStruct, Pod

API_VERSION = "admission.k8s.io/v1"
KIND = "AdmissionReview"

LONGEST_WARNING = 256  # characters; the API server cuts longer ones
MOST_WARNINGS = 10  # of one answer
_LONGEST_UID = 253

T = TypeVar("T")


class GroupVersionKind(KubeStruct, frozen=True):
    group: str = ""
    version: str = ""
    kind: str = ""


class GroupVersionResource(KubeStruct, frozen=True):
    group: str = ""
    version: str = ""
    resource: str = ""


class UserInfo(KubeStruct, frozen=True):
    username: str = ""
    groups: list[str] | None = None


class AdmissionRequest(KubeStruct, frozen=True):
    """``object`` is the JSON text ``null`` in a DELETE."""

    uid: str = ""
    kind: GroupVersionKind = GroupVersionKind()
    resource: GroupVersionResource = GroupVersionResource()
    sub_resource: str = ""
    name: str = ""
    namespace: str = ""
    operation: str = ""
    user_info: UserInfo = UserInfo()
    object: msgspec.Raw = msgspec.field(default_factory=lambda: msgspec.Raw(b"null"))


class AdmissionReview(KubeStruct, frozen=True):
    api_version: str = ""
    kind: str = ""
    request: AdmissionRequest | None = None


class SecurityContext(KubeStruct, frozen=True):
    privileged: bool | None = None


class EnvVar(KubeStruct, frozen=True):
    """``value`` is "" if ``valueFrom`` gives it."""

    name: str = ""
    value: str | None = None


def visible_devices(env: Sequence[EnvVar] | None) -> str:
    """The value of NVIDIA_VISIBLE_DEVICES; "" for none. If the name occurs twice, the last counts."""
    return next((e.value or "" for e in reversed(env or ()) if e.name == "NVIDIA_VISIBLE_DEVICES"), "")


def blind(said: Iterable[tuple[str, str]]) -> dict[str, str]:
    """The containers that ask for no card, from containers and their values of that variable."""
    return {name: value for name, value in said if value in ("none", "void")}


class GuardedContainer(KubeStruct, frozen=True):
    name: str = ""
    security_context: SecurityContext | None = None
    env: list[EnvVar] | None = None

    @property
    def privileged(self) -> bool:
        return bool(self.security_context and self.security_context.privileged)

    @property
    def visible_devices(self) -> str:
        """The value in its specification of the variable by which NVIDIA's runtime gives cards; "" for none."""
        return visible_devices(self.env)


class GuardedSpec(KubeStruct, frozen=True):
    containers: list[GuardedContainer] | None = None
    init_containers: list[GuardedContainer] | None = None


class GuardedPod(KubeStruct, frozen=True):
    """The fields of a pod that only admission reads."""

    spec: GuardedSpec = GuardedSpec()

    def privileged(self) -> frozenset[str]:
        """The names of its privileged containers."""
        return frozenset(c.name for c in self._containers if c.privileged)

    def blind(self) -> dict[str, str]:
        """The containers that ask for no card: name -> value of the variable."""
        return blind((c.name, c.visible_devices) for c in self._containers)

    @property
    def _containers(self) -> tuple[GuardedContainer, ...]:
        return (*(self.spec.init_containers or ()), *(self.spec.containers or ()))


class QuotaSpec(KubeStruct, frozen=True):
    hard: dict[str, Any] | None = None


class ReviewedQuota(KubeStruct, frozen=True):
    spec: QuotaSpec = QuotaSpec()


class Op(msgspec.Struct, frozen=True):
    """One step of a JSON patch. "add" replaces an existing member of an object."""

    op: Literal["add", "remove"]
    path: str
    value: Any = msgspec.UNSET


class Status(KubeStruct, frozen=True):
    """Why an object is refused: the API server returns this message and code to its caller."""

    message: str = ""
    reason: str = ""
    code: int = 0


class AdmissionResponse(KubeStruct, frozen=True, kw_only=True):
    uid: str
    allowed: bool
    status: Status | None = None
    patch_type: str | None = None
    patch: bytes | None = None  # base64 on the wire
    warnings: list[str] | None = None


class AdmissionReviewAnswer(KubeStruct, frozen=True, kw_only=True, omit_defaults=False):
    api_version: str = API_VERSION
    kind: str = KIND
    response: AdmissionResponse


_review = msgspec.json.Decoder(AdmissionReview)
_pod = msgspec.json.Decoder(Pod)
_guarded = msgspec.json.Decoder(GuardedPod)
_members = msgspec.json.Decoder(dict[str, msgspec.Raw])
_quota = msgspec.json.Decoder(ReviewedQuota)
_encoder = msgspec.json.Encoder()
_NOTHING = msgspec.Raw(b"{}")


def decode(body: bytes) -> AdmissionRequest:
    """The request of a review; WireError, with what was expected, when the body is not a review."""
    review = _decode(_review, body, "the body is not an AdmissionReview")
    if not review.kind:
        raise WireError(f"the body has no kind; send an {KIND} of {API_VERSION}")
    if review.kind != KIND:
        raise WireError(f"the body is a {review.kind[:40]!r}; send an {KIND} of {API_VERSION}")
    if review.api_version != API_VERSION:
        raise WireError(f"the {KIND} has version {review.api_version[:40]!r}; this webhook supports {API_VERSION}")
    if review.request is None:
        raise WireError(f"the {KIND} has no request")
    if not 0 < len(review.request.uid) <= _LONGEST_UID:
        raise WireError(f"the request must have a uid of at most {_LONGEST_UID} characters")
    return review.request


def pod(raw: msgspec.Raw) -> Pod:
    return _decode(_pod, raw, "the object is not a pod")


def guarded(raw: msgspec.Raw) -> GuardedPod:
    return _decode(_guarded, raw, "the object is not a pod")


def pod_inside(raw: msgspec.Raw, path: Sequence[str]) -> Pod:
    """The pod that the template at ``path`` of the object describes; an empty pod when there is no template."""
    for step in path:
        raw = _decode(_members, raw, "the object is not a JSON object").get(step, _NOTHING)
    return _decode(_pod, raw, "the template is not a pod")


def quota(raw: msgspec.Raw) -> ReviewedQuota:
    return _decode(_quota, raw, "the object is not a ResourceQuota")


def pointer(*steps: str | int) -> str:
    """A JSON pointer (RFC 6901)."""
    return "".join(f"/{str(step).replace('~', '~0').replace('/', '~1')}" for step in steps)


def allowed(uid: str, *, patch: Sequence[Op] = (), warnings: Sequence[str] = ()) -> bytes:
    """The answer that allows the object, changed by the patch."""
    return _encode(
        AdmissionResponse(
            uid=uid,
            allowed=True,
            patch_type="JSONPatch" if patch else None,
            patch=_encoder.encode(patch) if patch else None,
            warnings=_shortened(warnings),
        )
    )


def refused(uid: str, message: str, *, code: int = 403, reason: str = "Forbidden") -> bytes:
    """The answer that refuses the object; ``message`` is shown to its sender."""
    return _encode(
        AdmissionResponse(uid=uid, allowed=False, status=Status(quoted(message, LONGEST_SENTENCE), reason, code))
    )


def _shortened(warnings: Sequence[str]) -> list[str] | None:
    """The warnings, cut and without control characters, for which the API server would drop them."""
    return [printable(w[:LONGEST_WARNING]) for w in warnings[:MOST_WARNINGS]] or None


def _encode(response: AdmissionResponse) -> bytes:
    return _encoder.encode(AdmissionReviewAnswer(response=response))


def _decode(decoder: msgspec.json.Decoder[T], body: bytes | msgspec.Raw, what: str) -> T:
    try:
        return decoder.decode(body)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as e:
        raise WireError(f"{what}: {e}") from None
