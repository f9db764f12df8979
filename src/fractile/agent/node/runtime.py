"""How this node's container runtime exposes cards, read once at the start: a pod that requested none may see all.

    Node.status.nodeInfo ─> which runtime        its files, below ``host`` ─> is NVIDIA's runtime the default?
    NVIDIA's file ─> does NVIDIA_VISIBLE_DEVICES of an unprivileged container count, and by which mode

Reported in the log, as an event of the node, and as a metric; docs/operate/security.md says what follows from it.
``host`` is the node's file system: /proc/1/root with the host's processes. Failure rule: open. What cannot be read is
"unknown", and settings on a runtime's command line are not seen.
"""

import asyncio
import glob
import logging
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal

import msgspec

from fractile.errors import ApiError, Unreachable, WireError
from fractile.kube import paths
from fractile.kube.client import KubeClient
from fractile.kube.events import EventRecorder, ObjectRef
from fractile.kube.pacing import Sleep
from fractile.model.units import NodeName
from fractile.wire.foreign import runtime_files
from fractile.wire.kubernetes.objects import KubeStruct, ObjectMeta

REASON = "ContainerRuntime"
UNKNOWN = "unknown"

# Paths of these files: as packaged, k3s, RKE2; NVIDIA's as packaged and as its operator installs it.
_CONTAINERD = (
    "/etc/containerd/config.toml",
    "/var/lib/rancher/k3s/agent/etc/containerd/config.toml",
    "/var/lib/rancher/rke2/agent/etc/containerd/config.toml",
)
_CRIO = ("/etc/crio/crio.conf", "/etc/crio/crio.conf.d/*")
_DOCKER = "/etc/docker/daemon.json"
_NVIDIA = (
    "/usr/local/nvidia/toolkit/.config/nvidia-container-runtime/config.toml",
    "/etc/nvidia-container-runtime/config.toml",
)
_FILES_OF = {"containerd": _CONTAINERD, "cri-o": _CRIO, "docker": (_DOCKER,)}
_MOST = 1024 * 1024  # bytes of a file
_FILES = 64  # imported files at most
_AGAIN = 60.0  # seconds, while the API server does not answer

Default = Literal["default", "not-default", "unknown"]

log = logging.getLogger(__name__)


class _Info(KubeStruct, frozen=True):
    container_runtime_version: str = ""


class _Status(KubeStruct, frozen=True):
    node_info: _Info = _Info()


class _Node(KubeStruct, frozen=True):
    metadata: ObjectMeta = ObjectMeta()
    status: _Status = _Status()


class Setup(msgspec.Struct, frozen=True):
    """``runtime``: containerd, cri-o, docker or unknown; ``nvidia``: whether NVIDIA's is its default; ``variable``:
    accepted, refused or unknown; ``mode``: auto, legacy, cdi, csv or unknown."""

    runtime: str = UNKNOWN
    nvidia: Default = "unknown"
    variable: str = UNKNOWN
    mode: str = UNKNOWN


def read(host: Path, version: str) -> Setup:
    """``version`` as the Node object has it, such as ``containerd://2.1.4``. Blocks on files."""
    runtime = version.partition("://")[0]
    default = {"containerd": _containerd, "cri-o": _crio, "docker": _docker}.get(runtime)
    nvidia = next((text for path in _NVIDIA if (text := _text(host, path)) is not None), None)
    found = _nvidia(nvidia)
    return Setup(
        runtime if default is not None else UNKNOWN,
        default(host) if default is not None else "unknown",
        found.variable if found else UNKNOWN,
        found.mode if found else UNKNOWN,
    )


def sentence(setup: Setup) -> tuple[bool, str]:
    """Whether an administrator must act, and the text of the report."""
    said = f"the node's container runtime is {setup.runtime}; {_of_default(setup)}; {_of_variable(setup)}"
    if setup.variable == "refused":
        return True, (
            f"{said}. Containers of Fractile's pods name their cards by that variable and will see none: set "
            "accept-nvidia-visible-devices-envvar-when-unprivileged = true in NVIDIA's config.toml"
        )
    if setup.nvidia == "default" and setup.variable == "accepted":
        return True, (
            f"{said}. A pod that asks for nothing sees all cards of this node if its image or envFrom sets the "
            "variable, as CUDA's images do: make runc the default and give NVIDIA's runtime to GPU pods by a "
            "RuntimeClass, or rely on the audit (--outside-ledger=evict)"
        )
    if setup.nvidia == "unknown" or (setup.nvidia == "default" and setup.variable == UNKNOWN):
        return False, (
            f"{said}. So it is not known whether a container gets all cards if its image sets that variable: check the "
            "runtime's configuration (docs/operate/security.md, How a node hands out cards)"
        )
    return False, said


