"""`make image`: the container image of control plane and agent, built here without a registry or a container runtime.

    layer 1   Debian's Python and its libraries, without a shell    (debian.py)
    layer 2   the Python packages of constraints.txt, as bytecode
    layer 3   Fractile, the library, the arbiter, simgpu

Both programs share one image: the agent needs everything except numpy, so two images would duplicate the rest. Parts
that change often are on top, so an upgrade transfers one small layer. Each layer is kept in the user's cache under a
hash of its inputs. The Containerfile builds the same image from a base image, for machines that do not run Debian.
"""

import compileall
import hashlib
import os
import platform
import py_compile
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

import msgspec

from fractile.errors import SetupError
from fractile.lab.image import debian, oci, sbom
from fractile.lab.image.oci import Config, ImageLayer
from fractile.lab.machine import native, portable
from fractile.lab.progress import Progress, ProgressStep

REPOSITORY = "fractile.dev/fractile"
USER = "65532:65532"  # an unprivileged user, as in other images without a shell; the agent's pod overrides it with root
PREFIX = "usr/local"
NATIVE = f"{PREFIX}/lib/fractile"  # libfractile.so, fractile-arbiter, simgpu: a path without Python's version

_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
_TIMEOUT = 600.0
_KEPT = 3 * 86400.0  # seconds for which an image of a local cluster is kept after its last use
_PYTHON = f"python{sys.version_info.major}.{sys.version_info.minor}"
_SITE = f"{PREFIX}/lib/{_PYTHON}/dist-packages"
_LAUNCHER = f"#!/usr/bin/{_PYTHON} -Es\nfrom fractile.main.cli import main\n\nmain()\n"
_PASSWD = "root:x:0:0:root:/root:/sbin/nologin\nfractile:x:65532:65532:fractile:/tmp:/sbin/nologin\n"
_GROUP = "root:x:0:\nfractile:x:65532:\n"

# Files that the programs never open. Copyright files stay, as the licences require.
_TRIMMED = (
    "usr/share/man usr/share/locale usr/share/lintian usr/share/bug usr/share/pixmaps usr/share/applications "
    "usr/share/base-files usr/share/readline usr/share/binfmts etc/update-motd.d usr/lib/valgrind usr/bin/pygettext3* "
    "usr/bin/pydoc3* usr/bin/2to3* lib/x86_64-linux-gnu/audit usr/lib/*/gconv usr/lib/*/perl usr/sbin sbin home media "
    f"mnt opt srv boot usr/games var/backups var/spool var/mail usr/lib/{_PYTHON}/lib2to3 usr/lib/{_PYTHON}/pydoc_data "
    f"usr/lib/{_PYTHON}/test usr/lib/{_PYTHON}/turtledemo usr/lib/{_PYTHON}/idlelib usr/lib/{_PYTHON}/sqlite3 "
    f"usr/lib/{_PYTHON}/dbm usr/lib/{_PYTHON}/config-* "
    f"usr/lib/{_PYTHON}/lib-dynload/_dbm.* usr/lib/{_PYTHON}/lib-dynload/_sqlite3.* "
    f"usr/lib/{_PYTHON}/lib-dynload/nis.* usr/lib/{_PYTHON}/lib-dynload/readline.* "
    f"usr/lib/{_PYTHON}/lib-dynload/_crypt.* usr/lib/{_PYTHON}/lib-dynload/_curses*"
).split()
_TRIMMED_PACKAGES = ("bin", "numpy/f2py", "numpy/_core/lib/*.a", "numpy/_core/include", "numpy/doc", "rich/__main__.py")
_TRIMMED_ANYWHERE = ("tests", "*.pyi", "*.pxd", "*.pyx", "*.h", "__pycache__")


class Image(msgspec.Struct, frozen=True):
    """An image as a file; ``name`` is repository:tag."""

    name: str
    file: Path
    sbom: Path
    size: int  # bytes, compressed
    unpacked: int


def version(root: Path) -> str:
    """The version in ``root``'s pyproject.toml."""
    return str(tomllib.loads((root / "pyproject.toml").read_text())["project"]["version"])


def repository() -> Path:
    """The repository that this installation runs from; SetupError when there is none."""
    root = Path(__file__).parents[4]
    if not (root / "native" / "Makefile").is_file():
        raise SetupError(
            "the image is built from the repository, which this installation is not part of; run make image in the "
            "repository"
        )
    return root


