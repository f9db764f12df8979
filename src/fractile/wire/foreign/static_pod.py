"""Read kube-scheduler's static pod as kubeadm writes it, and change it by whole lines.

Kubelet runs what is in this file, and one wrong byte leaves the cluster without a scheduler. So the file must be what
kubeadm 1.20 to 1.36 writes (cmd/kubeadm/app/phases/controlplane/manifests.go, app/util/staticpod/utils.go of each
release); for any other, WireError says what is unexpected. Lines are inserted and removed; all others stay unchanged,
comments included. The result is parsed again and must differ from the input only by our entries.
"""

from collections.abc import Mapping
from typing import Annotated, Any, cast

import msgspec
import yaml

from fractile.errors import WireError
from fractile.wire.foreign import static_pod_lines as lines
from fractile.wire.foreign.kubeadm import FOLDER

NAME = "kube-scheduler"
FLAGS = ("config", "policy-config-file")
_PORT = 10259  # of its HTTPS server, unless --secure-port is set
_LOOPBACK = "127.0.0.1"
_OURS = "fractile"  # the name of our volume
_COMMAND, _MOUNTS = ("spec", "containers", 0, "command"), ("spec", "containers", 0, "volumeMounts")
_VOLUMES = ("spec", "volumes")


class Manifest(msgspec.Struct, frozen=True):
    """``host``, ``port``: its health endpoint; ``user``, ``group``: whose files it can read; ``ours``: the file of
    Fractile that it is configured to read, empty if none."""

    text: str
    command: tuple[str, ...]
    image: str
    kubeconfig: str
    host: str
    port: int
    user: int
    group: int
    ours: str
    environment: Mapping[str, str] = {}


class _HttpGet(msgspec.Struct, frozen=True):
    scheme: str
    host: str = ""


class _Probe(msgspec.Struct, frozen=True, rename="camel"):
    http_get: _HttpGet


class _Identity(msgspec.Struct, frozen=True, rename="camel"):
    """The user; root if missing. kubeadm writes it with its feature gate RootlessControlPlane."""

    run_as_user: int | None = None
    run_as_group: int | None = None


class _Mount(msgspec.Struct, frozen=True, rename="camel"):
    name: str
    mount_path: str


class _Volume(msgspec.Struct, frozen=True):
    name: str


class _Variable(msgspec.Struct, frozen=True):
    name: str
    value: str = ""


class _Container(msgspec.Struct, frozen=True, rename="camel"):
    name: str
    image: str
    command: Annotated[list[str], msgspec.Meta(min_length=1)]
    volume_mounts: Annotated[list[_Mount], msgspec.Meta(min_length=1)]
    liveness_probe: _Probe
    args: list[str] = []
    env: list[_Variable] = []
    security_context: _Identity = _Identity()


class _Spec(msgspec.Struct, frozen=True, rename="camel"):
    containers: list[_Container]
    volumes: Annotated[list[_Volume], msgspec.Meta(min_length=1)]
    host_network: bool = False
    init_containers: list[object] = []
    security_context: _Identity = _Identity()


class _Metadata(msgspec.Struct, frozen=True):
    name: str
    namespace: str
    labels: dict[str, str] = {}


class _Pod(msgspec.Struct, frozen=True, rename="camel"):
    api_version: str
    kind: str
    metadata: _Metadata
    spec: _Spec


def read(text: str) -> Manifest:
    """Read the manifest; WireError says what is unexpected."""
    pod = _pod(text)
    (container,) = pod.spec.containers
    command = tuple(container.command)
    _check_command(container)
    ours = _ours(command)
    _check_volume_name(pod, ours)
    kubeconfig = flag(command, "kubeconfig")
    if not kubeconfig:
        raise _strange("kube-scheduler gets no --kubeconfig")
    if container.liveness_probe.http_get.scheme != "HTTPS":
        raise _strange("its liveness probe does not use HTTPS")
    return Manifest(
        text=text,
        command=command,
        image=container.image,
        kubeconfig=kubeconfig,
        # Empty if it serves on all addresses: kubelet then probes the node's address, and we the loopback address.
        host=container.liveness_probe.http_get.host or _LOOPBACK,
        port=_port(flag(command, "secure-port") or str(_PORT)),
        user=container.security_context.run_as_user or pod.spec.security_context.run_as_user or 0,
        group=container.security_context.run_as_group or pod.spec.security_context.run_as_group or 0,
        ours=ours,
        environment={variable.name: variable.value for variable in container.env},
    )


def flag(command: tuple[str, ...], name: str) -> str:
    """The value of ``--name=value``; the last of several, as in kube-scheduler. Empty without the flag."""
    values = [item.partition("=")[2] for item in command[1:] if item.partition("=")[0] == f"--{name}"]
    return values[-1] if values else ""


def with_flag(text: str, name: str, file: str) -> str:
    """The text with ``--name=file`` and our folder mounted, replacing entries of ours."""
    base = without(text)
    wanted = _parsed(base)
    _list(wanted, _COMMAND).append(f"--{name}={file}")
    _list(wanted, _MOUNTS).append({"mountPath": FOLDER, "name": _OURS, "readOnly": True})
    _list(wanted, _VOLUMES).append({"hostPath": {"path": FOLDER, "type": "Directory"}, "name": _OURS})
    entries: list[tuple[lines.Path, list[str]]] = [
        (_COMMAND, [f"--{name}={file}"]),
        (_MOUNTS, [f"mountPath: {FOLDER}", f"name: {_OURS}", "readOnly: true"]),
        (_VOLUMES, ["hostPath:", f"  path: {FOLDER}", "  type: Directory", f"name: {_OURS}"]),
    ]
    return _same(lines.appended(base, entries), wanted)


