"""What the nodes need from the operating system: containerd, runc, CNI plugins, a static busybox, iptables.

Failure rule: open. A machine that lacks them and cannot get them runs hollow nodes, and the reason is shown.
"""

import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from fractile.cluster import mounts
from fractile.cluster.node import CNI_FOLDERS
from fractile.cluster.progress import Progress

_SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_PROGRAMS = {
    "containerd": ("containerd", "ctr"),
    "runc": ("runc",),
    "busybox-static": ("busybox",),
    "iptables": ("iptables",),
    "iproute2": ("ip",),
}
_CNI = "containernetworking-plugins"
_APT_TIMEOUT = 900.0


def missing() -> list[str]:
    """The Debian packages whose programs are not here."""
    lacking = [package for package, programs in _PROGRAMS.items() if not all(_which(p) for p in programs)]
    if not any(os.access(f"{folder}/{plugin}", os.X_OK) for folder in CNI_FOLDERS for plugin in ("bridge",)):
        lacking.append(_CNI)
    return lacking


def why_hollow(progress: Progress, env: Mapping[str, str]) -> str:
    """Why this machine cannot have real nodes, after an attempt to install what is missing; empty when it can."""
    if os.geteuid() != 0:
        return "real nodes need root"
    if reason := mounts.why_impossible():
        return reason
    lacking = missing()
    if lacking and _which("apt-get"):
        with progress.step(f"installing {' '.join(lacking)}") as step:
            step.done(_install(lacking, env) or "installed")
        lacking = missing()
    return f"these packages are missing: {' '.join(lacking)}" if lacking else ""


def _install(packages: list[str], env: Mapping[str, str]) -> str:
    """Install without questions; what went wrong, empty when nothing did. A list of packages may be out of date."""
    problem = _apt(["install", "-y", "--no-install-recommends", *packages], env)
    if problem and not _apt(["update"], env):
        problem = _apt(["install", "-y", "--no-install-recommends", *packages], env)
    return problem


def _apt(args: list[str], env: Mapping[str, str]) -> str:
    quiet = {**env, "DEBIAN_FRONTEND": "noninteractive"}
    try:
        done = subprocess.run(
            ["apt-get", "-q", "-o", "DPkg::Lock::Timeout=120", *args],
            env=quiet,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_APT_TIMEOUT,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"apt-get {args[0]} took longer than {_APT_TIMEOUT:.0f} s"
    if done.returncode == 0:
        return ""
    return (done.stderr.strip().splitlines() or [f"apt-get {args[0]} failed"])[-1]


def _which(program: str) -> Path | None:
    found = shutil.which(program, path=_SYSTEM_PATH)
    return Path(found) if found else None
