"""The Kubernetes programs: from KUBEBUILDER_ASSETS, from the user's cache, or built once from the pinned Go module.

Kubernetes publishes its programs as ordinary Go modules, so building them needs only Go (1.21 or newer fetches the
toolchain that go.mod names). Each program is built in a temporary folder and renamed into the cache, so a killed build
leaves nothing incomplete. Failure rule: closed, with a SetupError that names the remedy.
"""

import fcntl
import os
import platform
import re
import shutil
import subprocess
import tempfile
from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager
from importlib import resources
from pathlib import Path

import msgspec

from fractile.errors import SetupError
from fractile.lab.progress import Progress

PACKAGES = {
    "etcd": "go.etcd.io/etcd/server/v3",
    "kube-apiserver": "k8s.io/kubernetes/cmd/kube-apiserver",
    "kube-controller-manager": "k8s.io/kubernetes/cmd/kube-controller-manager",
    "kube-scheduler": "k8s.io/kubernetes/cmd/kube-scheduler",
    "kubelet": "k8s.io/kubernetes/cmd/kubelet",
    "kubectl": "k8s.io/kubernetes/cmd/kubectl",
}
ASSETS = "KUBEBUILDER_ASSETS"  # the convention of envtest
GO_FOLDERS = ("/usr/local/go/bin", "/usr/lib/go/bin")  # searched after PATH
_BUILD_TIMEOUT = 3600.0
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


class Programs(msgspec.Struct, frozen=True):
    """The folder that holds the programs."""

    folder: Path

    @classmethod
    def at(cls, folder: str) -> "Programs":
        return cls(Path(folder))

    def __getitem__(self, name: str) -> str:
        return str(self.folder / name)


def cache_dir(env: Mapping[str, str]) -> Path:
    """The user's cache folder for the pinned version and this machine's architecture."""
    base = Path(env.get("XDG_CACHE_HOME") or Path(env.get("HOME", "/")) / ".cache")
    machine = platform.machine()
    architecture = _ARCHITECTURES.get(machine, machine)
    return base / "fractile" / "kubernetes" / f"{pinned_version()}-{platform.system().lower()}-{architecture}"


def pinned_version() -> str:
    """The Kubernetes version that go.mod pins, such as v1.36.3."""
    found = re.search(r"k8s\.io/kubernetes (v[0-9]+\.[0-9]+\.[0-9]+)", _module_file("go.mod"))
    if found is None:
        raise SetupError("the package's go.mod names no version of k8s.io/kubernetes; reinstall fractile")
    return found[1]


def find(env: Mapping[str, str], names: Iterable[str] = PACKAGES) -> Programs | None:
    """The folder that has all ``names``, or None; nothing is built."""
    wanted = list(names)
    assets = env.get(ASSETS)
    candidates = [Path(assets)] if assets else []
    for folder in [*candidates, cache_dir(env)]:
        if not missing_in(folder, wanted):
            return Programs(folder)
    return None


def missing_in(folder: Path, names: Iterable[str]) -> list[str]:
    return [name for name in names if not os.access(folder / name, os.X_OK)]


def ensure(env: Mapping[str, str], progress: Progress, names: Iterable[str] = PACKAGES) -> Programs:
    """The folder that has all ``names``; programs that the cache lacks are built."""
    wanted = list(names)
    found = find(env, wanted)
    if found is not None:
        progress.line("Kubernetes programs", f"cached in {found.folder}")
        return found
    if env.get(ASSETS):
        lacks = ", ".join(missing_in(Path(env[ASSETS]), wanted))
        progress.line(ASSETS, f"{env[ASSETS]} lacks {lacks}; building them instead")
    folder = cache_dir(env)
    with _build_lock(folder):
        _build(folder, missing_in(folder, wanted), env, progress)
    return Programs(folder)


def _build(folder: Path, names: list[str], env: Mapping[str, str], progress: Progress) -> None:
    go = _go(env)
    for stale in folder.glob(".build-*"):
        shutil.rmtree(stale, ignore_errors=True)  # left by a killed build; we hold the lock
    with tempfile.TemporaryDirectory(prefix=".build-", dir=folder) as work:
        for name in ("go.mod", "go.sum"):
            Path(work, name).write_text(_module_file(name))
        for number, name in enumerate(names, 1):
            with progress.step(f"building {name} ({number} of {len(names)})", note="takes minutes, once") as step:
                _run_go(go, ["build", "-trimpath", "-ldflags", _ldflags(), "-o", name, PACKAGES[name]], Path(work), env)
                Path(work, name).replace(folder / name)
                step.done("built")


def _ldflags() -> str:
    version = pinned_version()
    major, minor, _ = version.removeprefix("v").split(".")
    package = "k8s.io/component-base/version"
    # Without these the nodes report v0.0.0 and kubectl complains of version skew.
    variables = {"gitVersion": version, "gitMajor": major, "gitMinor": minor, "gitTreeState": "clean"}
    return " ".join(["-s -w", *(f"-X {package}.{key}={value}" for key, value in variables.items())])


def _go(env: Mapping[str, str]) -> str:
    go = shutil.which("go", path=os.pathsep.join((env.get("PATH", ""), *GO_FOLDERS)))
    if go is None:
        raise SetupError(
            f"Kubernetes {pinned_version()} must be built once, but Go is missing; install Go 1.21 or newer, "
            f"or set {ASSETS} to a folder with {', '.join(PACKAGES)}"
        )
    return go


def _run_go(go: str, args: list[str], work: Path, env: Mapping[str, str]) -> None:
    try:
        done = subprocess.run(
            [go, *args],
            cwd=work,
            env={**env, "CGO_ENABLED": "0", "GOFLAGS": "", "GOWORK": "off"},
            capture_output=True,
            text=True,
            timeout=_BUILD_TIMEOUT,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise SetupError(f"go {' '.join(args[:1])} took longer than an hour; run fractile up again to go on") from None
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["no output"])[-1]
        raise SetupError(f"go could not build {args[-1]}: {last}")


@contextmanager
def _build_lock(folder: Path) -> Generator[None]:
    """Allow one build at a time per user; the second waits, then finds the programs."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _module_file(name: str) -> str:
    return resources.files("fractile.lab.machine").joinpath("kubernetes", name).read_text()
