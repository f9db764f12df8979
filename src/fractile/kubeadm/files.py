"""Writes and removes the files that kube-scheduler's static pod needs on a control-plane node.

Failure rule: a file is complete or absent, also after a crash (a new file is written next to it, synced, then renamed).
Files that kube-scheduler reads are named by their content and never changed, so a manifest always means the same
configuration, and the previous one can be restored until it is pruned. Only files with names that this module makes are
removed.

Kubelet runs every file in its manifest folder except those that begin with a dot (pkg/kubelet/config/file.go), so the
backup is elsewhere, and the name of the temporary file begins with a dot.
"""

import contextlib
import fcntl
import hashlib
import os
import re
import stat
from collections.abc import Generator, Mapping
from pathlib import Path

import msgspec

from fractile.errors import SetupError
from fractile.wire.foreign.kubeadm import FOLDER
from fractile.wire.foreign.static_pod import NAME

_MANIFESTS = "/etc/kubernetes/manifests"
BACKUP = "/etc/kubernetes/fractile-backup/kube-scheduler.yaml"
_OURS = re.compile(r"(scheduler|ca|client|client-key)-[0-9a-f]{12}\.(yaml|pem)", re.ASCII)
_LARGEST = 1 << 20  # bytes of a manifest or certificate


class File(msgspec.Struct, frozen=True):
    """``secret``: only kube-scheduler itself may read it."""

    data: bytes
    secret: bool = False


class NodeRoot(msgspec.Struct, frozen=True):
    """A node's file system below ``root``; paths in files are as the node sees them."""

    root: Path

    def at(self, path: str) -> Path:
        return self.root / path.removeprefix("/")

    @property
    def manifest(self) -> Path:
        return self.at(f"{_MANIFESTS}/{NAME}.yaml")

    @property
    def backup(self) -> Path:
        return self.at(BACKUP)


def named(kind: str, file: File) -> str:
    """The file's path on the node; the name contains a hash of the content."""
    suffix = "yaml" if kind == "scheduler" else "pem"
    return f"{FOLDER}/{kind}-{hashlib.sha256(file.data).hexdigest()[:12]}.{suffix}"


def manifest(place: NodeRoot) -> str:
    """The text of the manifest; SetupError unless this is a control-plane node as kubeadm sets it up."""
    path = place.manifest
    if not path.parent.is_dir():
        raise SetupError(f"{path.parent} does not exist: this is not a control-plane node that kubeadm has set up")
    _no_second(path)
    try:
        return read(path).decode()
    except UnicodeDecodeError:
        raise SetupError(f"{path} is not what kubeadm writes: it is not UTF-8; nothing was changed") from None


def read(path: Path) -> bytes:
    """The content of a regular file; SetupError if it is anything else."""
    try:
        described = path.lstat()
        if stat.S_ISLNK(described.st_mode):
            raise SetupError(f"{path} is a link; kubeadm writes a file")
        if not stat.S_ISREG(described.st_mode) or described.st_size > _LARGEST:
            raise SetupError(f"{path} is not a regular file of a sensible size")
        return path.read_bytes()
    except FileNotFoundError:
        raise SetupError(f"{path} does not exist") from None
    except PermissionError:
        raise SetupError(f"{path} cannot be read; run the command as root, for example with sudo") from None


def _no_second(path: Path) -> None:
    """SetupError if the folder has a copy of the manifest: whatever its name, it runs a second kube-scheduler."""
    for other in sorted(path.parent.iterdir()):
        if other == path or other.name.startswith(".") or not other.is_file():
            continue
        if re.search(rb"^  name: kube-scheduler\s*$", read(other), re.MULTILINE):
            raise SetupError(
                f"{other} describes kube-scheduler too, and kubelet runs every file of that folder; move it elsewhere"
            )


@contextlib.contextmanager
def alone(place: NodeRoot) -> Generator[None]:
    """Lock the manifest against other installers. The lock is on the folder, so it leaves no file behind."""
    descriptor = os.open(place.manifest.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError:
        raise SetupError("another `fractile install-scheduler` is running on this node") from None
    finally:
        os.close(descriptor)


def write_manifest(place: NodeRoot, text: str) -> None:
    """Replace the manifest, keeping its mode and owner."""
    was = place.manifest.lstat()
    data = text.encode()
    _replace(place.manifest, data, mode=stat.S_IMODE(was.st_mode), owner=(was.st_uid, was.st_gid))


def write_backup(place: NodeRoot, text: str) -> None:
    _folder(place.backup.parent, 0o700)
    data = text.encode()
    if not place.backup.exists() or place.backup.read_bytes() != data:
        _replace(place.backup, data, mode=0o600, owner=None)


def missing(place: NodeRoot, files: Mapping[str, File]) -> dict[str, File]:
    """The files that are absent or have other content."""
    return {path: file for path, file in files.items() if not _is(place.at(path), file.data)}


def write(place: NodeRoot, files: Mapping[str, File], *, owner: tuple[int, int]) -> None:
    """Write the files. ``owner``: the user and group of kube-scheduler, for the files that only it may read."""
    _folder(place.at(FOLDER), 0o755)
    for path, file in files.items():
        _replace(place.at(path), file.data, mode=0o600 if file.secret else 0o644, owner=owner if file.secret else None)


def prune(place: NodeRoot, keep: frozenset[str]) -> None:
    """Remove files of ours that are not in ``keep``, and folders that this leaves empty."""
    folder = place.at(FOLDER)
    if folder.is_dir():
        for path in folder.iterdir():
            if _OURS.fullmatch(path.name) and f"{FOLDER}/{path.name}" not in keep:
                path.unlink(missing_ok=True)
    if not keep:
        place.backup.unlink(missing_ok=True)
        for empty in (folder, place.backup.parent):
            with contextlib.suppress(OSError):
                empty.rmdir()


def names_in(place: NodeRoot, configuration: str) -> frozenset[str]:
    """The path of a configuration in use, and the files of ours that it names."""
    if not configuration:
        return frozenset()
    path = place.at(configuration)
    text = path.read_text(errors="replace") if path.is_file() else ""
    return frozenset((configuration, *(f"{FOLDER}/{found[0]}" for found in _OURS.finditer(text))))


def _is(path: Path, data: bytes) -> bool:
    return path.is_file() and not path.is_symlink() and path.read_bytes() == data


def _folder(path: Path, mode: int) -> None:
    if path.is_symlink():
        raise SetupError(f"{path} is a link; it must be a folder, because kube-scheduler mounts it")
    if not path.is_dir():
        path.mkdir(parents=True)
        path.chmod(mode)  # whatever the umask


def _replace(path: Path, data: bytes, *, mode: int, owner: tuple[int, int] | None) -> None:
    new = path.with_name(f".{path.name}.fractile-new")
    new.unlink(missing_ok=True)  # left by a killed run
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            os.fchmod(file.fileno(), mode)
            if owner is not None and os.geteuid() == 0:  # other users work on their own tree (--root)
                os.fchown(file.fileno(), *owner)
            file.flush()
            os.fsync(file.fileno())
        new.replace(path)
    except BaseException:
        new.unlink(missing_ok=True)
        raise
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
