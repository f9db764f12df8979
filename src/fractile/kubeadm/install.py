"""Makes kube-scheduler on a kubeadm control-plane node read Fractile's configuration, or undoes that.

    read ──> plan ──> files and backup ──> manifest ──> wait ──> prune what is no longer named
     │ unusual: refused      (kubelet sees nothing yet)   │          │ not healthy
     └─ nothing is written                                │          └──> the manifest as it was, wait again, prune
                                                          └─ from here on kubelet acts

If the command is killed at any point, the node has the old or the new manifest, with all files that it names, and the
command can be run again. Each control-plane node has its own manifest, and only one scheduler leads at a time.
"""

from collections.abc import Callable, Mapping
from datetime import datetime

import msgspec
import yaml

from fractile.errors import SetupError, WireError
from fractile.kubeadm import certificates
from fractile.kubeadm import files as scheduler_files
from fractile.kubeadm import health as scheduler_health
from fractile.kubeadm.files import File, NodeRoot
from fractile.kubeadm.health import Clock, SchedulerHealth
from fractile.wire.foreign import scheduler_flags, static_pod
from fractile.wire.foreign.static_pod import Manifest
from fractile.wire.kubernetes import scheduler_config
from fractile.wire.kubernetes.scheduler_config import SchedulerConfigOptions, Tls

_FLAG = {"policy": "policy-config-file", "config": "config"}
_BACK = 60.0  # minimum wait for the restored program, in seconds: giving up sooner gains nothing
_NOTE = "# kube-scheduler 1.{minor}, by `fractile install-scheduler`. Its name says what is in it: do not edit it.\n"


class ManifestChange(msgspec.Struct, frozen=True):
    """``files``: path on the node -> required content. ``base``: the manifest without anything of ours."""

    was: Manifest
    will: Manifest
    base: str
    files: Mapping[str, File] = {}

    @property
    def configuration(self) -> str:
        """The configuration that kube-scheduler will read; empty when it will read none of ours."""
        file = self.files.get(self.will.ours)
        return file.data.decode() if file else ""


class InstallOutcome(msgspec.Struct, frozen=True):
    """``health``: None without waiting. ``back``: the health after the change was undone, if it was."""

    health: SchedulerHealth | None = None
    back: SchedulerHealth | None = None


class Wait(msgspec.Struct, frozen=True):
    """``limit``: how long it may take, in seconds; 0: do not wait. ``asked``: says why an address is not healthy."""

    limit: float
    clock: Clock
    asked: Callable[[str, int], str] = scheduler_health.answers


def version(manifest: Manifest, told: int | None) -> int:
    """The minor version of kube-scheduler, from its image or from ``told``. WireError when the image's version is
    unknown; SetupError when neither gives a version, or when they differ."""
    image = manifest.image.partition("@")[0]
    _, colon, tag = image.rpartition("/")[2].rpartition(":")
    release = tag.partition("-")[0].partition("+")[0] if colon else ""
    if not release.startswith(("v1.", "1.")):
        if told is None:
            raise SetupError(
                f"the image of kube-scheduler, {manifest.image[:200]!r}, does not state its version; give the version, "
                "such as --kubernetes 1.28"
            )
        return told
    minor = scheduler_config.minor_of(release)
    if told is not None and told != minor:
        raise SetupError(f"the image of kube-scheduler is {manifest.image[:200]!r}, not 1.{told}")
    return minor


def install(place: NodeRoot, text: str, wish: SchedulerConfigOptions, *, now: datetime) -> ManifestChange:
    """Plan the installation; nothing is written. The files that ``wish`` names are read and given names of ours."""
    was = static_pod.read(text)
    files, tls = _certificates(wish.extender.tls if wish.extender else Tls(), now)
    extender = msgspec.structs.replace(wish.extender, tls=tls) if wish.extender else None
    document = scheduler_flags.document(
        msgspec.structs.replace(wish, extender=extender, kubeconfig=was.kubeconfig), was.command
    )
    configuration = File((_NOTE.format(minor=wish.minor) + yaml.safe_dump(document, sort_keys=False)).encode())
    path = scheduler_files.named("scheduler", configuration)
    after = static_pod.with_flag(text, _FLAG[wish.form], path)
    return ManifestChange(was, static_pod.read(after), static_pod.without(text), {**files, path: configuration})


def removal(place: NodeRoot, text: str) -> ManifestChange:
    """Plan the removal: the manifest without our lines is the original to the byte, except for later changes by others.

    The backup is for a manifest that can no longer be parsed and must be repaired by hand.
    """
    try:
        base = static_pod.without(text)
        return ManifestChange(static_pod.read(text), static_pod.read(base), base)
    except WireError as e:
        if not place.backup.exists():
            raise
        raise SetupError(f"{e}; as it was before Fractile, it is {place.backup}") from None


def nothing_to_do(place: NodeRoot, change: ManifestChange) -> bool:
    return change.was.text == change.will.text and not scheduler_files.missing(place, change.files)


def apply(place: NodeRoot, change: ManifestChange, wait: Wait) -> InstallOutcome:
    """Apply the change; undo an installation after which kube-scheduler does not become healthy."""
    if wait.limit:
        scheduler_health.check_visible(place.root / "proc")
    with scheduler_files.alone(place):
        if scheduler_files.manifest(place) != change.was.text:
            raise SetupError(f"{place.manifest} has changed meanwhile; nothing was done, run the command again")
        _write(place, change)
        if not wait.limit:
            if not change.files:
                tidy(place, change.will)
            return InstallOutcome()  # an installation keeps the previous configuration for a manual return
        health = _healthy(place, change.will, wait)
        if not health.reason:
            tidy(place, change.will)
            return InstallOutcome(health)
        if not change.files:
            return InstallOutcome(health)  # a removal: the manifest already is the original
        scheduler_files.write_manifest(place, change.was.text)
        back = _healthy(place, change.was, msgspec.structs.replace(wait, limit=max(wait.limit, _BACK)))
        tidy(place, change.was)
        return InstallOutcome(health, back)


def tidy(place: NodeRoot, manifest: Manifest) -> None:
    """Remove files of ours that this manifest does not name."""
    scheduler_files.prune(place, scheduler_files.names_in(place, manifest.ours))


def _write(place: NodeRoot, change: ManifestChange) -> None:
    if change.files:
        owner = (change.will.user, change.will.group)
        scheduler_files.write(place, scheduler_files.missing(place, change.files), owner=owner)
        scheduler_files.write_backup(place, change.base)
    if change.was.text != change.will.text:
        scheduler_files.write_manifest(place, change.will.text)


def _healthy(place: NodeRoot, manifest: Manifest, wait: Wait) -> SchedulerHealth:
    return scheduler_health.waited(manifest, root=place.root, limit=wait.limit, clock=wait.clock, asked=wait.asked)


def _certificates(tls: Tls, now: datetime) -> tuple[dict[str, File], Tls]:
    """The checked files that ``tls`` names, under names of ours; and ``tls`` with these names."""
    found = certificates.read(tls, now=now)
    paths = {kind: scheduler_files.named(kind, file) for kind, file in found.items()}
    files = {paths[kind]: file for kind, file in found.items()}
    told = Tls(paths.get("ca", ""), paths.get("client", ""), paths.get("client-key", ""), tls.server_name, tls.insecure)
    return files, told
