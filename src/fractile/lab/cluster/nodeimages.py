"""Imports our images into the containerd of a node."""

import subprocess
from pathlib import Path
from time import monotonic, sleep

from fractile.errors import SetupError
from fractile.lab.layout import ClusterLayout
from fractile.lab.machine import images, mounts

_NAMESPACE = "k8s.io"  # where kubelet's containerd plugin looks
_TIMEOUT = 60.0
_READY = 30.0  # seconds; containerd accepts connections before its plugins are loaded


def import_images(
    place: ClusterLayout, index: int, *, probe: Path | None = None, also: tuple[str, Path] | None = None
) -> str:
    """Import the missing images; return what was done, in words. With ``probe``, also the image for CUDA programs.
    ``also``: name and file of one more image."""
    wanted = images.names(cuda=probe is not None)
    present = _present(place, index)
    if also is not None and also[0] not in present:
        import_archive(place, index, also[1])
    elif wanted <= present:
        return "there already"
    archives = images.write_archives(place, images.static_busybox(), probe)
    for path in archives.values():
        import_archive(place, index, path)
    return "imported"


def import_archive(place: ClusterLayout, index: int, file: Path) -> None:
    _ctr(place, index, "images", "import", str(file))


def tag_image(place: ClusterLayout, index: int, name: str, other: str) -> None:
    """Give an image of the node an additional name."""
    _ctr(place, index, "images", "tag", "--force", name, other)


def _present(place: ClusterLayout, index: int) -> set[str]:
    deadline = monotonic() + _READY
    while True:
        try:
            return set(_ctr(place, index, "images", "list", "--quiet").split())
        except SetupError:
            if monotonic() > deadline:
                raise
            sleep(0.1)


def _ctr(place: ClusterLayout, index: int, *args: str) -> str:
    argv = [*mounts.enter(place.pin(index)), "ctr", "--namespace", _NAMESPACE, *args]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=_TIMEOUT, check=False)
    if done.returncode != 0:
        raise SetupError(f"`ctr {' '.join(args[:2])}` failed: {done.stderr.strip()[-300:]}")
    return done.stdout