def build(out: Path, *, root: Path, env: Mapping[str, str], progress: Progress, tag: str = "") -> Image:
    """Build the image of the sources in ``root`` as a file in ``out``."""
    cache, stamp = _cache(env), int(env.get("SOURCE_DATE_EPOCH", "0"))
    name = f"{REPOSITORY}:{tag or version(root)}"
    with progress.step("image: Debian packages") as step:
        packages = debian.fetch([_PYTHON, "base-files", "libstdc++6"], cache / "debian")
        base = _layer(cache, "base", _base_key(packages), lambda at: _base(at, packages), time=stamp, step=step)
    with progress.step("image: Python packages", note="takes a minute, once") as step:
        pins, records = pins_of(root), cache / "records"
        needed = _layer(cache, "packages", pins, lambda at: _packages(at, root, pins, records), time=stamp, step=step)
    built = native.ensure(env, progress)
    if not built:
        raise SetupError("the image needs the library, which cannot be built here; see the line above")
    with progress.step("image: Fractile") as step:
        document = sbom.document(version(root), packages, records)
        parts = _parts(root, Path(built), env)
        own = _layer(
            cache,
            "own",
            _own_key(root, parts, document),
            lambda at: _own(at, root, parts, document),
            time=stamp,
            step=step,
        )
    file = out / f"fractile-{tag or version(root)}.oci.tar"
    layers = [base, needed, own]
    size = oci.write_archive(file, layers, _config(root), name=name)
    described = file.with_suffix("").with_suffix(".cdx.json")
    described.write_bytes(document)
    return Image(name, file, described, size, sum(one.unpacked for one in layers))


def kept(root: Path, *, env: Mapping[str, str], progress: Progress) -> Image:
    """The image for a local cluster, built when the sources have changed; its tag is their digest."""
    digest = hashlib.sha256(native.fingerprint(root).encode())
    for path in [*_sources(root), root / "constraints.txt"]:
        digest.update(f"{path.relative_to(root)} ".encode() + path.read_bytes())
    tag = digest.hexdigest()[:12]
    record = _cache(env) / "local" / f"{tag}.json"
    if record.is_file():
        for part in record.parent.glob(f"*{tag}*"):
            os.utime(part)
        return msgspec.json.decode(record.read_bytes(), type=Image, dec_hook=lambda kind, text: kind(text))
    record.parent.mkdir(exist_ok=True)
    for old in [p for p in record.parent.iterdir() if p.stat().st_mtime < time.time() - _KEPT]:
        old.unlink(missing_ok=True)
    made = build(record.parent, root=root, env=env, progress=progress, tag=tag)
    record.write_bytes(msgspec.json.encode(made, enc_hook=str))
    return made


def archive(name: str, env: Mapping[str, str] = os.environ) -> tuple[str, Path]:
    """Name and file of an image that ``kept`` has built."""
    return name, _cache(env) / "local" / f"fractile-{name.rpartition(':')[2]}.oci.tar"


def _config(root: Path) -> Config:
    machine = platform.machine()
    return Config(
        architecture=_ARCHITECTURES.get(machine, machine),
        entrypoint=(f"/{PREFIX}/bin/fractile",),
        user=USER,
        env={
            "PATH": f"/{PREFIX}/bin:/usr/bin:/bin",
            "PYTHONDONTWRITEBYTECODE": "1",  # the root file system is read-only and already has all bytecode
            "LANG": "C.UTF-8",
            "HOME": "/tmp",
        },
        labels={
            "org.opencontainers.image.title": "fractile",
            "org.opencontainers.image.version": version(root),
            "org.opencontainers.image.licenses": "Apache-2.0",
        },
    )


def _layer(
    cache: Path, kind: str, key: str, make: Callable[[Path], None], *, time: int, step: ProgressStep
) -> ImageLayer:
    """The layer from the cache, or a new one from the folder that ``make`` fills."""
    name = hashlib.sha256(f"{key}\n{time}\n{Path(__file__).read_text()}".encode()).hexdigest()[:20]
    file, record = cache / f"{kind}-{name}.tar.gz", cache / f"{kind}-{name}.json"
    if record.is_file() and file.is_file():
        step.done("there already")
        return msgspec.json.decode(record.read_bytes(), type=ImageLayer, dec_hook=lambda kind, text: kind(text))
    with tempfile.TemporaryDirectory(prefix=".layer-", dir=cache) as folder:
        os.chmod(folder, 0o755)
        make(Path(folder))
        made = oci.write_layer(Path(folder), file, time=time)
    record.write_bytes(msgspec.json.encode(made, enc_hook=str))
    for old in [p for p in cache.glob(f"{kind}-*") if name not in p.name]:
        old.unlink(missing_ok=True)
    step.done("built")
    return made


def _base_key(packages: Sequence[debian.Package]) -> str:
    return " ".join(p.purl for p in packages)