def _of_default(setup: Setup) -> str:
    if setup.nvidia != "unknown":
        return f"NVIDIA's runtime is {'' if setup.nvidia == 'default' else 'not '}its default"
    files = _FILES_OF.get(setup.runtime)
    why = f"could not read {_or(files)}" if files else "supports only containerd, CRI-O and Docker"
    return f"whether NVIDIA's runtime is its default is not known: the agent {why}"


def _of_variable(setup: Setup) -> str:
    why = f" (the agent could not read {_or(_NVIDIA)})" if setup.variable == UNKNOWN else ""
    return f"NVIDIA_VISIBLE_DEVICES of unprivileged containers: {setup.variable}; mode: {setup.mode}{why}"


def _or(files: Sequence[str]) -> str:
    return " or ".join(filter(None, (", ".join(files[:-1]), files[-1])))


class RuntimeCheck:
    """``run`` reports once; ``setup`` is shown by the metric."""

    def __init__(
        self,
        client: KubeClient,
        events: EventRecorder,
        *,
        node: NodeName,
        host: Path,
        real: bool = True,
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        self._client = client
        self._events = events
        self._node = node
        self._host = host
        self._real = real  # with simulated cards NVIDIA's runtime is not involved
        self._sleep = sleep
        self.setup = Setup()

    def labels(self) -> tuple[str, str, str, str]:
        """For the metric."""
        return self.setup.runtime, self.setup.nvidia, self.setup.variable, self.setup.mode

    async def run(self) -> None:
        """Returns after the report."""
        while True:
            try:
                node = await self._client.get(paths.node(self._node), _Node)
                break
            except (ApiError, Unreachable, WireError) as e:
                log.warning("container runtime not known yet reason=%s", e)
                await self._sleep(_AGAIN)
        self.setup = await asyncio.to_thread(read, self._host, node.status.node_info.container_runtime_version)
        matters, text = sentence(self.setup)
        warn = matters and self._real
        log.log(logging.WARNING if warn else logging.INFO, "%s", text)
        about = ObjectRef("Node", "", self._node, node.metadata.uid)
        self._events.emit(about, REASON, text, "Warning" if warn else "Normal")


def _containerd(host: Path) -> Default:
    known = False
    default = ""
    for path in _CONTAINERD:
        for found in _with_imports(host, path):
            known = True
            default = found.default or default
    return _is_nvidia(default or "runc") if known else "unknown"


def _with_imports(host: Path, path: str) -> Iterable[runtime_files.Containerd]:
    first = _parsed(_text(host, path))
    if first is None:
        return ()
    more = [p for pattern in first.imports for p in _matching(host, os.path.join(os.path.dirname(path), pattern))]
    return (first, *(found for p in more[:_FILES] if (found := _parsed(_text(host, p))) is not None))


def _parsed(text: str | None) -> runtime_files.Containerd | None:
    try:
        return None if text is None else runtime_files.containerd(text)
    except WireError as e:
        log.info("container runtime's file not understood reason=%s", e)
        return None


def _crio(host: Path) -> Default:
    default, known = "", False
    for path in (p for pattern in _CRIO for p in _matching(host, pattern)):
        text = _text(host, path)
        try:
            default = (runtime_files.crio(text) if text is not None else "") or default
            known = known or text is not None
        except WireError as e:
            log.info("container runtime's file not understood reason=%s", e)
    return _is_nvidia(default or "runc") if known else "unknown"


def _docker(host: Path) -> Default:
    text = _text(host, _DOCKER)
    try:
        return "unknown" if text is None else _is_nvidia(runtime_files.docker(text) or "runc")
    except WireError:
        return "unknown"


def _is_nvidia(name: str) -> Default:
    return "default" if name.startswith("nvidia") else "not-default"


def _nvidia(text: str | None) -> runtime_files.NvidiaRuntime | None:
    try:
        return None if text is None else runtime_files.nvidia(text)
    except WireError as e:
        log.info("NVIDIA's file not understood reason=%s", e)
        return None


def _matching(host: Path, pattern: str) -> list[str]:
    """Paths of the node that match, sorted."""
    root = str(host).rstrip("/")
    return [path.removeprefix(root) for path in sorted(glob.glob(f"{glob.escape(root)}{pattern}"))]


def _text(host: Path, path: str) -> str | None:
    try:
        descriptor = os.open(f"{host}{path}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as file:
            return file.read(_MOST).decode("utf-8", "replace")
    except OSError:
        return None
