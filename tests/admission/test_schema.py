"""The webhook under fire: bodies made from its OpenAPI document, and bodies that break it.

Served over real HTTP by uvicorn. Whatever comes in, the answer is what the document says, and nothing is logged as an
error.
"""

import asyncio
import logging
import threading
from collections.abc import Generator
from typing import Any

import msgspec
import pytest
import schemathesis
import uvicorn
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy
from schemathesis import GenerationMode
from schemathesis.specs.openapi import checks

from fractile.admission.app import application
from tests.admission.openapi import document
from tests.admission.world import answered, patch_of, webhook

pytestmark = pytest.mark.slow

SLOW = [
    HealthCheck.too_slow,
    HealthCheck.function_scoped_fixture,
    HealthCheck.filter_too_much,
    HealthCheck.data_too_large,
]
CHECKS: list[Any] = [
    getattr(checks, name)
    for name in ("status_code_conformance", "content_type_conformance", "response_schema_conformance")
]
SCHEMA: Any = schemathesis.openapi.from_dict(msgspec.json.decode(document("/admission"), type=dict[str, Any]))


class Served:
    """The webhook behind a real socket, in a thread with a loop of its own."""

    def __init__(self) -> None:
        config = uvicorn.Config(
            application(webhook()), host="127.0.0.1", port=0, log_config=None, access_log=False, lifespan="off"
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=lambda: asyncio.run(self._server.serve()), daemon=True)

    def __enter__(self) -> str:
        self._thread.start()
        for _ in range(1000):
            if self._server.started:
                break
            self._thread.join(0.01)
        return f"http://127.0.0.1:{self._server.servers[0].sockets[0].getsockname()[1]}"

    def __exit__(self, *_: object) -> None:
        self._server.should_exit = True
        self._thread.join(10)


@pytest.fixture(scope="module")
def url() -> Generator[str, None, None]:
    with Served() as found:
        yield found


@pytest.mark.parametrize("mode", list(GenerationMode), ids=lambda mode: mode.value)
@pytest.mark.parametrize("verb", ["mutate", "validate"])
@settings(max_examples=60, deadline=None, suppress_health_check=SLOW)
@given(data=st.data())
def test_no_body_brings_the_webhook_out_of_step(
    verb: str, mode: GenerationMode, data: st.DataObject, url: str, caplog: pytest.LogCaptureFixture
) -> None:
    case = data.draw(SCHEMA[f"/admission/{verb}"]["POST"].as_strategy(generation_mode=mode))
    caplog.clear()
    answer = case.call(base_url=url)
    assert answer.status_code in (200, 400)
    case.validate_response(answer, checks=CHECKS)
    assert [r.getMessage() for r in caplog.records if r.levelno >= logging.ERROR] == []


JSON: SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
AMOUNTS: SearchStrategy[Any] = st.dictionaries(
    st.sampled_from(["nvidia.com/gpumem", "class.fractile.dev/pair", "pair", "fractile.dev/gpu", "cpu", ""]), JSON
)
CONTAINER: SearchStrategy[Any] = st.fixed_dictionaries(
    {},
    optional={"name": JSON, "resources": st.fixed_dictionaries({}, optional={"limits": AMOUNTS, "requests": AMOUNTS})},
)
POD: SearchStrategy[Any] = st.fixed_dictionaries(
    {"spec": st.fixed_dictionaries({}, optional={"containers": st.lists(CONTAINER), "x": JSON})}
)
OBJECT: SearchStrategy[Any] = st.one_of(
    JSON, POD, st.fixed_dictionaries({"spec": st.fixed_dictionaries({"template": POD})})
)
KINDS = st.sampled_from([("", "Pod"), ("apps", "Deployment"), ("batch", "CronJob"), ("", "ResourceQuota")])


@settings(max_examples=300, deadline=None)
@given(obj=OBJECT, kind=KINDS)
def test_any_object_in_a_review_is_answered_and_a_patch_is_a_patch(obj: object, kind: tuple[str, str]) -> None:
    body = msgspec.json.encode(
        {
            "apiVersion": "admission.k8s.io/v1",
            "kind": "AdmissionReview",
            "request": {
                "uid": "u",
                "operation": "CREATE",
                "kind": {"group": kind[0], "kind": kind[1], "version": "v1"},
                "object": obj,
            },
        }
    )
    served = webhook()
    for found in (answered(served.mutate(body)), answered(served.validate(body))):
        assert found["uid"] == "u"
        assert found["allowed"] or found["status"]["message"]
        assert all(op.path.startswith("/") for op in patch_of(found))
