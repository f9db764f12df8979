"""Move flags that kube-scheduler ignores once it reads a configuration file into that file.

With ``--config``, kube-scheduler honours only its flags for serving, leader election (not up to 1.21), features and
logging (cmd/kube-scheduler/app/options of 1.20 to 1.36). A hardened cluster sets ``--profiling=false``, which would be
lost silently.
"""

from collections.abc import Callable
from typing import Any

from fractile.errors import WireError
from fractile.wire.foreign.static_pod import flag
from fractile.wire.kubernetes import scheduler_config
from fractile.wire.kubernetes.scheduler_config import Document, SchedulerConfigOptions

_INSECURE_PORT = 10251  # where 1.20 to 1.22 serve plain HTTP without --port=0
_TRUE, _FALSE = ("1", "t", "T", "TRUE", "true", "True"), ("0", "f", "F", "FALSE", "false", "False")  # strconv.ParseBool


def _boolean(text: str) -> bool:
    if text not in (*_TRUE, *_FALSE):
        raise ValueError
    return text in _TRUE


_FIELDS: dict[str, tuple[str, Callable[[str], object]]] = {
    "profiling": ("enableProfiling", _boolean),
    "contention-profiling": ("enableContentionProfiling", _boolean),
    "kube-api-content-type": ("clientConnection.contentType", str),
    "kube-api-qps": ("clientConnection.qps", float),
    "kube-api-burst": ("clientConnection.burst", int),
    "leader-elect": ("leaderElection.leaderElect", _boolean),
    "leader-elect-lease-duration": ("leaderElection.leaseDuration", str),
    "leader-elect-renew-deadline": ("leaderElection.renewDeadline", str),
    "leader-elect-retry-period": ("leaderElection.retryPeriod", str),
    "leader-elect-resource-lock": ("leaderElection.resourceLock", str),
    "leader-elect-resource-name": ("leaderElection.resourceName", str),
    "leader-elect-resource-namespace": ("leaderElection.resourceNamespace", str),
    "lock-object-name": ("leaderElection.resourceName", str),
    "lock-object-namespace": ("leaderElection.resourceNamespace", str),
}
# Flags that a file would express in another way, or that contradict it.
_LOST = ("algorithm-provider", "hard-pod-affinity-symmetric-weight", "scheduler-name", "write-config-to")
_POLICIES = ("policy-configmap", "policy-configmap-namespace", "use-legacy-policy-config")


def document(wish: SchedulerConfigOptions, command: tuple[str, ...]) -> Document:
    """The configuration with the flags of this command line; WireError for a flag that it cannot express."""
    found = scheduler_config.document(wish)
    refused = (*_POLICIES, *_LOST) if wish.form == "config" else (*_POLICIES, "algorithm-provider", "write-config-to")
    for name in refused:
        if flag(command, name):
            raise WireError(
                f"kube-scheduler has the flag --{name}={flag(command, name)[:80]}, which cannot be combined with a "
                "configuration file; nothing was changed"
            )
    if wish.form == "policy":
        _check_verbosity(wish, command)
        return found
    for name, (path, parse) in _FIELDS.items():
        if value := flag(command, name):
            _set(found, path, _value(name, value, parse))
    if wish.minor <= scheduler_config.LAST_WITH_POLICY:
        _keep_inside(found, command)
    return found


def _check_verbosity(wish: SchedulerConfigOptions, command: tuple[str, ...]) -> None:
    verbosity = flag(command, "v")
    if wish.minor == scheduler_config.LAST_WITH_POLICY and verbosity.isdecimal() and int(verbosity) > 1:
        raise WireError(f"kube-scheduler 1.22 exits with a Policy file and --v={verbosity[:9]}; use --form config")


def _keep_inside(found: Document, command: tuple[str, ...]) -> None:
    """Keep plain HTTP on the machine: with a file ``--port`` is ignored, and the file cannot switch plain HTTP off."""
    port = flag(command, "port") or "0"
    address = "127.0.0.1" if port == "0" else flag(command, "address") or "0.0.0.0"
    found["healthzBindAddress"] = found["metricsBindAddress"] = f"{address}:{_INSECURE_PORT if port == '0' else port}"


def _value(name: str, text: str, parse: Callable[[str], object]) -> object:
    try:
        return parse(text)
    except ValueError:
        raise WireError(f"kube-scheduler has the flag --{name}={text[:40]}, which is invalid") from None


def _set(found: Document, path: str, value: object) -> None:
    *folders, leaf = path.split(".")
    place: dict[str, Any] = found
    for folder in folders:
        place = place.setdefault(folder, {})
    place[leaf] = value
