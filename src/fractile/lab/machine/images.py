"""Builds container images without a registry: docker archives of the machine's static busybox and C library.

A docker archive is a tar of one layer tar, a config and a manifest (image-spec v1.2), which `ctr images import`
accepts. The pause image sleeps and exits immediately on SIGTERM. So does `sleep` in the busybox image: otherwise the
kernel would ignore SIGTERM for process 1 of a container, and every deletion would take the pod's whole grace period.
The CUDA image has the program `probe` (examples/cuda), linked with the driver, and the machine's glibc; the driver
comes from the node.
"""

import hashlib
import io
import json
import platform
import shutil
import subprocess
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath

from fractile.errors import SetupError
from fractile.lab.layout import ClusterLayout

BUSYBOX = "fractile.dev/busybox:1"
PAUSE = "fractile.dev/pause:1"
CUDA = "fractile.dev/cuda:1"

_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
_SLEEP = """#!/bin/sh
# Ends at once on SIGTERM, also as process 1, to which the kernel delivers no signal without a handler.
trap 'exit 143' TERM INT
/bin/busybox sleep "$@" &
wait $!
"""
_PAUSE = "trap 'exit 0' TERM INT; while :; do /bin/busybox sleep 1000000 & wait $!; done"
_LIBC = "libc.so.6"
_GLIBC = ("libpthread.so.0", "libdl.so.2", "librt.so.1", "libm.so.6")  # separate libraries before glibc 2.34
_DIRECTORIES = ("bin", "dev", "etc", "proc", "sys", "tmp", "var", "root")


def names(*, cuda: bool) -> set[str]:
    """The images that a node needs; the image for CUDA programs only if there is a driver for it."""
    return {BUSYBOX, PAUSE} | ({CUDA} if cuda else set())


def write_archives(place: ClusterLayout, busybox: Path, probe: Path | None = None) -> dict[str, Path]:
    """Write the archives unless they exist; return them by image name. The CUDA image is made only with ``probe``."""
    applets = subprocess.run([busybox, "--list"], capture_output=True, text=True, timeout=10, check=True).stdout.split()
    files: dict[str, bytes] = {"bin/busybox": busybox.read_bytes(), "bin/sleep": _SLEEP.encode()}
    files["etc/passwd"] = b"root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n"
    links = [a for a in applets if a not in ("busybox", "sleep")]
    layer = _layer(files, links)
    wanted = {BUSYBOX: (layer, ["/bin/sh"]), PAUSE: (layer, ["/bin/busybox", "sh", "-c", _PAUSE])}
    if probe is not None:
        wanted[CUDA] = _layer(files | _with_libraries(probe), links), ["/bin/probe", "info"]
    archives: dict[str, Path] = {}
    for image, (layer, command) in wanted.items():
        path = place.images / f"{image.split('/')[1].replace(':', '-')}.tar"
        archives[image] = place.write(path, _archive(image, layer, command))
    return archives


def program_archive(image: str, program: Path) -> bytes:
    """The archive of an image with one statically linked program, in /bin."""
    layer = _layer({f"bin/{program.name}": program.read_bytes()}, [])
    return _archive(image, layer, [f"/bin/{program.name}"])


def static_busybox() -> Path:
    """The machine's static busybox (Debian package busybox-static); SetupError if it is missing."""
    found = shutil.which("busybox", path="/bin:/usr/bin")
    if found is None:
        raise SetupError("busybox is missing; install the package busybox-static")
    return Path(found).resolve()


def _with_libraries(program: Path) -> dict[str, bytes]:
    """The program in bin, and its C library at the path on this machine. All parts of the C library are included, since
    our own library is linked with an older one that was split into parts."""
    said = subprocess.run(["ldd", program], capture_output=True, text=True, timeout=10, check=True).stdout
    paths = [Path(word) for line in said.splitlines() for word in line.split() if word.startswith("/")]
    paths += [part for libc in paths if libc.name == _LIBC for name in _GLIBC if (part := libc.parent / name).exists()]
    return {f"bin/{program.name}": program.read_bytes()} | {str(p).lstrip("/"): p.read_bytes() for p in paths}


def _layer(files: Mapping[str, bytes], applets: Sequence[str]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT) as tar:
        parents = {str(parent) for name in files for parent in PurePosixPath(name).parents} - {"."}
        for directory in sorted({*_DIRECTORIES, *parents}):
            tar.addfile(_entry(directory, tarfile.DIRTYPE, mode=0o1777 if directory == "tmp" else 0o755))
        for name, content in files.items():
            executable = name.startswith(("bin/", "lib"))
            entry = _entry(name, tarfile.REGTYPE, mode=0o755 if executable else 0o644)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
        for applet in applets:
            entry = _entry(f"bin/{applet}", tarfile.SYMTYPE, mode=0o777)
            entry.linkname = "busybox"
            tar.addfile(entry)
    return buffer.getvalue()


def _archive(image: str, layer: bytes, command: Sequence[str]) -> bytes:
    digest = hashlib.sha256(layer).hexdigest()
    machine = platform.machine()
    config = json.dumps(
        {
            "architecture": _ARCHITECTURES.get(machine, machine),
            "os": "linux",
            "config": {"Cmd": list(command), "Env": ["PATH=/bin"], "WorkingDir": "/"},
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
        }
    ).encode()
    config_name = f"{hashlib.sha256(config).hexdigest()}.json"
    layer_name = f"{digest}/layer.tar"
    manifest = json.dumps([{"Config": config_name, "RepoTags": [image], "Layers": [layer_name]}]).encode()
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for name, content in ((config_name, config), (layer_name, layer), ("manifest.json", manifest)):
            entry = _entry(name, tarfile.REGTYPE, mode=0o644)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()


def _entry(name: str, kind: bytes, *, mode: int) -> tarfile.TarInfo:
    """A tar entry with time and owner zero, so that equal content gives equal archives."""
    entry = tarfile.TarInfo(name)
    entry.type = kind
    entry.mode = mode
    return entry
