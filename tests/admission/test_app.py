"""The webhook over HTTP: what the API server sends, what it never would, and too much of it."""

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

import httpx2
import msgspec
import pytest

from fractile.admission.app import WebhookApp, application
from fractile.admission.intake import Intake, IntakeLimits
from fractile.wire.kubernetes.objects import Pod
from fractile.wire.kubernetes.queued import GATE
from tests.admission.world import Json, answered, patch_of, patched, review, webhook
from tests.builders import container, pod
from tests.wire.golden_files import golden

CLASS = "class.fractile.dev/nvidia.tesla.k80"


class Caller:
    """The API server's side."""

    def __init__(self, served: WebhookApp, bounds: IntakeLimits | None = None) -> None:
        transport = httpx2.ASGITransport(app=application(served, Intake(bounds)))
        self.http = httpx2.AsyncClient(transport=transport, base_url="https://webhook")

    async def ask(self, verb: str, body: bytes) -> Json:
        answer = await self.http.post(f"/admission/{verb}", content=body)
        assert answer.status_code == 200, answer.text
        assert answer.headers["content-type"] == "application/json"
        return answered(answer.content)


@pytest.fixture
async def api() -> AsyncGenerator[Caller, None]:
    caller = Caller(webhook())
    async with caller.http:
        yield caller


async def test_a_recorded_pod_of_hami_gets_its_card(api: Caller) -> None:
    body = golden("admission-pod.json")
    found = await api.ask("mutate", body)
    request = msgspec.json.decode(body)["request"]
    assert (found["uid"], found["allowed"], found["patchType"]) == (request["uid"], True, "JSONPatch")
    mutated = patched(request["object"], patch_of(found))
    resources = mutated["spec"]["containers"][0]["resources"]
    assert resources["limits"] == resources["requests"] == {"nvidia.com/gpumem": "3k", "nvidia.com/gpu": "1"}
    assert (await api.ask("mutate", review(mutated))).keys() == {"uid", "allowed"}
    assert (await api.ask("validate", review(mutated)))["allowed"] is True


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("deployment", ("spec", "template", "spec")),
        ("cronjob", ("spec", "jobTemplate", "spec", "template", "spec")),
    ],
)
async def test_a_recorded_template_has_its_class_translated(api: Caller, name: str, path: tuple[str, ...]) -> None:
    body = golden(f"admission-{name}.json")
    mutated: Any = patched(msgspec.json.decode(body)["request"]["object"], patch_of(await api.ask("mutate", body)))
    for step in path:
        mutated = mutated[step]
    assert mutated["containers"][0]["resources"]["limits"] == {CLASS: "1"}


async def test_a_recorded_quota_counts_requests_of_the_class(api: Caller) -> None:
    body = golden("admission-quota.json")
    mutated = patched(msgspec.json.decode(body)["request"]["object"], patch_of(await api.ask("mutate", body)))
    assert mutated["spec"]["hard"] == {f"requests.{CLASS}": "5"}


@pytest.mark.parametrize("verb", ["mutate", "validate"])
@pytest.mark.parametrize(
    "fields",
    [
        pytest.param({"operation": "DELETE", "object": None}, id="a deletion"),
        pytest.param({"operation": "UPDATE"}, id="an update"),
        pytest.param({"operation": "CONNECT"}, id="a connection"),
        pytest.param({"subResource": "status"}, id="a status"),
        pytest.param({"subResource": "ephemeralcontainers", "operation": "UPDATE"}, id="a debugging container"),
        pytest.param({"subResource": "resize", "operation": "UPDATE"}, id="a resize"),
        pytest.param({"kind": {"group": "", "version": "v1", "kind": "Node"}}, id="a node"),
        pytest.param({"kind": {"group": "example.com", "version": "v1", "kind": "Pod"}}, id="somebody's Pod"),
    ],
)
async def test_what_is_no_new_pod_passes_as_it_is(api: Caller, verb: str, fields: Json) -> None:
    impossible = pod("p", container(limits={"nvidia.com/gpu": 1, "aliyun.com/gpu-mem": 1, CLASS: 1}))
    assert (await api.ask(verb, review(impossible, **fields))).keys() == {"uid", "allowed"}


