"""kube-scheduler of old versions, each built once from its Go module and kept in the user's cache.

Upstream's go.mod pins every dependency, and replaces its staging modules by folders of its repository. A module that
requires it inherits neither, so ours repeats all its ``replace`` lines, with the staging modules at the release that
belongs to the version (v1.20.15: v0.20.15). What is built is then what upstream built, but for the newer compiler and
the few dependencies that it no longer accepts. sum.golang.org vouches for what is downloaded.
"""

import fcntl
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

from fractile.errors import SetupError
from fractile.lab.machine import programs

# The last release of each of which the module proxy has all staging modules (it lacks v0.25.14 to v0.25.16 of
# k8s.io/kube-scheduler); the current one is what local clusters run.
RELEASES = {
    "1.20": "v1.20.15",
    "1.22": "v1.22.17",
    "1.24": "v1.24.17",
    "1.25": "v1.25.0",
    "1.28": "v1.28.15",
    "1.30": "v1.30.14",
    "1.33": "v1.33.13",
    "1.36": programs.pinned_version(),
}
CURRENT = "1.36"

_PACKAGE = "k8s.io/kubernetes/cmd/kube-scheduler"
_TIMEOUT = 3600.0  # seconds; 2 to 5 minutes on two cores
# What compilers from Go 1.18 on cannot take: the older ones read maps in a way that the runtime no longer has.
_NEWER = {"github.com/modern-go/reflect2": "v1.0.2", "github.com/json-iterator/go": "v1.1.12"}
_STAGING = re.compile(r"^\s*(?:replace )?(k8s\.io/\S+) => \./staging/src/\S+$")
_PINNED = re.compile(r"^\s*(?:replace )?(\S+)(?: v\S+)? => (\S+) (v\S+)$")
_GO = re.compile(r"^go (\S+)$", re.MULTILINE)


class _Download(msgspec.Struct, rename={"go_mod": "GoMod"}):
    go_mod: str


def find(minor: str, env: Mapping[str, str]) -> Path | None:
    """The program, when it is there; nothing is built."""
    if minor == CURRENT:
        found = programs.find(env, ["kube-scheduler"])
        return Path(found["kube-scheduler"]) if found else None
    program = _folder(minor, env) / "kube-scheduler"
    return program if os.access(program, os.X_OK) else None


def build(minor: str, env: Mapping[str, str]) -> Path:
    """Build it; SetupError with Go's last words when that fails. A killed build leaves no half program."""
    go = shutil.which("go", path=os.pathsep.join((env.get("PATH", ""), *programs.GO_FOLDERS)))
    if go is None:
        raise SetupError("Go is missing; install Go 1.21 or newer")
    release = RELEASES[minor]
    folder = _folder(minor, env)
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # of two builds the second finds it there
        for stale in folder.glob(".build-*"):
            shutil.rmtree(stale, ignore_errors=True)  # left by a killed one
        return find(minor, env) or _build(go, release, folder, env)


def _build(go: str, release: str, folder: Path, env: Mapping[str, str]) -> Path:
    with tempfile.TemporaryDirectory(prefix=".build-", dir=folder) as work:
        told = _run([go, "mod", "download", "-json", f"k8s.io/kubernetes@{release}"], Path(work), env)
        upstream = Path(msgspec.json.decode(told, type=_Download).go_mod).read_text()
        Path(work, "go.mod").write_text(module_file(release, upstream))
        flags = ["-mod=mod", "-trimpath", "-ldflags", _ldflags(release), "-o", "kube-scheduler"]
        _run([go, "build", *flags, _PACKAGE], Path(work), env)
        Path(work, "kube-scheduler").replace(folder / "kube-scheduler")
    return folder / "kube-scheduler"


def module_file(release: str, upstream: str) -> str:
    """Our go.mod for a release, from upstream's."""
    go = _GO.search(upstream)
    assert go is not None, "upstream's go.mod has no go line"
    return "\n".join(
        [
            "module fractile.dev/versions",
            f"go {go[1]}",
            f"require k8s.io/kubernetes {release}",
            "replace (",
            *(f"\t{module} => {target} {version}" for module, target, version in _replaced(release, upstream)),
            ")",
            "",
        ]
    )


def _replaced(release: str, upstream: str) -> Iterator[tuple[str, str, str]]:
    staging = re.sub(r"^v1\.", "v0.", release)
    for line in upstream.splitlines():
        if found := _STAGING.match(line):
            yield found[1], found[1], staging
        elif (found := _PINNED.match(line)) and found[1] not in _NEWER:
            yield found[1], found[2], found[3]
    yield from ((module, module, version) for module, version in _NEWER.items())


def _ldflags(release: str) -> str:
    major, minor, _ = release.removeprefix("v").split(".")
    variables = {"gitVersion": release, "gitMajor": major, "gitMinor": minor}
    package = "k8s.io/component-base/version"
    return " ".join(["-s -w", *(f"-X {package}.{key}={value}" for key, value in variables.items())])


def _folder(minor: str, env: Mapping[str, str]) -> Path:
    """Beside those of local clusters."""
    current = programs.cache_dir(env)
    return current.with_name(current.name.replace(programs.pinned_version(), RELEASES[minor]))


def _run(command: list[str], work: Path, env: Mapping[str, str]) -> bytes:
    settings = {"CGO_ENABLED": "0", "GOFLAGS": "-p=1", "GOWORK": "off", "GO111MODULE": "on"}
    done = subprocess.run(
        command, cwd=work, env={**env, **settings}, capture_output=True, timeout=_TIMEOUT, check=False
    )
    if done.returncode != 0:
        said = done.stderr.decode(errors="replace").strip().splitlines()[-20:] or ["no output"]
        raise SetupError(f"{' '.join(command[:2])} failed: " + "\n".join(said))
    return done.stdout
