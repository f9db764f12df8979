"""How kube-scheduler scores nodes by their resources: strategy, resources with weights, shape.

Read from the command line and from kube-scheduler's own configuration, old and new. The rules are Kubernetes' own
(pkg/scheduler/apis/config/validation), so that kube-scheduler accepts what is accepted here.
"""

import re
from enum import StrEnum
from itertools import pairwise
from typing import Any

import msgspec

from fractile.errors import WireError

_MOST_WEIGHT = 100
_MOST_UTILIZATION = 100  # percent
_MOST_SCORE = 10
_MOST_POINTS = 101
_MOST_RESOURCES = 64
_POINT = re.compile(r"([0-9]{1,3}):([0-9]{1,3})", re.ASCII)
_RESOURCE = re.compile(
    r"(?:[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?", re.ASCII
)


class StrategyKind(StrEnum):
    """The strategies of kube-scheduler's ``NodeResourcesFit``, as this program's command line spells them."""

    MOST = "most-allocated"
    LEAST = "least-allocated"
    RATIO = "requested-to-capacity-ratio"

    @property
    def kubernetes(self) -> str:
        """Kubernetes' name: ``MostAllocated`` and so on."""
        return "".join(part.title() for part in self.value.split("-"))


class Weighted(msgspec.Struct, frozen=True):
    """A resource and its weight, 1..100."""

    name: str
    weight: int = 1


class ShapePoint(msgspec.Struct, frozen=True):
    """Utilisation in percent, 0..100, and its score, 0..10."""

    utilization: int
    score: int


BIN_PACKING = (ShapePoint(0, 0), ShapePoint(100, 10))
CPU_AND_MEMORY = (Weighted("cpu"), Weighted("memory"))  # kube-scheduler's own default


class Strategy(msgspec.Struct, frozen=True):
    """One way to score. ``shape`` is used by the ratio only."""

    kind: StrategyKind
    resources: tuple[Weighted, ...] = CPU_AND_MEMORY
    shape: tuple[ShapePoint, ...] = BIN_PACKING


DEFAULT = Strategy(StrategyKind.LEAST)  # kube-scheduler's default


def parse_shape(text: str) -> tuple[ShapePoint, ...]:
    """Parse ``0:0,40:2,100:10``; WireError with the rule that it breaks."""
    points: list[ShapePoint] = []
    for part in text.split(","):
        found = _POINT.fullmatch(part.strip())
        if found is None:
            raise WireError(f"{part.strip()[:40]!r} is not UTILIZATION:SCORE; write a shape such as 0:0,100:10")
        points.append(ShapePoint(int(found[1]), int(found[2])))
    return checked_shape(tuple(points))


def parse_resources(text: str) -> tuple[Weighted, ...]:
    """Parse ``nvidia.com/gpu=5,cpu=1``; a weight of 1 may be left out. WireError with the rule that it breaks."""
    found: list[Weighted] = []
    for part in text.split(","):
        name, equals, weight = part.strip().partition("=")
        if equals and not re.fullmatch(r"[0-9]{1,4}", weight, re.ASCII):
            raise WireError(f"{part.strip()[:80]!r} is not NAME=WEIGHT with a weight from 1 to {_MOST_WEIGHT}")
        found.append(Weighted(name, int(weight) if equals else 1))
    return checked_resources(tuple(found))


def checked_shape(points: tuple[ShapePoint, ...]) -> tuple[ShapePoint, ...]:
    """Return the points; WireError unless they rise in utilisation and are within 0..100 and 0..10."""
    if not 1 <= len(points) <= _MOST_POINTS:
        raise WireError("a shape has at least one point and at most 101")
    for point in points:
        if not 0 <= point.utilization <= _MOST_UTILIZATION:
            raise WireError(f"a utilization of {point.utilization} in a shape is not within 0 to 100 percent")
        if not 0 <= point.score <= _MOST_SCORE:
            raise WireError(f"a score of {point.score} in a shape is not within 0 to 10")
    for before, after in pairwise(points):
        if after.utilization <= before.utilization:
            raise WireError(
                f"the utilizations of a shape must rise, and {after.utilization} comes after {before.utilization}"
            )
    return points


def checked_resources(resources: tuple[Weighted, ...]) -> tuple[Weighted, ...]:
    """Return the resources; WireError for an invalid name, a duplicate, or a weight outside 1..100."""
    if not 1 <= len(resources) <= _MOST_RESOURCES:
        raise WireError("at least one resource must be named, and at most 64")
    seen: set[str] = set()
    for resource in resources:
        if not _RESOURCE.fullmatch(resource.name):
            raise WireError(f"{resource.name[:80]!r} is not the name of a resource, such as cpu or nvidia.com/gpu")
        if resource.name in seen:
            raise WireError(f"the resource {resource.name} is named twice")
        if not 1 <= resource.weight <= _MOST_WEIGHT:
            raise WireError(f"the weight {resource.weight} of {resource.name} is not within 1 to {_MOST_WEIGHT}")
        seen.add(resource.name)
    return resources