@pytest.mark.parametrize("verb", ["mutate", "validate"])
@pytest.mark.parametrize(
    "obj",
    [
        pytest.param(7, id="a number"),
        pytest.param({"spec": {"containers": "none"}}, id="words for containers"),
        pytest.param({"spec": {"containers": [{"name": "c", "resources": {"limits": [1]}}]}}, id="a list of amounts"),
        pytest.param({"spec": {"containers": [None]}}, id="no container"),
    ],
)
async def test_a_pod_that_cannot_be_read_passes_with_a_warning(api: Caller, verb: str, obj: object) -> None:
    found = await api.ask(verb, review(obj))
    assert found["allowed"] is True
    assert "patch" not in found
    assert found["warnings"][0].startswith("Fractile could not read this Pod and left it unchanged")


async def test_a_refusal_reaches_whoever_sent_the_pod(api: Caller) -> None:
    two = pod("p", container(limits={CLASS: 1, "class.fractile.dev/pair": 1}))
    mutated = await api.ask("mutate", review(two))
    assert (mutated["allowed"], mutated["status"]["code"]) == (False, 403)
    assert "one class of each kind" in mutated["status"]["message"]
    bound = await api.ask("validate", review(pod("p", container(memory=1), node="n1")))
    assert "sets spec.nodeName to n1" in bound["status"]["message"]


async def test_a_pod_names_its_node_where_an_administrator_allows_it() -> None:
    caller = Caller(webhook(names_node=lambda namespace: namespace == "drivers"))
    async with caller.http:
        for namespace, taken in (("drivers", True), ("team", False)):
            body = review(pod("p", container(memory=1), node="n1"), namespace=namespace)
            assert (await caller.ask("validate", body))["allowed"] is taken


async def test_a_user_of_ours_may_write_placements(api: Caller) -> None:
    placed = pod("p", container(memory=1), annotations={"fractile.dev/placement": "{}"})
    assert (await api.ask("validate", review(placed)))["allowed"] is False
    ours = {"username": "x", "groups": ["fractile:control-plane"]}
    assert (await api.ask("validate", review(placed, userInfo=ours)))["allowed"] is True


async def test_before_the_classes_are_known_only_pods_that_may_mean_one_are_turned_away() -> None:
    caller = Caller(webhook(known=False))
    async with caller.http:
        for limits in ({CLASS: 1}, {"nvidia.tesla.k80": 1}):
            found = await caller.ask("mutate", review(pod("p", container(limits=limits))))
            assert "create the object again in a moment" in found["status"]["message"]
        found = await caller.ask("mutate", golden("admission-pod.json"))
        assert found["patchType"] == "JSONPatch"
        too_large = review(pod("p", container(memory=10**6)))
        assert (await caller.ask("validate", too_large)).keys() == {"uid", "allowed"}


async def test_pods_with_devices_get_the_scheduler_of_their_namespace() -> None:
    caller = Caller(webhook(scheduler="second"))
    async with caller.http:
        ops = patch_of(await caller.ask("mutate", golden("admission-pod.json")))
    assert [(op.path, op.value) for op in ops if "scheduler" in op.path] == [("/spec/schedulerName", "second")]


async def test_pods_are_gated_where_their_node_is_chosen_first() -> None:
    asked: list[str] = []

    def gate(pod: Pod, namespace: str) -> bool:
        asked.append(namespace)
        return namespace == "gated"

    caller = Caller(webhook(gate=gate))
    async with caller.http:
        for namespace, gates in (("gated", [{"name": GATE}]), ("other", [])):
            body = review(pod("p", container(memory=1)), namespace=namespace)
            ops = patch_of(await caller.ask("mutate", body))
            assert [op.value for op in ops if op.path == "/spec/schedulingGates"] == ([gates] if gates else [])
    assert asked == ["gated", "other"]


