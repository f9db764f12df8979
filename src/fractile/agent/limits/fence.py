"""Whether a pod's own mounts leave the library and the limits of its containers where the agent puts them. Pure.

The API server refuses such pods first (35-containers.yaml). This check is for clusters before Kubernetes 1.30, which
have no such policies, and for pods that are older than the policy. Neither sees a link in an image.
"""

from pathlib import PurePosixPath

from fractile.agent.kubelet.owner import Denied
from fractile.agent.limits import library, vcuda_folder
from fractile.region import directory
from fractile.wire.kubernetes.pod_mounts import MountingPod, inside_paths

OURS = (directory.MOUNT, library.PRELOADED, str(PurePosixPath(library.INSIDE).parent), vcuda_folder.MOUNT)
_PLAIN = frozenset({"cpuinfo", "diskstats", "loadavg", "meminfo", "slabinfo", "stat", "swaps", "uptime"})


def covers(path: str) -> bool:
    """Whether a mount at ``path`` could hide something of ours: it is at, below or above one of our paths, contains
    "..", which is never resolved here, or may be led there by the kernel's links. Extra slashes, "." and a missing
    first slash are ignored."""
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
    """Whether the path is below /proc or /dev/fd: /proc/self/root and the like are "/", and the runtime follows them
    when it mounts; /dev/fd is a link to /proc/self/fd. Some files in /proc, which lxcfs mounts, are not links."""
    if parts[:1] == ("proc",):
        return len(parts) != 2 or parts[1] not in _PLAIN
    return parts[:2] == ("dev", "fd")


def _meet(a: tuple[str, ...], b: tuple[str, ...]) -> bool:
    """Whether the paths are equal or one is below the other."""
    return all(x == y for x, y in zip(a, b, strict=False))
