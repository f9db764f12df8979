"""PodDisruptionBudgets (policy/v1), trimmed to the fields that say which pods may leave, and how many."""

from typing import Any

from fractile.model.disruption import EvictionBudget, LabelRequirement
from fractile.wire.kubernetes.objects import KubeStruct, ObjectMeta

PATH = "/apis/policy/v1/poddisruptionbudgets"


class _Expression(KubeStruct, frozen=True):
    key: str = ""
    operator: str = ""
    values: list[str] | None = None


class _Selector(KubeStruct, frozen=True):
    match_labels: dict[str, str] | None = None
    match_expressions: list[_Expression] | None = None


class _Spec(KubeStruct, frozen=True):
    selector: _Selector | None = None


class _Status(KubeStruct, frozen=True):
    disruptions_allowed: int = 0
    disrupted_pods: dict[str, Any] | None = None


class PodDisruptionBudget(KubeStruct, frozen=True):
    metadata: ObjectMeta = ObjectMeta()
    spec: _Spec = _Spec()
    status: _Status = _Status()


MOST_REQUIREMENTS = 64  # of a budget; further ones are not read
MOST_VALUES = 1000  # in all requirements of a budget


def budget(found: PodDisruptionBudget) -> EvictionBudget:
    """The budget as the policy uses it; one without a selector selects no pod."""
    meta, selector = found.metadata, found.spec.selector or _Selector()
    equal, further = selector.match_labels or {}, selector.match_expressions or ()
    values = sum(len(e.values or ()) for e in further)
    if len(equal) + len(further) > MOST_REQUIREMENTS or values > MOST_VALUES:
        return EvictionBudget(meta.namespace, too_large=True)
    return EvictionBudget(
        namespace=meta.namespace,
        requirements=(
            *(LabelRequirement(key, "In", frozenset((value,))) for key, value in sorted(equal.items())),
            *(LabelRequirement(e.key, e.operator, frozenset(e.values or ())) for e in further),
        ),
        allowed=found.status.disruptions_allowed,
        leaving=frozenset(found.status.disrupted_pods or ()),
    )
