"""The mount namespace of a node, in which folders of the node are mounted on the fixed paths of kubelet and containerd.

    /var/lib/kubelet  <- nodes/N/kubelet   (shared within the namespace: kubelet's volumes must reach its containers)
    /run/containerd   <- nodes/N/run       shims always put their sockets there, whatever containerd's configuration
    /var/lib/cni      <- nodes/N/cni
    /var/log          <- nodes/N/log       kubelet's links to the containers' logs
    /var/lib/fractile-node, -simgpu <- nodes/N/agent, simgpu    for an agent that is a pod (chart.py)

The namespace is pinned by a bind mount of its file, so it outlives its processes; a reboot ends it. Programs enter it
with `nsenter --mount=PIN`. Facts: mount_namespaces(7), unshare(1).
"""

import contextlib
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from threading import Lock

from fractile.errors import SetupError
from fractile.lab.layout import ClusterLayout, NodeLayout
from fractile.lab.machine import processes
from fractile.lab.machine.processes import StartedProcess

_TIMEOUT = 20.0
_ONE_BY_ONE = Lock()  # the nodes of a cluster are prepared in parallel threads
AGENT = "/var/lib/fractile-node"  # /var/lib/fractile holds the clusters themselves
SIMGPU = "/var/lib/fractile-simgpu"
_TARGETS = ("/var/lib/kubelet", "/run/containerd", "/var/lib/cni", "/var/log", AGENT, SIMGPU)
_MOUNT = f"""
set -e
mount --bind "$1/kubelet" /var/lib/kubelet
mount --make-rshared /var/lib/kubelet
mount --bind "$1/run" /run/containerd
mount --bind "$1/cni" /var/lib/cni
mount --bind "$1/log" /var/log
mount --bind "$1/agent" "$1/agent"
mount --make-rshared "$1/agent"
mount --bind "$1/agent" {AGENT}
mount --bind "$1/simgpu" {SIMGPU}
"""


def enter(pin: Path) -> tuple[str, ...]:
    """The prefix that runs a command line in the pinned namespace."""
    return ("nsenter", f"--mount={pin}", "--")


def why_impossible() -> str:
    """Why this process cannot make mount namespaces; empty when it can."""
    done = subprocess.run(["unshare", "--mount", "true"], capture_output=True, text=True, timeout=_TIMEOUT, check=False)
    return "" if done.returncode == 0 else f"mount namespaces are not allowed here: {done.stderr.strip()}"


def is_complete(place: ClusterLayout, index: int) -> bool:
    """Whether the namespace of the node exists with all its mounts. The kernel detaches a mount whose folder another
    program removes, such as an empty `/run/containerd`."""
    pin, mark = place.pin(index), _complete_mark(place, index)
    made = is_pinned(pin) and mark.exists() and mark.read_text() == _identity(pin)
    return made and _mount_points_in(pin).issuperset(_TARGETS)


def make_namespace(place: ClusterLayout, index: int) -> None:
    """Make and pin the namespace of the node, with empty folders for runtime state."""
    pin, node = place.pin(index), place.node(index)
    release(pin)
    for runtime in (node.run, node.cni):  # sockets, sandboxes and leases of an earlier namespace
        shutil.rmtree(runtime, ignore_errors=True)
    _make_folders(place, node)
    pin.touch()
    _run("unshare", f"--mount={pin}", "--propagation", "private", "sh", "-c", _MOUNT, "mounts", str(node.root))
    _complete_mark(place, index).write_text(_identity(pin))


def is_pinned(pin: Path) -> bool:
    """Whether the file is a namespace: then it is on another file system (nsfs) than its folder."""
    try:
        return pin.stat().st_dev != pin.parent.stat().st_dev
    except FileNotFoundError:
        return False


def release(pin: Path) -> None:
    """Unpin the namespace; it ends with its last process."""
    while is_pinned(pin):  # concurrent starts may have stacked two pins
        _run("umount", "--lazy", str(pin))
    pin.unlink(missing_ok=True)