# ── what the API server never sends ──────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("verb", ["mutate", "validate"])
@pytest.mark.parametrize(
    "body", [b"", b"no JSON", b"\xff\xfe", b"[" * 100_000, b'{"kind":"AdmissionReview","apiVersion":"x/v2"}', b"null"]
)
async def test_what_is_no_review_is_a_400_with_a_sentence(
    api: Caller, verb: str, body: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    answer = await api.http.post(f"/admission/{verb}", content=body)
    assert answer.status_code == 400
    assert 10 < len(answer.text) <= 500
    assert [r for r in caplog.records if r.levelno >= logging.WARNING] == []


async def test_other_methods_and_paths_are_no_verbs(api: Caller) -> None:
    assert (await api.http.get("/admission/mutate")).status_code == 405
    assert (await api.http.post("/admission/other", content=b"{}")).status_code == 404
    assert (await api.http.get("/admission/healthz")).text == "ok"


# ── too much ─────────────────────────────────────────────────────────────────────────────────────────────────────────


async def drip(pieces: int, size: int, *, wait: asyncio.Event | None = None) -> AsyncIterator[bytes]:
    for _ in range(pieces):
        yield b" " * size
    if wait is not None:
        await wait.wait()


@pytest.mark.parametrize("announced", [True, False])
async def test_a_body_that_is_too_large_is_told_at_once(announced: bool) -> None:
    caller = Caller(webhook(), IntakeLimits(body=10_000))
    async with caller.http:
        content = b" " * 10_001 if announced else drip(1000, 1000)
        answer = await caller.http.post("/admission/mutate", content=content)
        assert answer.status_code == 413
        assert "larger than 10000 bytes" in answer.text
        assert (await caller.http.post("/admission/mutate", content=b" " * 9_999)).status_code == 400


async def test_no_more_requests_are_read_at_once_than_are_allowed() -> None:
    caller = Caller(webhook(), IntakeLimits(requests=3))
    go = asyncio.Event()
    async with caller.http, asyncio.TaskGroup() as tasks:
        held = [
            tasks.create_task(caller.http.post("/admission/mutate", content=drip(1, 10, wait=go))) for _ in range(3)
        ]
        await asyncio.sleep(0.05)
        assert (await caller.ask("mutate", golden("admission-pod.json")))["allowed"] is True
        go.set()
        oldest, *others = [await one for one in held]
        assert (oldest.status_code, oldest.headers["retry-after"]) == (503, "1")
        assert [one.status_code for one in others] == [400, 400]
        assert (await caller.ask("mutate", golden("admission-pod.json")))["allowed"] is True


@pytest.mark.parametrize("announced", [True, False])
async def test_all_bodies_together_take_no_more_memory_than_is_allowed(announced: bool) -> None:
    caller = Caller(webhook(), IntakeLimits(together=10_000))
    go = asyncio.Event()
    async with caller.http, asyncio.TaskGroup() as tasks:
        held = tasks.create_task(caller.http.post("/admission/mutate", content=drip(9, 1000, wait=go)))
        await asyncio.sleep(0.05)
        assert (await caller.http.post("/admission/mutate", content=b" " * 500)).status_code == 400
        content = b" " * 2000 if announced else drip(2, 1000)
        assert (await caller.http.post("/admission/mutate", content=content)).status_code == 400
        assert (await held).status_code == 503, "it has waited longest"
        go.set()
        assert (await caller.http.post("/admission/mutate", content=b" " * 9000)).status_code == 400, (
            "all is given back"
        )


async def test_a_body_that_does_not_come_is_not_waited_for() -> None:
    caller = Caller(webhook(), IntakeLimits(seconds=0.05, requests=1))
    async with caller.http:
        answer = await caller.http.post("/admission/mutate", content=drip(1, 10, wait=asyncio.Event()))
        assert answer.status_code == 408
        assert (await caller.ask("mutate", golden("admission-pod.json")))["allowed"] is True


async def test_a_bug_is_logged_and_answered(api: Caller, caplog: pytest.LogCaptureFixture) -> None:
    def broken(body: bytes) -> bytes:
        raise RuntimeError(f"a bug {len(body)}")

    served = webhook()
    served.mutate = broken
    caller = Caller(served)
    async with caller.http:
        assert (await caller.http.post("/admission/mutate", content=b"{}")).status_code == 500
    assert "webhook failed" in caplog.text
