"""The C programs and libraries for the nodes of a local cluster: built once per state of the sources, kept in a cache.

    <cache>/fractile/native/<content of native/>/   libfractile.so fractile-arbiter fractile-slice probe
                                                    simgpu/{libcuda.so.1, libnvidia-ml.so.1, simgpu-ctl}

Failure rule: open. Without sources, compiler or make, the cluster starts without the library, and a line says so with
the remedy. Sources that do not compile are an error.
"""

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path

from fractile import __version__
from fractile.errors import SetupError
from fractile.lab.progress import Progress

PREBUILT = "FRACTILE_NATIVE"  # a folder with all files, instead of a build
_SOURCES = ("abi", "arbiter", "clock", "interposer", "region", "simgpu", "slice", "symbols")
_TARGETS = {
    "interposer/libfractile.so": "libfractile.so",
    "slice/fractile-slice": "fractile-slice",
    "arbiter/fractile-arbiter": "fractile-arbiter",
    "simgpu/libcuda.so.1": "simgpu/libcuda.so.1",
    "simgpu/libnvidia-ml.so.1": "simgpu/libnvidia-ml.so.1",
    "simgpu/simgpu-ctl": "simgpu/simgpu-ctl",
}
PROBE = "probe"
_TIMEOUT = 600.0  # seconds; a build takes seven on two idle cores
_KEPT = 14 * 86400.0  # seconds since a build was last used


def ensure(env: Mapping[str, str], progress: Progress, *, root: Path | None = None) -> str:
    """The folder with all files, built if needed; "", with a progress line, if impossible. ``root``: the repository."""
    if env.get(PREBUILT):
        return _prebuilt(Path(env[PREBUILT]), progress)
    root = root or Path(__file__).parents[4]
    if not (root / "native" / "Makefile").is_file():
        return _without(
            progress, f"this installation has no sources of the library; set {PREBUILT} to a folder that has it built"
        )
    lacking = [name for name in ("cc", "make") if shutil.which(name, path=env.get("PATH")) is None]
    cache = cache_dir(env)
    folder = cache / fingerprint(root)
    if not folder.is_dir():
        if lacking:
            return _without(progress, f"{' and '.join(lacking)} missing; install the packages gcc, libc6-dev and make")
        with _lock(cache), progress.step("building the library and simgpu", note="takes up to a minute, once") as step:
            _forget_old(cache)
            folder = _built(root, cache, env)
            step.done("built")
    os.utime(folder)
    progress.line("library and simgpu", f"in {folder}")
    return str(folder)


def cache_dir(env: Mapping[str, str]) -> Path:
    base = Path(env.get("XDG_CACHE_HOME") or Path(env.get("HOME", "/")) / ".cache")
    return base / "fractile" / "native"


def fingerprint(root: Path) -> str:
    """A hash of the build's inputs, which names its folder."""
    native = root / "native"
    files = [native / "Makefile", _probe(root)]
    files += sorted(
        p for name in _SOURCES for p in (native / name).rglob("*") if p.is_file() and "__pycache__" not in p.parts
    )
    digest = hashlib.sha256(__version__.encode())
    for path in files:
        data = path.read_bytes()
        digest.update(f"{path.relative_to(root)} {len(data)}\n".encode())
        digest.update(data)
    return digest.hexdigest()[:20]


def _prebuilt(folder: Path, progress: Progress) -> str:
    lacking = [name for name in (*_TARGETS.values(), PROBE) if not (folder / name).is_file()]
    if lacking:
        raise SetupError(
            f"{PREBUILT} names {folder}, which lacks {', '.join(lacking)}; build it with fractile up from the sources"
        )
    progress.line("library and simgpu", f"in {folder}")
    return str(folder.absolute())


def _without(progress: Progress, reason: str) -> str:
    progress.line("limits inside containers", f"not enforced: {reason}")
    return ""


def _built(root: Path, cache: Path, env: Mapping[str, str]) -> Path:
    """The folder of a build from a copy of the sources, since they may change during the build."""
    with tempfile.TemporaryDirectory(prefix=".build-", dir=cache) as work:
        copy = Path(work, "sources")
        shutil.copytree(root / "native", copy / "native", ignore=shutil.ignore_patterns("build", "__pycache__"))
        _probe(copy).parent.mkdir(parents=True)
        shutil.copy2(_probe(root), _probe(copy))
        folder = cache / fingerprint(copy)
        if not folder.is_dir():
            _build(copy, Path(work), env).rename(folder)
        return folder


def _build(root: Path, work: Path, env: Mapping[str, str]) -> Path:
    out, ready = work / "out", work / "ready"
    jobs = str(os.cpu_count() or 1)
    options = [f"OUT={out}", f"PYTHON={sys.executable}", "SANITIZE=", "POINTS=", f"FRACTILE_VERSION={__version__}"]
    _run(["make", "-s", "-j", jobs, "-C", str(root / "native"), *options, *(f"{out}/{t}" for t in _TARGETS)], env)
    (ready / "simgpu").mkdir(parents=True)
    for target, name in _TARGETS.items():
        shutil.copy2(out / target, ready / name)
    stubs = work / "stubs"
    stubs.mkdir()
    (stubs / "libcuda.so").symlink_to(ready / "simgpu" / "libcuda.so.1")
    _run(["cc", "-O2", "-o", str(ready / PROBE), str(_probe(root)), f"-L{stubs}", "-lcuda", "-ldl"], env)
    return ready


def _probe(root: Path) -> Path:
    return root / "examples" / "cuda" / "probe.c"


def _run(argv: list[str], env: Mapping[str, str]) -> None:
    plain = {k: v for k, v in env.items() if not k.startswith("MAKE") and k not in ("CFLAGS", "LDFLAGS")}
    try:
        done = subprocess.run(
            argv, env=plain, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_TIMEOUT, check=False
        )
    except subprocess.TimeoutExpired:
        raise SetupError(
            f"{argv[0]} took longer than {_TIMEOUT:.0f} s; run fractile up again when the machine is less busy"
        ) from None
    if done.returncode != 0:
        said = [line for line in done.stderr.splitlines() if line.strip()]
        first = next((line for line in said if "error" in line), said[-1] if said else "no output")
        raise SetupError(f"the library does not compile: {first.strip()[:300]}; see make -C native")


@contextmanager
def _lock(folder: Path) -> Generator[None]:
    """Allow one build at a time; the second waits, then finds the result."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _forget_old(cache: Path) -> None:
    """Remove builds that have not been used for long, and what killed builds left; needs the lock."""
    for folder in cache.iterdir():
        old = folder.is_dir() and folder.stat().st_mtime < time.time() - _KEPT
        if old or folder.name.startswith(".build-"):
            shutil.rmtree(folder, ignore_errors=True)
