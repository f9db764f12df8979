"""PodDisruptionBudgets: which pods they protect, and how many of those may leave."""

from collections.abc import Mapping

import msgspec

from fractile.model.units import PodUID


class Requirement(msgspec.Struct, frozen=True):
    """One line of a label selector."""

    key: str
    operator: str
    values: tuple[str, ...] = ()

    def holds(self, labels: Mapping[str, str]) -> bool:
        match self.operator:
            case "In":
                return labels.get(self.key) in self.values
            case "NotIn":
                return labels.get(self.key) not in self.values
            case "Exists":
                return self.key in labels
            case "DoesNotExist":
                return self.key not in labels
            case _:
                return False  # the API server stores no others


class Budget(msgspec.Struct, frozen=True):
    """``allowed``: how many of its pods may leave now. ``leaving``: names of those that were evicted already."""

    namespace: str
    requirements: tuple[Requirement, ...] = ()
    allowed: int = 0
    leaving: frozenset[str] = frozenset()

    def selects(self, pod: "Protected") -> bool:
        if self.namespace != pod.namespace or not self.requirements or pod.name in self.leaving:
            return False
        return bool(pod.labels) and all(r.holds(pod.labels) for r in self.requirements)


class Protected(msgspec.Struct, frozen=True):
    """A pod as budgets see it."""

    uid: PodUID
    namespace: str
    name: str
    labels: Mapping[str, str]