def _base(root: Path, packages: Sequence[debian.Package]) -> None:
    debian.unpack(packages, root)
    _remove(root, _TRIMMED)
    for document in root.glob("usr/share/doc/*/*"):
        if document.name != "copyright":
            _unlink(document)
    for name, content in (("passwd", _PASSWD), ("group", _GROUP), ("nsswitch.conf", "hosts: files dns\n")):
        (root / "etc" / name).write_text(content)
    for folder, mode in (("tmp", 0o1777), ("proc", 0o755), ("sys", 0o755), ("dev", 0o755), ("var/lib/fractile", 0o755)):
        (root / folder).mkdir(parents=True, exist_ok=True)
        (root / folder).chmod(mode)
    _compile(root, f"usr/lib/{_PYTHON}")


def requirements(pins: str) -> list[str]:
    """The product's own requirements, from ``pins``; they may contain blanks, in environment markers."""
    return pins.partition("#")[0].splitlines()


def pins_of(root: Path) -> str:
    """The product's requirements, one per line, followed by ``#`` and constraints.txt."""
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    return "\n".join([*project["dependencies"], "#", (root / "constraints.txt").read_text()])


def _packages(at: Path, root: Path, pins: str, records: Path) -> None:
    site = at / _SITE
    _pip(["--target", str(site), "-c", str(root / "constraints.txt"), *requirements(pins)])
    shutil.rmtree(records, ignore_errors=True)
    for one in site.glob("*.dist-info"):
        shutil.copytree(one, records / one.name)
    _trim(site)
    _compile(at, _SITE)


def _trim(site: Path) -> None:
    _remove(site, _TRIMMED_PACKAGES)
    for pattern in _TRIMMED_ANYWHERE:
        for found in sorted(site.rglob(pattern), reverse=True):
            _unlink(found)


def _parts(root: Path, built: Path, env: Mapping[str, str]) -> dict[str, Path]:
    """The files built from C, by their path in the package."""
    names = ["fractile-arbiter", "simgpu/libcuda.so.1", "simgpu/libnvidia-ml.so.1"]
    return {name: built / name for name in names} | {
        "libfractile.so": portable.library(env, root) or built / "libfractile.so"
    }


def _own_key(root: Path, parts: Mapping[str, Path], document: bytes) -> str:
    digest = hashlib.sha256(document)
    for path in [*_sources(root), *parts.values()]:
        digest.update(f"{path.name} ".encode() + path.read_bytes())
    return digest.hexdigest()


def _sources(root: Path) -> list[Path]:
    found = [p for p in (root / "src").rglob("*") if p.is_file() and "__pycache__" not in p.parts]
    return [root / "pyproject.toml", *sorted(found)]


def _own(at: Path, root: Path, parts: Mapping[str, Path], document: bytes) -> None:
    site = at / _SITE
    with tempfile.TemporaryDirectory(prefix="fractile-wheel-") as folder:
        argv = [sys.executable, "-m", "build", "--quiet", "--wheel", "--no-isolation", "--outdir", folder, str(root)]
        _run(argv)
        (wheel,) = Path(folder).glob("*.whl")
        _pip(["--target", str(site), "--no-deps", "--no-index", str(wheel)])
    _remove(site, ["bin"])
    for name, path in parts.items():
        target = at / NATIVE / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)
        target.chmod(0o755)
    (site / "fractile" / "native").symlink_to(f"/{NATIVE}")  # the agent's default path
    _compile(at, _SITE)
    launcher = at / PREFIX / "bin" / "fractile"
    launcher.parent.mkdir(parents=True)
    launcher.write_text(_LAUNCHER)
    launcher.chmod(0o755)
    described = at / "usr" / "share" / "sbom" / "fractile.cdx.json"
    described.parent.mkdir(parents=True)
    described.write_bytes(document)


def _pip(arguments: Sequence[str]) -> None:
    options = [
        "--quiet",
        "--disable-pip-version-check",
        "--no-compile",
        "--only-binary=:all:",
        "--root-user-action=ignore",
    ]
    _run([sys.executable, "-m", "pip", "install", *options, *arguments])


def _compile(root: Path, folder: str) -> None:
    """Compile every source to bytecode that is never checked against it, so nothing is written at start."""
    with redirect_stdout(StringIO()):
        compileall.compile_dir(
            str(root / folder),
            quiet=2,
            stripdir=str(root),
            prependdir="/",
            invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH,
        )


def _remove(root: Path, patterns: Sequence[str]) -> None:
    for pattern in patterns:
        for found in root.glob(pattern):
            _unlink(found)


def _unlink(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _cache(env: Mapping[str, str]) -> Path:
    folder = native.cache_dir(env).with_name("image")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _run(argv: Sequence[str]) -> None:
    env = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PIP_TARGET")} | {"PYTHONHASHSEED": "0"}
    done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=_TIMEOUT, check=False)
    if done.returncode != 0:
        said = (done.stderr.strip() or done.stdout.strip()).splitlines()[-1:] or ["it printed nothing"]
        raise SetupError(f"{' '.join(argv[1:4])} failed: {said[0]}")
