"""One process of a cluster: what to run and how to tell that it works. Starting and stopping are level-triggered.

Failure rule: a component that ends or is not ready in time is a SetupError with the last line of its log.
"""

import asyncio
import http.client
import os
import socket
import ssl
from pathlib import Path
from time import monotonic
from urllib.parse import urlsplit

import msgspec

from fractile.errors import SetupError
from fractile.lab.cluster.certificates import KeyPair
from fractile.lab.layout import ClusterLayout
from fractile.lab.machine import processes
from fractile.lab.machine.processes import StartedProcess
from fractile.lab.progress import Progress

READY_TIMEOUT = 120.0  # seconds; the slowest component takes 5 on an idle machine with two cores
_PROBE_TIMEOUT = 5.0
_POLL = 0.1


class HttpProbe(msgspec.Struct, frozen=True):
    """A component is ready when a GET returns 200."""

    url: str
    ca: Path | None = None
    pair: KeyPair | None = None

    def ready(self) -> bool:
        url = urlsplit(self.url)
        assert url.hostname is not None
        if url.scheme == "http":
            connection = http.client.HTTPConnection(url.hostname, url.port, timeout=_PROBE_TIMEOUT)
        else:
            connection = http.client.HTTPSConnection(
                url.hostname, url.port, timeout=_PROBE_TIMEOUT, context=self._context()
            )
        try:
            connection.request("GET", url.path)
            return connection.getresponse().status == 200
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()

    def _context(self) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=str(self.ca))
        if self.pair is not None:
            context.load_cert_chain(self.pair.cert, self.pair.key)
        return context


class SocketProbe(msgspec.Struct, frozen=True):
    """A component is ready when its unix socket accepts connections."""

    path: Path

    def ready(self) -> bool:
        with socket.socket(socket.AF_UNIX) as one:
            one.settimeout(_PROBE_TIMEOUT)
            try:
                one.connect(str(self.path))
            except OSError:
                return False
        return True


class Component(msgspec.Struct, frozen=True):
    """``argv``: the command line of the process. ``enter``: the prefix that runs it in its mount namespace."""

    name: str
    argv: tuple[str, ...]
    enter: tuple[str, ...] = ()
    probe: HttpProbe | SocketProbe | None = None
    grace: float = 3.0  # seconds between SIGTERM and SIGKILL when it is stopped
    env: dict[str, str] = {}


class ComponentLook(msgspec.Struct, frozen=True):
    """The observed state of a component."""

    name: str
    pid: int | None
    log: str


def running(place: ClusterLayout, component: Component) -> StartedProcess | None:
    return processes.running(place.record(component.name))


def start(place: ClusterLayout, component: Component) -> StartedProcess:
    """Start the component unless it runs."""
    process = running(place, component)
    if process is not None:
        return process
    return processes.start(
        [*component.enter, *component.argv],
        record=place.record(component.name),
        log=place.log(component.name),
        env={**_environment(), **component.env},
    )


async def ensure(place: ClusterLayout, component: Component, progress: Progress) -> bool:
    """Start the component unless it runs, and wait until it is ready; True when it had to be started."""
    if running(place, component) is not None:
        await wait_ready(place, component)
        progress.line(component.name, "running already")
        return False
    with progress.step(component.name) as step:
        start(place, component)
        await wait_ready(place, component)
        step.done("started")
    return True


async def wait_ready(place: ClusterLayout, component: Component, *, timeout: float = READY_TIMEOUT) -> None:
    """Wait until the component is ready; SetupError when it ends or takes longer than ``timeout``."""
    deadline = monotonic() + timeout
    while True:
        if running(place, component) is None:
            raise SetupError(f"{component.name} ended right after its start: {last_line(place, component.name)}")
        if component.probe is None or await asyncio.to_thread(component.probe.ready):
            return
        if monotonic() > deadline:
            raise SetupError(
                f"{component.name} was not ready after {timeout:.0f} s: {last_line(place, component.name)}"
            )
        await asyncio.sleep(_POLL)


def stop(place: ClusterLayout, name: str, *, grace: float) -> bool:
    """Stop the recorded process of that name; False when it does not run."""
    process = processes.running(place.record(name))
    if process is not None:
        processes.stop(process, grace=grace)
    place.record(name).unlink(missing_ok=True)
    return process is not None


def seen(place: ClusterLayout, component: Component) -> ComponentLook:
    process = running(place, component)
    return ComponentLook(component.name, process.pid if process else None, str(place.log(component.name)))


def last_line(place: ClusterLayout, name: str) -> str:
    """The last line of the component's log, and the log's path."""
    path = place.log(name)
    try:
        with path.open("rb") as log:
            log.seek(max(0, path.stat().st_size - 4096))
            lines = log.read().decode(errors="replace").strip().splitlines()
    except FileNotFoundError:
        lines = []
    said = lines[-1].strip()[:300] if lines else "it wrote nothing"
    return f"{said} (see {path})"


def _environment() -> dict[str, str]:
    """The caller's environment without variables that would point a program at another cluster."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("KUBE")}
    return env | {"PATH": env.get("PATH", "") + ":/usr/local/sbin:/usr/sbin:/sbin:/usr/local/bin:/usr/bin:/bin"}
