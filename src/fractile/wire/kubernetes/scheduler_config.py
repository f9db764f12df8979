"""kube-scheduler's own configuration for every version from 1.20 to 1.36: bin packing, the extender, or both.

Two forms. ``policy`` is the Policy file (``--policy-config-file``), which 1.23 dropped; it replaces the whole list of
priorities, so the default ones are repeated. ``config`` is ``KubeSchedulerConfiguration`` (``--config``), whose version
and plugins changed over time:

    1.20, 1.21   v1beta1   one plugin per strategy: NodeResourcesMostAllocated, RequestedToCapacityRatio
    1.22         v1beta2   NodeResourcesFit with a scoringStrategy from here on
    1.23, 1.24   v1beta3
    1.25 ...     v1

Sources: k8s.io/kube-scheduler/config of each release, pkg/scheduler/framework/plugins/legacy_registry.go of 1.20. The
real programs accept these documents (tests/versions).
"""

import re
from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from fractile.errors import WireError
from fractile.wire.kubernetes.scoring import CPU_AND_MEMORY, Strategy, StrategyKind

OLDEST, NEWEST = 20, 36  # minor versions
LAST_WITH_POLICY = 22
WEIGHT = 100
OTHERS = 15  # sum of kube-scheduler's default weights: 12 in 1.36, and a reserve for new plugins
DEFAULT_PROFILE = "default-scheduler"
KUBECONFIG = "/etc/kubernetes/scheduler.conf"  # kubeadm's

Form = Literal["policy", "config"]
Document = dict[str, Any]

_VERSION = re.compile(r"v?1\.([0-9]{1,3})(?:\.[0-9]{1,3})?", re.ASCII)
_TIMEOUT = 5  # seconds
_NANOSECONDS = 1_000_000_000
_ONE_PLUGIN_EACH = 21  # the last minor version with one plugin per strategy
_LEAST = "NodeResourcesLeastAllocated"
_OLD_PLUGINS = {
    StrategyKind.MOST: "NodeResourcesMostAllocated",
    StrategyKind.RATIO: "RequestedToCapacityRatio",
    StrategyKind.LEAST: _LEAST,
}
_FIT = "NodeResourcesFit"
# The default priorities of a Policy file except LeastRequestedPriority, which counteracts bin packing.
_PRIORITIES = {
    "SelectorSpreadPriority": 1,
    "InterPodAffinityPriority": 1,
    "BalancedResourceAllocation": 1,
    "NodePreferAvoidPodsPriority": 10000,
    "NodeAffinityPriority": 1,
    "TaintTolerationPriority": 1,
    "ImageLocalityPriority": 1,
    "EvenPodsSpreadPriority": 2,
}


class Tls(msgspec.Struct, frozen=True):
    """Files on the machine of kube-scheduler. ``insecure``: the server's certificate is not checked."""

    ca: str = ""
    cert: str = ""
    key: str = ""
    server_name: str = ""
    insecure: bool = False


class ExtenderConfig(msgspec.Struct, frozen=True):
    """Where the control plane listens. ``managed``: resource -> whether kube-scheduler leaves it to the extender."""

    url: str
    managed: Mapping[str, bool]
    tls: Tls = Tls()
    weight: int = WEIGHT  # one of ten steps then outweighs the spreading of equal pods, which undoes packing


class SchedulerConfigOptions(msgspec.Struct, frozen=True):
    """The wanted configuration. ``weight``: of the strategy among kube-scheduler's other scores."""

    minor: int
    form: Form
    strategy: Strategy | None = None
    extender: ExtenderConfig | None = None
    weight: int = WEIGHT
    profile: str = DEFAULT_PROFILE
    kubeconfig: str = KUBECONFIG


def clear_lead(weight: int = WEIGHT, others: int = OTHERS) -> int:
    """How many extender steps a node must be ahead so that all other scores together cannot outweigh it. ``others``:
    the sum of the weights of kube-scheduler's plugins. More than 10 means never."""
    return 100 * others // (10 * weight) + 1


def minor_of(text: str) -> int:
    """The minor version of ``1.28``, ``v1.28`` or ``1.28.3``; WireError for an unsupported version."""
    found = _VERSION.fullmatch(text.strip())
    if found is None:
        raise WireError(f"{text[:40]!r} is not a version of Kubernetes such as 1.28")
    minor = int(found[1])
    if not OLDEST <= minor <= NEWEST:
        raise WireError(f"Kubernetes 1.{minor} is not supported; 1.{OLDEST} to 1.{NEWEST} are")
    return minor


def api_version(minor: int) -> str:
    """The newest API version of ``KubeSchedulerConfiguration`` that the release supports."""
    if minor <= _ONE_PLUGIN_EACH:
        version = "v1beta1"
    elif minor == LAST_WITH_POLICY:
        version = "v1beta2"
    else:
        version = "v1beta3" if minor <= 24 else "v1"
    return f"kubescheduler.config.k8s.io/{version}"


def document(wish: SchedulerConfigOptions) -> Document:
    """The whole document; WireError when that version's form cannot express it."""
    return _policy(wish) if wish.form == "policy" else _configuration(wish)


