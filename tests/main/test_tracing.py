"""Traces: the verbs and the agent's part of one pod meet in one trace, and what is sent is OTLP."""

import subprocess
import sys
import threading
import uuid
from collections.abc import Generator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from fractile.debug.trace_steps import TraceStep
from fractile.errors import SetupError
from fractile.kube import paths
from fractile.main.tracing import Tracing, trace_id, tracing
from tests.agent.limits.test_enforce import until
from tests.agent.world import CARDS, Asks, world
from tests.builders import cards, resource
from tests.fakes.apiserver import FakeApiServer
from tests.main.process import control_plane
from tests.main.test_control_plane import bind, fitting, kubeconfig, submit

UID = "7f3d2c4e-52a1-4b0c-9d7e-0f6c1f0a9b11"


@pytest.fixture
def spans() -> Generator[tuple[Tracing, InMemorySpanExporter]]:
    exporter = InMemorySpanExporter()
    made = Tracing(exporter, service="fractile-test", node="n1", at_once=True)
    yield made, exporter
    made.close()


class Collector:
    """A receiver of OTLP over HTTP on the loopback address."""

    def __init__(self) -> None:
        self.requests: list[ExportTraceServiceRequest] = []
        self.paths: list[str] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                outer.paths.append(self.path)
                outer.requests.append(ExportTraceServiceRequest.FromString(body))
                self.send_response(200)
                self.send_header("Content-Type", "application/x-protobuf")
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.fixture
def collector() -> Generator[Collector]:
    made = Collector()
    yield made
    made.close()


def test_the_id_of_a_trace_is_the_uid_of_the_pod() -> None:
    assert trace_id(UID) == uuid.UUID(UID).int
    assert trace_id("mirror-pod") == 0


def test_a_step_is_a_span_with_its_times_and_names(spans: tuple[Tracing, InMemorySpanExporter]) -> None:
    told, exporter = spans
    told.trace(TraceStep("filter", UID, "team-a/p", 1_000, 3_000, "no room", {"asked": 4}))
    (span,) = exporter.get_finished_spans()
    assert (span.name, span.start_time, span.end_time) == ("filter", 1_000, 3_000)
    assert span.context is not None
    assert span.context.trace_id == uuid.UUID(UID).int
    assert span.attributes == {
        "k8s.pod.uid": UID,
        "k8s.namespace.name": "team-a",
        "k8s.pod.name": "p",
        "asked": 4,
    }
    assert (span.status.status_code, span.status.description) == (StatusCode.ERROR, "no room")
    assert dict(span.resource.attributes)["k8s.node.name"] == "n1"


def test_what_has_no_uid_gets_a_trace_of_its_own(spans: tuple[Tracing, InMemorySpanExporter]) -> None:
    told, exporter = spans
    for _ in range(2):
        told.trace(TraceStep("filter", "", "a/p", 1, 2))
    assert len({s.context.trace_id for s in exporter.get_finished_spans() if s.context}) == 2


async def test_the_agents_part_is_in_the_same_trace(spans: tuple[Tracing, InMemorySpanExporter]) -> None:
    told, exporter = spans
    async with world(agent=False) as w:
        w.traces = told
        w.start_agent()
        await w.ready()
        pod = w.bind(Asks("c", 2), on={"c": [CARDS[0]]})
        w.kubelet.add(w.pod(pod))
        await until(lambda: w.kubelet.started(pod, "c") is not None)
        await until(lambda: bool(exporter.get_finished_spans()))
    (span,) = exporter.get_finished_spans()
    assert span.name == "prestart"
    assert span.context is not None
    assert span.context.trace_id == trace_id(pod.metadata.uid) != 0
    assert span.status.status_code is StatusCode.UNSET


async def test_a_container_that_may_not_start_has_the_reason_in_its_pods_trace(
    spans: tuple[Tracing, InMemorySpanExporter],
) -> None:
    told, exporter = spans
    async with world(agent=False) as w:
        w.traces = told
        w.start_agent()
        await w.ready()
        pod = w.admit(Asks("c", 2), on=None)
        await w.kubelet.refused("has no placement")
        await until(lambda: bool(exporter.get_finished_spans()))
    first = exporter.get_finished_spans()[0]
    assert (first.name, first.status.status_code) == ("prestart", StatusCode.ERROR)
    assert "has no placement" in str(first.status.description)
    assert first.context is not None
    assert first.context.trace_id == trace_id(pod.metadata.uid) != 0


async def test_the_verbs_of_the_real_program_arrive_at_a_collector_in_one_trace(
    collector: Collector, tmp_path: Path
) -> None:
    async with FakeApiServer() as server:
        for card in cards("n1"):
            server.create(paths.extended_resources(), resource(card, "n1"))
        option = f"--otlp-endpoint={collector.url}"
        async with control_plane(kubeconfig(server, tmp_path), tmp_path, option) as running:
            await running.ready()
            pod = submit(server, "p")
            assert await fitting(running, pod) == ["n1"]
            assert await bind(running, pod) == ""
            running.process.terminate()  # what is not sent yet is sent then
            assert await running.ended() == 0
    assert set(collector.paths) == {"/v1/traces"}
    resources = [r for request in collector.requests for r in request.resource_spans]
    found = {s.name: s for r in resources for scope in r.scope_spans for s in scope.spans}
    assert found.keys() >= {"filter", "bind"}
    assert {s.trace_id for s in found.values()} == {uuid.UUID(pod.metadata.uid).bytes}
    assert {"service.name": "fractile-control-plane"}.items() <= {
        a.key: a.value.string_value for a in resources[0].resource.attributes
    }.items()
    on = {a.key: a.value.string_value for a in found["bind"].attributes}
    assert (on["k8s.node.name"], on["k8s.pod.name"]) == ("n1", "p")
    assert found["filter"].end_time_unix_nano >= found["filter"].start_time_unix_nano


@pytest.mark.parametrize("endpoint", ["collector:4318", "http://", "ftp://x"])
def test_an_address_that_cannot_be_one_is_a_sentence(endpoint: str) -> None:
    with pytest.raises(SetupError, match="is not of the form"):
        tracing(endpoint, service="x")


def test_without_the_option_nothing_of_it_is_imported() -> None:
    assert tracing("", service="x") is None
    program = "import sys, fractile.main.control_plane; print([m for m in sys.modules if 'opentelemetry' in m])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"
