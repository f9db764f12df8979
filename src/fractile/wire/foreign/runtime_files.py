"""Read from container runtimes' files how a node hands out cards: containerd's, CRI-O's, Docker's, NVIDIA's.

    containerd  plugins."io.containerd.grpc.v1.cri".containerd (version 2) or plugins."io.containerd.cri.v1.runtime" (3)
    CRI-O       crio.runtime.default_runtime          Docker  default-runtime
    NVIDIA      accept-nvidia-visible-devices-envvar-when-unprivileged (default true), and
                nvidia-container-runtime.mode (default auto)

A missing key is "", which leaves the default in force. WireError on an invalid file.
"""

import tomllib
from collections.abc import Mapping
from typing import Any, Literal, cast

import msgspec

from fractile.errors import WireError

Accepted = Literal["accepted", "refused"]

_PLUGINS = ("io.containerd.cri.v1.runtime", "io.containerd.grpc.v1.cri")
_MODES = ("auto", "legacy", "cdi", "csv", "jit-cdi")


class NvidiaRuntime(msgspec.Struct, frozen=True):
    """``variable``: whether NVIDIA_VISIBLE_DEVICES of an unprivileged container counts."""

    variable: Accepted
    mode: str


class Containerd(msgspec.Struct, frozen=True):
    """``imports``: patterns of files that override this one. ``handlers``: names of runtimes."""

    default: str
    handlers: tuple[str, ...]
    imports: tuple[str, ...]


def nvidia(text: str) -> NvidiaRuntime:
    """``/etc/nvidia-container-runtime/config.toml``."""
    found = _toml(text, "NVIDIA's container runtime")
    accept = found.get("accept-nvidia-visible-devices-envvar-when-unprivileged", True)
    mode = _table(found, "nvidia-container-runtime").get("mode", "auto")
    if not isinstance(accept, bool) or mode not in _MODES:
        raise WireError("the configuration of NVIDIA's container runtime is invalid")
    return NvidiaRuntime("accepted" if accept else "refused", cast(str, mode))


def containerd(text: str) -> Containerd:
    """``/etc/containerd/config.toml`` or a file that it imports."""
    found = _toml(text, "containerd")
    default, handlers = "", list[str]()
    for plugin in _PLUGINS:
        part = _table(_table(_table(found, "plugins"), plugin), "containerd")
        default = default or _word(part, "default_runtime_name")
        handlers += _table(part, "runtimes")
    imports = found.get("imports", ())
    words = [i for i in cast(list[Any], imports) if isinstance(i, str)] if isinstance(imports, list) else []
    return Containerd(default, tuple(sorted(set(handlers))), tuple(words))


def crio(text: str) -> str:
    """The default runtime in ``/etc/crio/crio.conf`` or a drop-in file."""
    return _word(_table(_table(_toml(text, "CRI-O"), "crio"), "runtime"), "default_runtime")


def docker(text: str) -> str:
    """The default runtime in ``/etc/docker/daemon.json``."""
    try:
        found = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError, UnicodeEncodeError) as e:
        raise WireError(f"the configuration of Docker is not JSON: {e}") from None
    return _word(cast(Mapping[str, Any], found), "default-runtime") if isinstance(found, dict) else ""


def _toml(text: str, whose: str) -> Mapping[str, Any]:
    try:
        return tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError, ValueError) as e:
        raise WireError(f"the configuration of {whose} is not TOML: {e}") from None


def _table(of: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = of.get(name)
    return cast(Mapping[str, Any], found) if isinstance(found, dict) else {}


def _word(of: Mapping[str, Any], name: str) -> str:
    found = of.get(name, "")
    return found[:100] if isinstance(found, str) else ""
