"""The verbs under fire: bodies made from the OpenAPI document, and bodies that break it.

Served over real HTTP by uvicorn, as in the cluster. Whatever comes in, the status is 200, the answer is what the
document says, nothing is logged as an error, and the ledger is as it was.
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

from fractile.extender.app import application
from fractile.ledger.ledger import Ledger
from fractile.wire.kubernetes.extender import BindingResult, FilterResult, HostPriority, PreemptionResult
from tests.builders import in_use
from tests.extender.openapi import document
from tests.main.plane import plane

pytestmark = pytest.mark.slow

SLOW = [
    HealthCheck.too_slow,
    HealthCheck.function_scoped_fixture,
    HealthCheck.filter_too_much,
    HealthCheck.data_too_large,
]
NODES = ("n1", "n2", "n3")
CHECKS: list[Any] = [getattr(checks, name) for name in ("content_type_conformance", "response_schema_conformance")]
ANSWERS: dict[str, Any] = {
    "filter": FilterResult,
    "prioritize": list[HostPriority],
    "preempt": PreemptionResult,
    "bind": BindingResult,
}


class Served:
    """A control plane behind a real socket, in a thread with a loop of its own."""

    def __init__(self) -> None:
        self.url = ""
        self.ledger: Ledger
        self._started = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True)

    def __enter__(self) -> "Served":
        self._thread.start()
        assert self._started.wait(10), "the extender did not start"
        return self

    def __exit__(self, *_: object) -> None:
        self._server.should_exit = True
        self._thread.join(10)

    async def _serve(self) -> None:
        async with plane(NODES) as p:
            in_use(p.ledger, "n2", 12_207, 12_207)
            self.ledger = p.ledger
            config = uvicorn.Config(
                application(p.extender), host="127.0.0.1", port=0, log_config=None, access_log=False, lifespan="off"
            )
            self._server = uvicorn.Server(config)
            async with asyncio.TaskGroup() as tasks:
                serving = tasks.create_task(self._server.serve())
                while not self._server.started and not serving.done():  # noqa: ASYNC110 (uvicorn has no event for it)
                    await asyncio.sleep(0.01)
                self.url = f"http://127.0.0.1:{self._server.servers[0].sockets[0].getsockname()[1]}"
                self._started.set()

    def state(self) -> object:
        return self.ledger.statistics(), [self.ledger.node(n) for n in NODES]


@pytest.fixture(scope="module")
def served() -> Generator[Served, None, None]:
    with Served() as found:
        yield found


SCHEMA: Any = schemathesis.openapi.from_dict(msgspec.json.decode(document("/scheduler"), type=dict[str, Any]))


def cases(verb: str, mode: GenerationMode) -> SearchStrategy[Any]:
    return SCHEMA[f"/scheduler/{verb}"]["POST"].as_strategy(generation_mode=mode)


@pytest.mark.parametrize("mode", list(GenerationMode), ids=lambda mode: mode.value)
@pytest.mark.parametrize("verb", sorted(ANSWERS))
@settings(max_examples=60, deadline=None, suppress_health_check=SLOW)
@given(data=st.data())
def test_no_body_brings_the_extender_out_of_step(
    verb: str, mode: GenerationMode, data: st.DataObject, served: Served, caplog: pytest.LogCaptureFixture
) -> None:
    case = data.draw(cases(verb, mode))
    before = served.state()
    caplog.clear()
    answer = case.call(base_url=served.url)
    assert answer.status_code == 200
    case.validate_response(answer, checks=CHECKS)
    assert msgspec.json.decode(answer.content, type=ANSWERS[verb]) is not None
    assert served.state() == before
    assert [r.getMessage() for r in caplog.records if r.levelno >= logging.ERROR] == []
