"""AdmissionReview as kube-apiserver 1.36.3 sends it, and the answers."""

import json
from base64 import b64decode
from typing import Any

import msgspec
import pytest

from fractile.errors import WireError
from fractile.wire.kubernetes import admission as wire
from fractile.wire.kubernetes.admission import GroupVersionKind, Op
from tests.wire.golden_files import golden

Json = dict[str, Any]


def response(body: bytes) -> Json:
    answer: Json = json.loads(body)
    assert (answer["apiVersion"], answer["kind"]) == ("admission.k8s.io/v1", "AdmissionReview")
    return answer["response"]


@pytest.mark.parametrize(
    ("name", "kind", "called"),
    [
        ("pod", GroupVersionKind("", "v1", "Pod"), "memory-only"),
        ("pod-by-class", GroupVersionKind("", "v1", "Pod"), "bare-patched"),
        ("deployment", GroupVersionKind("apps", "v1", "Deployment"), "dep-patched"),
        ("cronjob", GroupVersionKind("batch", "v1", "CronJob"), "bare-cron"),
        ("quota", GroupVersionKind("", "v1", "ResourceQuota"), "bare-quota"),
    ],
)
def test_recorded_reviews_are_read(name: str, kind: GroupVersionKind, called: str) -> None:
    request = wire.decode(golden(f"admission-{name}.json"))
    assert (request.kind, request.name, request.namespace) == (kind, called, "default")
    assert (request.operation, request.sub_resource) == ("CREATE", "")
    assert request.user_info.groups == ["system:masters", "system:authenticated"]
    assert len(request.uid) == 36


def test_the_pod_of_a_review_is_the_pod_of_everybody_else() -> None:
    raw = wire.decode(golden("admission-pod.json")).object
    pod = wire.pod(raw)
    (main,) = pod.spec.containers or []
    (init,) = pod.spec.init_containers or []
    assert main.resources is not None
    assert init.resources is not None
    assert (main.resources.limits, init.resources.limits) == ({"nvidia.com/gpumem": "3k"}, {"aliyun.com/gpu-mem": "1"})
    assert wire.guarded(raw).privileged() == frozenset()


@pytest.mark.parametrize(
    ("name", "path"),
    [("deployment", ("spec", "template")), ("cronjob", ("spec", "jobTemplate", "spec", "template"))],
)
def test_the_pod_inside_a_template_is_found(name: str, path: tuple[str, ...]) -> None:
    raw = wire.decode(golden(f"admission-{name}.json")).object
    (main,) = wire.pod_inside(raw, path).spec.containers or []
    assert main.resources is not None
    assert main.resources.limits == {"nvidia.tesla.k80": "1"}
    assert wire.pod_inside(raw, ("spec", "nothing")).spec.containers is None


def test_privileged_containers_are_named() -> None:
    raw = msgspec.Raw(
        b'{"spec":{"containers":[{"name":"a","securityContext":{"privileged":true}},{"name":"b"},'
        b'{"name":"c","securityContext":{"privileged":false}},{"name":"d","securityContext":null}],'
        b'"initContainers":[{"name":"i","securityContext":{"privileged":true}}]}}'
    )
    assert wire.guarded(raw).privileged() == {"a", "i"}


@pytest.mark.parametrize(
    ("body", "says"),
    [
        pytest.param(b"", "the body is not an AdmissionReview", id="nothing"),
        pytest.param(b"<html>", "the body is not an AdmissionReview", id="no JSON"),
        pytest.param(b"[]", "the body is not an AdmissionReview", id="a list"),
        pytest.param(b"{}", "the body has no kind; send an AdmissionReview of admission.k8s.io/v1", id="no kind"),
        pytest.param(b'{"kind":"Pod"}', "the body is a 'Pod'; send an AdmissionReview", id="another kind"),
        pytest.param(
            b'{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1beta1","request":{"uid":"u"}}',
            "has version 'admission.k8s.io/v1beta1'; this webhook supports admission.k8s.io/v1",
            id="an old version",
        ),
        pytest.param(
            b'{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1"}', "has no request", id="no request"
        ),
        pytest.param(
            b'{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1","request":{}}',
            "must have a uid",
            id="no uid",
        ),
        pytest.param(
            b'{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1","request":{"uid":"' + b"u" * 300 + b'"}}',
            "must have a uid of at most 253",
            id="a long uid",
        ),
        pytest.param(b'{"request":' * 100_000, "the body is not an AdmissionReview", id="a deep one"),
        pytest.param(b'{"kind":"\xff"}', "the body is not an AdmissionReview", id="no UTF-8"),
    ],
)
def test_what_is_no_review_is_told_so(body: bytes, says: str) -> None:
    with pytest.raises(WireError, match=says.replace("(", r"\(")):
        wire.decode(body)


def test_an_answer_without_a_patch_has_none() -> None:
    assert response(wire.allowed("u")) == {"uid": "u", "allowed": True}


def test_a_patch_is_json_patch_in_base64() -> None:
    ops = [Op("add", wire.pointer("spec", 0, "a/b~c"), "1"), Op("remove", "/x")]
    found = response(wire.allowed("u", patch=ops))
    assert found["patchType"] == "JSONPatch"
    assert json.loads(b64decode(found["patch"])) == [
        {"op": "add", "path": "/spec/0/a~1b~0c", "value": "1"},
        {"op": "remove", "path": "/x"},
    ]


def test_a_refusal_says_why_with_a_code() -> None:
    assert response(wire.refused("u", "because")) == {
        "uid": "u",
        "allowed": False,
        "status": {"message": "because", "reason": "Forbidden", "code": 403},
    }


def test_warnings_are_few_short_and_printable() -> None:
    found = response(wire.allowed("u", warnings=["a\r\nb", "x" * 1000, *["more"] * 100]))["warnings"]
    assert found[0] == "a??b"
    assert len(found[1]) == 256
    assert len(found) == 10