def processes_in(pin: Path) -> Iterator[StartedProcess]:
    """All processes in the pinned namespace: containerd, its shims, kubelet, agent; not those of containers."""
    if not is_pinned(pin):
        return
    wanted = pin.stat()
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        process = processes.identify(int(entry.name))
        try:
            namespace = (entry / "ns" / "mnt").stat()
        except OSError:
            continue
        if process and (namespace.st_ino, namespace.st_dev) == (wanted.st_ino, wanted.st_dev):
            yield process


def kill_all_in(pin: Path) -> int:
    """Kill all processes in the namespace until none is left; return their number."""
    count = 0
    for _ in range(20):  # a new fork may escape one pass, but not all
        found = [p for p in processes_in(pin) if p.pid != os.getpid()]
        if not found:
            return count
        count += len(found)
        for process in found:
            processes.send(process, signal.SIGKILL)
        for process in found:
            processes.wait(process, 5.0)
    raise SetupError(f"processes {[p.pid for p in processes_in(pin)]} do not end even on SIGKILL; see dmesg")


def unmount_below(folder: Path) -> None:
    """Unmount everything below ``folder`` in our own namespace, the latest mount first."""
    prefix = f"{folder}/"
    points = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    for point in reversed([p for p in points if p.startswith(prefix)]):
        _run("umount", "--lazy", point)


def remove_empty_targets() -> None:
    """Remove the folders that only served as mount points, unless they hold something or another namespace uses them.

    The kernel removes a folder on which another mount namespace has a mount, and detaches that mount: a node of another
    cluster would lose its containers' files.
    """
    used = _mount_points_everywhere()
    for target in _TARGETS:
        if target in used:
            continue
        with contextlib.suppress(OSError):  # in use by something else, or never made
            os.rmdir(target)


def _mount_points_everywhere() -> set[str]:
    """The mount points of every mount namespace that has a process or, like a node whose programs have ended, is
    pinned."""
    found: set[str] = set()
    for pin in _pins():
        found |= _mount_points_in(pin)
    seen: set[tuple[int, int]] = set()
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        with contextlib.suppress(OSError):  # the process has ended
            namespace = (entry / "ns" / "mnt").stat()
            key = namespace.st_dev, namespace.st_ino
            if key not in seen:
                found |= {line.split()[4] for line in (entry / "mountinfo").read_text().splitlines()}
                seen.add(key)
    return found


def _pins() -> list[Path]:
    """The pins of all mount namespaces, also of other clusters."""
    mounts = (line.split() for line in Path("/proc/self/mountinfo").read_text().splitlines())
    return [Path(point) for _, _, _, root, point, *_ in mounts if root.startswith("mnt:[")]


def _mount_points_in(pin: Path) -> set[str]:
    """The mount points of a pinned namespace; none if it is released meanwhile."""
    argv = [*enter(pin), "cat", "/proc/self/mountinfo"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=_TIMEOUT, check=False)
    return {line.split()[4] for line in done.stdout.splitlines()}


def _make_folders(place: ClusterLayout, node: NodeLayout) -> None:
    for folder in (node.kubelet, node.run, node.cni, node.log, node.agent, node.simgpu, place.pins):
        folder.mkdir(parents=True, exist_ok=True)
    for target in _TARGETS:
        Path(target).mkdir(parents=True, exist_ok=True)
    # unshare(1): the pin's folder must be a mount with private propagation. It must be mounted only once: a second
    # mount would hide the existing pins, which could then neither be reached nor removed.
    with _ONE_BY_ONE:
        mounted = (line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines())
        if str(place.pins) not in mounted:
            _run("mount", "--bind", str(place.pins), str(place.pins))
        _run("mount", "--make-private", str(place.pins))


def _complete_mark(place: ClusterLayout, index: int) -> Path:
    return place.node(index).root / "mounts"


def _identity(pin: Path) -> str:
    return f"{processes.boot_id()} {pin.stat().st_ino}"


def _run(*argv: str) -> None:
    done = subprocess.run(argv, capture_output=True, text=True, timeout=_TIMEOUT, check=False)
    if done.returncode != 0:
        raise SetupError(f"`{' '.join(argv[:3])} ...` failed: {done.stderr.strip()}")