def without(text: str) -> str:
    """The text without our lines; unchanged if there are none."""
    pod = _pod(text)
    (container,) = pod.spec.containers
    names = {mount.name for mount in container.volume_mounts if mount.mount_path == FOLDER}
    gone = {
        _COMMAND: [i for i, word in enumerate(container.command) if _is_ours(word)],
        _MOUNTS: [i for i, mount in enumerate(container.volume_mounts) if mount.mount_path == FOLDER],
        _VOLUMES: [i for i, volume in enumerate(pod.spec.volumes) if volume.name in names],
    }
    if not any(gone.values()):
        return text
    wanted = _parsed(text)
    for path, indices in gone.items():
        entries = _list(wanted, path)
        entries[:] = [entry for i, entry in enumerate(entries) if i not in indices]
    return _same(lines.removed(text, list(gone.items())), wanted)


def _same(text: str, wanted: dict[str, Any]) -> str:
    try:
        found = _parsed(text)
    except WireError:
        found = None
    if found != wanted:
        raise _strange("it is not written line by line as kubeadm writes it, so it cannot be changed by whole lines")
    return text


def _list(pod: dict[str, Any], path: tuple[str | int, ...]) -> list[Any]:
    found: Any = pod
    for key in path:
        found = found[key]
    return found


def _parsed(text: str) -> dict[str, Any]:
    if "\r" in text or "\t" in text:
        raise _strange("it has tabs or carriage returns")
    try:
        lines.check(text)
        return msgspec.convert(yaml.safe_load(text), dict[str, Any])
    except (yaml.YAMLError, RecursionError, ValueError, TypeError, msgspec.ValidationError) as e:
        raise _strange(f"it is not one YAML object ({' '.join(str(e).split())[:120]})") from None


def _pod(text: str) -> _Pod:
    parsed = _parsed(text)
    containers = parsed["spec"].get("containers") if isinstance(parsed.get("spec"), dict) else None
    if parsed.get("apiVersion") != "v1" or parsed.get("kind") != "Pod":
        raise _strange("it is not a v1 Pod")
    if isinstance(containers, list) and len(cast(list[object], containers)) != 1:
        raise _strange("it does not have exactly one container")
    try:
        pod = msgspec.convert(parsed, _Pod)
    except msgspec.ValidationError as e:
        raise _strange(str(e)) from None
    _check(pod)
    return pod


def _check(pod: _Pod) -> None:
    if (pod.metadata.name, pod.metadata.namespace) != (NAME, "kube-system"):
        raise _strange("it is not the pod kube-scheduler of the namespace kube-system")
    if (pod.metadata.labels.get("component"), pod.metadata.labels.get("tier")) != (NAME, "control-plane"):
        raise _strange("it lacks the labels component and tier that kubeadm writes")
    if pod.spec.init_containers:
        raise _strange("it has init containers")
    if pod.spec.containers[0].name != NAME:
        raise _strange("its container is not named kube-scheduler")
    if not pod.spec.host_network:
        raise _strange("it does not use the network of its node")


def _check_command(container: _Container) -> None:
    if container.command[0] != NAME or container.args:
        raise _strange("its command is not kube-scheduler with its flags")
    for word in container.command[1:]:
        if not word.startswith("--") or "=" not in word:
            raise _strange(f"{word[:60]!r} in its command is not written as --flag=value")


def _check_volume_name(pod: _Pod, ours: str) -> None:
    mounted = any(mount.mount_path == FOLDER for mount in pod.spec.containers[0].volume_mounts)
    if ours and not mounted:
        raise _strange(f"kube-scheduler is configured to read {ours}, but {FOLDER} is not mounted")
    if not mounted and any(volume.name == _OURS for volume in pod.spec.volumes):
        raise _strange(f"it has a volume named {_OURS} that is not Fractile's")


def _ours(command: tuple[str, ...]) -> str:
    told = [word for word in command if word.partition("=")[0] in {f"--{name}" for name in FLAGS}]
    if not told:
        return ""
    if len(told) > 1 or not _is_ours(told[0]):
        raise WireError(
            f"kube-scheduler already reads another configuration ({' '.join(told)[:200]}); nothing was changed. Copy "
            "what `fractile scheduler-config` prints below `extenders:` into that file and restart kube-scheduler, or "
            "remove the flag first"
        )
    return told[0].partition("=")[2]


def _is_ours(word: str) -> bool:
    name, _, value = word.partition("=")
    return name in {f"--{name}" for name in FLAGS} and value.startswith(f"{FOLDER}/")


def _port(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and 0 < int(text[:6]) < 65536):
        raise _strange(f"--secure-port={text[:20]} is not a port on which its health can be checked")
    return int(text)


def _strange(what: str) -> WireError:
    return WireError(f"the manifest of kube-scheduler is not what kubeadm writes: {what}; nothing was changed")