# ── from kube-scheduler's configuration ──────────────────────────────────────────────────────────────────────────────


class _Ratio(msgspec.Struct, frozen=True):
    shape: list[ShapePoint] | None = None


class _ScoringStrategy(msgspec.Struct, frozen=True, rename="camel"):
    type: str = ""
    resources: list[Weighted] | None = None
    requested_to_capacity_ratio: _Ratio | None = None


class _Args(msgspec.Struct, frozen=True, rename="camel"):
    scoring_strategy: _ScoringStrategy | None = None
    shape: list[ShapePoint] | None = None
    resources: list[Weighted] | None = None


class _PluginConfig(msgspec.Struct, frozen=True):
    name: str = ""
    args: dict[str, Any] | None = None


class _Profile(msgspec.Struct, frozen=True, rename="camel"):
    scheduler_name: str = "default-scheduler"
    plugin_config: list[_PluginConfig] | None = None


class _Configuration(msgspec.Struct, frozen=True):
    profiles: list[_Profile] | None = None


class _Argument(msgspec.Struct, frozen=True, rename="camel"):
    requested_to_capacity_ratio_arguments: _Args | None = None


class _Priority(msgspec.Struct, frozen=True):
    name: str = ""
    argument: _Argument | None = None


class _Policy(msgspec.Struct, frozen=True):
    priorities: list[_Priority] | None = None


_PRIORITIES = {"MostRequestedPriority": StrategyKind.MOST, "LeastRequestedPriority": StrategyKind.LEAST}
# Plugins of 1.20 and 1.21, one per strategy; NodeResourcesFit has had them all since v1beta2.
_OLD_PLUGINS = {
    "NodeResourcesMostAllocated": StrategyKind.MOST,
    "RequestedToCapacityRatio": StrategyKind.RATIO,
    "NodeResourcesLeastAllocated": StrategyKind.LEAST,
}
_FIT = "NodeResourcesFit"


def of_configuration(document: object, scheduler_name: str = "") -> Strategy:
    """The strategy of one profile in any version of ``KubeSchedulerConfiguration``: the one with that name, else the
    first.

    Missing fields get kube-scheduler's defaults. WireError when it is invalid.
    """
    profiles = _converted(document, _Configuration, "KubeSchedulerConfiguration").profiles or [_Profile()]
    chosen = next((p for p in profiles if p.scheduler_name == scheduler_name), profiles[0])
    configs = {config.name: config.args or {} for config in chosen.plugin_config or []}
    for name, kind in _OLD_PLUGINS.items():
        if name in configs:
            return _old(kind, configs[name])
    return of_fit(configs.get(_FIT, {}))


def of_fit(args: object) -> Strategy:
    """The strategy of ``NodeResourcesFitArgs``."""
    found = _converted(args, _Args, "NodeResourcesFitArgs").scoring_strategy
    if found is None:
        return DEFAULT
    kinds = {kind.kubernetes: kind for kind in StrategyKind}
    if found.type and found.type not in kinds:
        raise WireError(f"{found.type!r} is not a scoring strategy; there are {', '.join(kinds)}")
    ratio = found.requested_to_capacity_ratio or _Ratio()
    return _strategy(kinds.get(found.type, StrategyKind.LEAST), found.resources, ratio.shape)


def of_policy(document: object) -> Strategy:
    """The strategy of a Policy file: its first priority that is a strategy; a file with two is rarely intended."""
    priorities = _converted(document, _Policy, "Policy").priorities
    for priority in priorities or ():
        ratio = (priority.argument or _Argument()).requested_to_capacity_ratio_arguments
        if ratio is not None:
            return _strategy(StrategyKind.RATIO, ratio.resources, ratio.shape)
        if priority.name in _PRIORITIES:
            return Strategy(_PRIORITIES[priority.name])
    if priorities is None:  # kube-scheduler's default list
        return DEFAULT
    raise WireError(f"the Policy scores nodes by none of {', '.join(_PRIORITIES)} and RequestedToCapacityRatio")


def _old(kind: StrategyKind, args: object) -> Strategy:
    found = _converted(args, _Args, f"{kind.kubernetes}Args")
    return _strategy(kind, found.resources, found.shape)


def _strategy(kind: StrategyKind, resources: list[Weighted] | None, shape: list[ShapePoint] | None) -> Strategy:
    if kind is StrategyKind.RATIO and not shape:
        raise WireError("RequestedToCapacityRatio has no shape; kube-scheduler would refuse that")
    named = tuple(Weighted(r.name, r.weight or 1) for r in resources or ()) or CPU_AND_MEMORY
    return Strategy(kind, checked_resources(named), checked_shape(tuple(shape or BIN_PACKING)))


def _converted(document: object, type: type[Any], what: str) -> Any:
    try:
        return msgspec.convert(document, type)
    except (msgspec.ValidationError, UnicodeError, RecursionError) as e:
        raise WireError(f"{what}: {e}") from None
