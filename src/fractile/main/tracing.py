"""OpenTelemetry traces, switched on with ``--otlp-endpoint``: one trace for each pod, whose id is the pod's UID.

filter, prioritize and bind come as requests of their own, and the agent's part is in another program; all of them know
the UID, which has as many bits as a trace's id. So their spans meet in one trace, without anything being passed along.

Nothing of OpenTelemetry is imported, and nothing is measured, while it is off. Failure rule: open. Spans are sent by a
thread of the library's; those that a collector does not take are dropped, and no pod waits for it.
"""

import importlib.util
import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

import click

from fractile import __version__
from fractile.debug.trace_steps import TraceStep
from fractile.errors import SetupError

if TYPE_CHECKING:
    from opentelemetry.sdk.trace.export import SpanExporter

Command = TypeVar("Command", bound=Callable[..., Any])

_PATH = "/v1/traces"
_TIMEOUT = 5  # seconds for a collector to take a batch
_POD = "k8s.pod.uid"


def option(command: Command) -> Command:
    """The option of the command line."""
    added = click.option(
        "--otlp-endpoint",
        default="",
        metavar="URL",
        help="Where to send OpenTelemetry traces (OTLP/HTTP), such as http://collector:4318; needs the extra otel.",
    )
    return added(command)


class Tracing:
    """``trace`` takes what was decided; ``close`` sends what is left, within seconds."""

    def __init__(self, exporter: "SpanExporter", *, service: str, node: str = "", at_once: bool = False) -> None:
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor
        from opentelemetry.sdk.trace.id_generator import RandomIdGenerator

        class OfPods(RandomIdGenerator):
            """The trace's id is that of the pod whose step is being told."""

            pod = 0

            def generate_trace_id(self) -> int:
                return self.pod or super().generate_trace_id()

        resource = {
            "service.name": service,
            "service.version": __version__,
            **({"k8s.node.name": node} if node else {}),
        }
        self._ids = OfPods()
        self._provider = TracerProvider(
            resource=Resource.create(resource), id_generator=self._ids, shutdown_on_exit=False
        )
        processor = SimpleSpanProcessor(exporter) if at_once else BatchSpanProcessor(exporter)
        self._provider.add_span_processor(processor)
        self._tracer = self._provider.get_tracer("fractile", __version__)

    def trace(self, step: TraceStep) -> None:
        """One span. On the event loop, so that no other pod's comes between."""
        from opentelemetry.trace import Status, StatusCode

        namespace, _, name = step.pod.partition("/")
        known = {_POD: step.uid, "k8s.namespace.name": namespace, "k8s.pod.name": name}
        self._ids.pod = trace_id(step.uid)
        span = self._tracer.start_span(step.name, attributes={**known, **step.attributes}, start_time=step.began)
        if step.error:
            span.set_status(Status(StatusCode.ERROR, step.error[:1000]))
        span.end(step.ended)

    def close(self) -> None:
        """Blocks."""
        self._provider.shutdown()


def trace_id(uid: str) -> int:
    """128 bits that are the same wherever the pod is known; 0, by which one is drawn, for what is no UID."""
    try:
        return uuid.UUID(uid).int
    except ValueError:
        return 0


def tracing(endpoint: str, *, service: str, node: str = "") -> Tracing | None:
    """None when it is off. SetupError when it cannot be had."""
    if not endpoint:
        return None
    url = urlsplit(endpoint)
    if url.scheme not in ("http", "https") or not url.hostname:
        raise SetupError(f"--otlp-endpoint {endpoint!r} is not of the form http://HOST:PORT")
    try:
        found = importlib.util.find_spec("opentelemetry.exporter.otlp.proto.http.trace_exporter")
    except ModuleNotFoundError:
        found = None
    if found is None:
        raise SetupError(
            "--otlp-endpoint needs OpenTelemetry, which is not installed: install the wheel's extra otel (README.md)"
        )
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

    whole = endpoint if url.path.strip("/") else f"{endpoint.rstrip('/')}{_PATH}"
    return Tracing(OTLPSpanExporter(endpoint=whole, timeout=_TIMEOUT), service=service, node=node)