def extender_of(extender: ExtenderConfig) -> Document:
    """The extender's entry in ``KubeSchedulerConfiguration``, the same in all its versions."""
    return {
        "urlPrefix": extender.url,
        "filterVerb": "filter",
        "prioritizeVerb": "prioritize",
        "preemptVerb": "preempt",
        "bindVerb": "bind",
        "weight": extender.weight,
        "enableHTTPS": extender.url.startswith("https://"),
        **({"tlsConfig": tls} if (tls := _tls(extender.tls)) else {}),
        "httpTimeout": f"{_TIMEOUT}s",
        "nodeCacheCapable": True,
        "ignorable": False,
        # Visible to kube-scheduler, so that its own sums, quota and preemption work (scheduler extender API v1).
        "managedResources": [
            {"name": name, "ignoredByScheduler": ignored} for name, ignored in extender.managed.items()
        ],
    }


def _tls(tls: Tls) -> Document:
    fields = {"caFile": tls.ca, "certFile": tls.cert, "keyFile": tls.key, "serverName": tls.server_name}
    return {name: value for name, value in fields.items() if value} | ({"insecure": True} if tls.insecure else {})


def _configuration(wish: SchedulerConfigOptions) -> Document:
    ours: Document = {"schedulerName": wish.profile, **(_scored(wish) if wish.strategy else {})}
    others: list[Document] = [{"schedulerName": DEFAULT_PROFILE}] if wish.profile != DEFAULT_PROFILE else []
    return {
        "apiVersion": api_version(wish.minor),
        "kind": "KubeSchedulerConfiguration",
        "clientConnection": {"kubeconfig": wish.kubeconfig},
        "profiles": [*others, ours],
        **({"extenders": [extender_of(wish.extender)]} if wish.extender else {}),
    }


def _scored(wish: SchedulerConfigOptions) -> Document:
    assert wish.strategy is not None
    old = wish.minor <= _ONE_PLUGIN_EACH
    plugin = _OLD_PLUGINS[wish.strategy.kind] if old else _FIT
    # Disabled and enabled again: in old versions a default plugin otherwise keeps its weight of 1.
    score = {
        "disabled": [{"name": _LEAST if old else _FIT}],
        "enabled": [{"name": plugin, "weight": wish.weight}],
    }
    args = _old_args(wish.strategy) if old else {"scoringStrategy": _new_strategy(wish.strategy)}
    return {"plugins": {"score": score}, "pluginConfig": [{"name": plugin, "args": args}]}


def _old_args(strategy: Strategy) -> Document:
    shape = {"shape": _shape(strategy)} if strategy.kind is StrategyKind.RATIO else {}
    return {**shape, "resources": _resources(strategy)}


def _new_strategy(strategy: Strategy) -> Document:
    ratio = {"requestedToCapacityRatio": {"shape": _shape(strategy)}} if strategy.kind is StrategyKind.RATIO else {}
    return {"type": strategy.kind.kubernetes, "resources": _resources(strategy), **ratio}


def _shape(strategy: Strategy) -> list[Document]:
    return [{"utilization": p.utilization, "score": p.score} for p in strategy.shape]


def _resources(strategy: Strategy) -> list[Document]:
    return [{"name": r.name, "weight": r.weight} for r in strategy.resources]


# ── the Policy file ──────────────────────────────────────────────────────────────────────────────────────────────────


def _policy(wish: SchedulerConfigOptions) -> Document:
    if wish.minor > LAST_WITH_POLICY:
        raise WireError(
            f"kube-scheduler 1.{wish.minor} does not read Policy files; 1.{LAST_WITH_POLICY} was the last that did; "
            "use --form config"
        )
    if wish.profile != DEFAULT_PROFILE:
        raise WireError("a Policy file has no profiles; use --form config, or a second kube-scheduler")
    return {
        "apiVersion": "v1",
        "kind": "Policy",
        **({"priorities": _priorities(wish)} if wish.strategy else {}),
        **({"extenders": [_policy_extender(wish.extender)]} if wish.extender else {}),
    }


def _priorities(wish: SchedulerConfigOptions) -> list[Document]:
    assert wish.strategy is not None
    ours: Document
    if wish.strategy.kind is StrategyKind.RATIO:
        arguments = {"shape": _shape(wish.strategy), "resources": _resources(wish.strategy)}
        ours = {
            "name": "RequestedToCapacityRatioPriority",
            "weight": wish.weight,
            "argument": {"requestedToCapacityRatioArguments": arguments},
        }
    elif set(wish.strategy.resources) == set(CPU_AND_MEMORY):
        name = "MostRequestedPriority" if wish.strategy.kind is StrategyKind.MOST else "LeastRequestedPriority"
        ours = {"name": name, "weight": wish.weight}
    else:
        raise WireError(
            f"a Policy file supports {wish.strategy.kind} only for cpu=1,memory=1; for other resources, use "
            "requested-to-capacity-ratio with the shape 0:0,100:10, which packs in the same way, or --form config"
        )
    return [ours, *({"name": name, "weight": weight} for name, weight in _PRIORITIES.items())]


def _policy_extender(extender: ExtenderConfig) -> Document:
    """The extender's entry in a Policy file: ``enableHttps`` in its old spelling, the timeout in nanoseconds
    (LegacyExtender)."""
    fields = extender_of(extender)
    https = fields.pop("enableHTTPS")
    return {**fields, "enableHttps": https, "httpTimeout": _TIMEOUT * _NANOSECONDS}
