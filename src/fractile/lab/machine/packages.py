"""The packages that nodes need from the operating system: containerd, runc, CNI plugins, a static busybox, iptables.

Failure rule: open. If they are missing and cannot be installed, the nodes are hollow, and the reason is shown.
"""

import os
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from shutil import which

from fractile.lab.machine import mounts
from fractile.lab.progress import Progress

CNI_FOLDERS = ("/usr/lib/cni", "/opt/cni/bin", "/usr/libexec/cni")  # Debian, upstream, Fedora
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_PROGRAMS = {
    "containerd": ("containerd", "ctr"),
    "runc": ("runc",),
    "busybox-static": ("busybox",),
    "iptables": ("iptables",),
    "iproute2": ("ip",),
}
_CNI = "containernetworking-plugins"
_APT_TIMEOUT = 900.0


def missing(search: str = SYSTEM_PATH, cni: Iterable[str] = CNI_FOLDERS) -> list[str]:
    """The Debian packages whose programs are not in ``search`` and ``cni``."""
    lacking = [name for name, programs in _PROGRAMS.items() if not all(which(p, path=search) for p in programs)]
    return lacking if any(os.access(f"{folder}/bridge", os.X_OK) for folder in cni) else [*lacking, _CNI]


def why_hollow(progress: Progress, env: Mapping[str, str]) -> str:
    """Why this machine cannot have real nodes, after an attempt to install what is missing; empty when it can."""
    if os.geteuid() != 0:
        return "real nodes need root"
    return mounts.why_impossible() or install_missing(progress, env)


def install_missing(
    progress: Progress, env: Mapping[str, str], *, search: str = SYSTEM_PATH, cni: Sequence[str] = CNI_FOLDERS
) -> str:
    """Install missing packages if there is apt-get; return what is still missing, as a reason, or "" for nothing."""
    lacking = missing(search, cni)
    apt = which("apt-get", path=search)
    problem = ""
    if lacking and apt:
        with progress.step(f"installing {' '.join(lacking)}", note="takes about a minute") as step:
            problem = _install(apt, lacking, env)
            step.done(f"failed: {problem}" if problem else "installed")
        lacking = missing(search, cni)
    if not lacking:
        return ""
    return f"missing packages: {' '.join(lacking)}" + (f" (apt-get: {problem})" if problem else "")


def _install(apt: str, packages: list[str], env: Mapping[str, str]) -> str:
    """Install without prompts, if needed after an update of the package lists; return the error, or "" for none."""
    install = ["install", "-y", "--no-install-recommends", *packages]
    problem = _run(apt, install, env)
    if problem and not _run(apt, ["update"], env):
        problem = _run(apt, install, env)
    return problem


def _run(apt: str, args: list[str], env: Mapping[str, str]) -> str:
    try:
        done = subprocess.run(
            [apt, "-q", "-o", "DPkg::Lock::Timeout=120", *args],
            env={**env, "DEBIAN_FRONTEND": "noninteractive"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_APT_TIMEOUT,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"{args[0]} took longer than {_APT_TIMEOUT:.0f} s"
    if done.returncode == 0:
        return ""
    return (done.stderr.strip().splitlines() or [f"{args[0]} ended with status {done.returncode}"])[-1]
