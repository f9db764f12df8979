"""The agent's HTTP pages: its last picture, in four shapes.

    /metrics, /metric   Prometheus' text, or OpenMetrics on request; the second path is gpu-manager's
    /usage              JSON in gpu-manager's shape
    /v1/usage           the whole picture, as `fractile top` reads it
    /healthz            "ok" as long as the agent's loop runs, with the age of the picture

They show names of pods and their usage to every client that reaches the port, as gpu-manager and dcgm-exporter do.
"""

import asyncio
import os
import resource
import time
from collections.abc import Callable
from pathlib import Path

from fractile import __version__
from fractile.agent.usage.http import Handler, PageRequest, Response
from fractile.agent.usage.loop import UsageLoop
from fractile.kube.pacing import Clock
from fractile.metrics.exposition import OPENMETRICS, TEXT, wants_openmetrics
from fractile.metrics.gpu_manager import gpu_manager_usage
from fractile.metrics.node import AgentFigures, page
from fractile.wire.foreign import gpu_manager_usage as gpu_manager_wire
from fractile.wire.output import node_usage

_JSON = "application/json"
_NOTHING_KNOWN = ("unknown", "unknown", "unknown", "unknown")
_STATM = Path("/proc/self/statm")
_FDS = Path("/proc/self/fd")

_Look = tuple[int, int]  # polls so far, and how many of them took too long


class Pages:
    """The handlers by path."""

    def __init__(
        self,
        usage: UsageLoop,
        *,
        registrations: Callable[[], dict[str, int]] = dict,
        runtime: Callable[[], tuple[str, str, str, str]] | None = None,
        now: Clock = time.time,
    ) -> None:
        self._usage = usage
        self._registrations = registrations
        self._runtime = runtime
        self._now = now
        self._rendered: dict[bool, tuple[_Look, bytes]] = {}  # by whether it is OpenMetrics

    def routes(self) -> dict[str, Handler]:
        return {
            "/metrics": self.metrics,
            "/metric": self.metrics,
            "/usage": self.gpu_manager,
            "/v1/usage": self.picture,
            "/healthz": self.health,
        }

    async def metrics(self, request: PageRequest) -> Response:
        """Rendered at the first request after a poll and reused until the next one: however many clients scrape, a
        second costs one rendering."""
        openmetrics = wants_openmetrics(request.headers.get("accept", ""))
        look = self._usage.rounds, self._usage.late
        known = self._rendered.get(openmetrics)
        if known is None or known[0] != look:
            body = page(self._usage.present, self._figures()).render(openmetrics=openmetrics)
            known = self._rendered[openmetrics] = look, body
        return Response(known[1], OPENMETRICS if openmetrics else TEXT)

    async def gpu_manager(self, request: PageRequest) -> Response:
        return Response(gpu_manager_wire.encode(gpu_manager_usage(self._usage.present)), _JSON)

    async def picture(self, request: PageRequest) -> Response:
        return Response(node_usage.encode(self._usage.present), _JSON)

    async def health(self, request: PageRequest) -> Response:
        age = self._now() - self._usage.present.time
        return Response(f"ok, usage was read {age:.1f} s ago\n".encode())

    def _figures(self) -> AgentFigures:
        spent = resource.getrusage(resource.RUSAGE_SELF)
        return AgentFigures(
            version=__version__,
            looks=self._usage.rounds,
            late=self._usage.late,
            spent=self._usage.spent,
            found=self._usage.audit.found,
            evictions=self._usage.audit.evictions,
            kills=self._usage.audit.overdue.kills,
            cpu=spent.ru_utime + spent.ru_stime,
            resident=_resident(),
            descriptors=_descriptors(),
            tasks=len(asyncio.all_tasks()),
            registrations=self._registrations(),
            runtime=_NOTHING_KNOWN if self._runtime is None else self._runtime(),
        )


def _resident() -> int | None:
    try:
        return int(_STATM.read_text().split()[1]) * resource.getpagesize()
    except (OSError, ValueError, IndexError):
        return None


def _descriptors() -> int | None:
    try:
        return len(os.listdir(_FDS)) - 1  # not counting the one that lists them
    except OSError:
        return None
