"""OpenTelemetry traces, switched on with ``--otlp-endpoint``: one trace for each pod, whose id is the pod's UID.

filter, prioritize and bind are separate requests, and the agent's part is in another program; all of them know the UID,
which has as many bits as a trace's id. So their spans meet in one trace without passing anything along.

While it is off, nothing of OpenTelemetry is imported and nothing is measured. Failure rule: open. A thread of the
library sends the spans; those that a collector does not take are dropped, and no pod waits for it.
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
    """Add the option of the command line."""
    added = click.option(
        "--otlp-endpoint",
        default="",
        metavar="URL",
        help="Where to send OpenTelemetry traces (OTLP/HTTP), such as http://collector:4318; needs the extra otel.",
    )
    return added(command)


class Tracing:
    """``trace`` records a step; ``close`` sends the remaining ones, within seconds."""

    def __init__(self, exporter: "SpanExporter", *, service: str, node: str = "", at_once: bool = False) -> None:
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor
        from opentelemetry.sdk.trace.id_generator import RandomIdGenerator

        class OfPods(RandomIdGenerator):
            """Takes the trace's id from the pod of the current step."""

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
        """Record one span. Call it on the event loop, so that no other pod's span comes in between."""
        from opentelemetry.trace import Status, StatusCode

        namespace, _, name = step.pod.partition("/")
        known = {_POD: step.uid, "k8s.namespace.name": namespace, "k8s.pod.name": name}
        self._ids.pod = trace_id(step.uid)
        span = self._tracer.start_span(step.name, attributes={**known, **step.attributes}, start_time=step.began)
        if step.error:
            span.set_status(Status(StatusCode.ERROR, step.error[:1000]))
        span.end(step.ended)

    def close(self) -> None:
        """Send the remaining spans; blocks."""
        self._provider.shutdown()


def trace_id(uid: str) -> int:
    """The pod's UID as 128 bits, the same in every program; 0 if it is not a UID, so that an id is drawn."""
    try:
        return uuid.UUID(uid).int
    except ValueError:
        return 0


def tracing(endpoint: str, *, service: str, node: str = "") -> Tracing | None:
    """The tracing; None when it is off. Raises SetupError when it is impossible."""
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
