"""Whether a pod's own mounts leave the library and the limits of its containers where the agent puts them. Pure.

The API server refuses such pods first (35-containers.yaml). This is for clusters before Kubernetes 1.30, which have no
such policies, and for pods that are older than the policy. A link in an image is seen by neither.
"""

from pathlib import PurePosixPath

from fractile.agent.kubelet.owner import Denied
from fractile.agent.limits import library, vcuda_folder
from fractile.region import directory
from fractile.wire.kubernetes.pod_mounts import MountingPod, inside_paths

OURS = (directory.MOUNT, library.PRELOADED, str(PurePosixPath(library.INSIDE).parent), vcuda_folder.MOUNT)
_PLAIN = frozenset({"cpuinfo", "diskstats", "loadavg", "meminfo", "slabinfo", "stat", "swaps", "uptime"})


def covers(path: str) -> bool:
    """Whether what is mounted at ``path`` could take the place of something of ours: it lies at, below or above it, is
    a path with "..", about which no guess is made, or one that the kernel's links may lead there. Slashes too many, "."
    and a missing first slash mean nothing."""
    parts = tuple(part for part in path.split("/") if part not in ("", "."))
    return ".." in parts or _led(parts) or any(_meet(parts, tuple(ours.split("/")[1:])) for ours in OURS)


def denied(pod: MountingPod) -> Denied | None:
    """Why no container of the pod may start; None: they may."""
    for container, path in inside_paths(pod):
        if covers(path):
            return Denied(
                f"container {container} of pod {pod.metadata.namespace}/{pod.metadata.name} has a mount, device or "
                f"terminationMessagePath at {path[:200]}; Fractile puts its library and the limits of the container at "
                f"{', '.join(OURS)}, so nothing may be mounted there, below or on a parent directory, nor at a path "
                'with ".." or below /proc or /dev/fd, whose links lead there: choose another path and create the pod '
                "again"
            )
    return None


def _led(parts: tuple[str, ...]) -> bool:
    """Whether the path is one of /proc or /dev/fd: /proc/self/root and its like are "/", and the runtime follows them
    when it mounts; /dev/fd is a link to /proc/self/fd. Some files of /proc itself, which lxcfs mounts, are no links."""
    if parts[:1] == ("proc",):
        return len(parts) != 2 or parts[1] not in _PLAIN
    return parts[:2] == ("dev", "fd")


def _meet(a: tuple[str, ...], b: tuple[str, ...]) -> bool:
    """Whether one is the other or lies below it."""
    return all(x == y for x, y in zip(a, b, strict=False))
