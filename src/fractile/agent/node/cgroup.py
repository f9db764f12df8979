"""Which pod and container a process is in, from the text of ``/proc/<pid>/cgroup``. Pure.

Kubelet and the runtimes spell the path in many ways: cgroup v1 (a line per controller) and v2 (one line), cgroupfs and
systemd drivers, containerd, CRI-O and docker, with and without cgroups per QoS class, clusters inside containers. They
have in common that ``pod<uid>`` (with underscores under systemd) precedes the container's id, 64 hex digits. A
container can make cgroups below its own and give them any name, so outer parts take precedence.
"""

import re

import msgspec

from fractile.agent.node import kernel_text
from fractile.model.units import PodUID

_UID = r"[0-9a-f]{8}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{12}|[0-9a-f]{32}"  # static pods: a hash
_POD = re.compile(rf"(?<![a-z0-9])pod({_UID})(?![0-9a-z])")
_CONTAINER = re.compile(r"(?<![0-9a-z])([0-9a-f]{64})(?![0-9a-z])")
_MONITOR = "conmon-"  # CRI-O's own process for a container
_CONTROLLERS = ("", "memory", "devices", "pids", "cpu")  # "" is v2; every runtime sets the others


class CgroupPlace(msgspec.Struct, frozen=True):
    """Where a process runs. Either may be unknown: ""."""

    pod_uid: PodUID = PodUID("")
    container_id: str = ""


def places(text: str) -> tuple[CgroupPlace, ...]:
    """The pods and containers that the process is in, the outermost first; empty for a process of the host."""
    found: list[CgroupPlace] = []
    for path in _paths(text):
        found += [place for place in _along(path) if place not in found]
    return tuple(found)


def _paths(text: str) -> list[str]:
    """The paths of the relevant lines, those of the most reliable controllers first."""
    by_controller: dict[str, str] = {}
    for line in kernel_text.lines(text):
        parts = line.split(":", 2)
        if len(parts) == 3:
            for controller in parts[1].split(","):
                by_controller.setdefault(controller, parts[2])
    return list(dict.fromkeys(by_controller[c] for c in _CONTROLLERS if c in by_controller))


def _along(path: str) -> list[CgroupPlace]:
    pods = [(m.start(), PodUID(m[1].replace("_", "-"))) for m in _POD.finditer(path)]
    ids = [(m.start(), m[1]) for m in _CONTAINER.finditer(path) if not path.endswith(_MONITOR, 0, m.start())]
    if not pods:
        return [CgroupPlace(container_id=container) for _, container in ids]
    ends = [at for at, _ in pods[1:]] + [len(path)]
    return [
        CgroupPlace(uid, next((container for where, container in ids if at < where < end), ""))
        for (at, uid), end in zip(pods, ends, strict=True)
    ]
