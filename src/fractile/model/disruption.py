"""PodDisruptionBudgets: which pods they protect, and how many of those may leave."""

from collections.abc import Mapping

import msgspec

from fractile.model.units import PodUID


class LabelRequirement(msgspec.Struct, frozen=True):
    """One line of a label selector."""

    key: str
    operator: str
    values: frozenset[str] = frozenset()

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


class EvictionBudget(msgspec.Struct, frozen=True):
    """``allowed``: how many of its pods may leave now. ``leaving``: names of pods that were already evicted.
    ``too_large``: its selector was not read, so it counts as one that lets no pod of its namespace leave."""

    namespace: str
    requirements: tuple[LabelRequirement, ...] = ()
    allowed: int = 0
    leaving: frozenset[str] = frozenset()
    too_large: bool = False

    def selects(self, labels: Mapping[str, str] | None) -> bool:
        """Whether the budget selects pods of its namespace with these labels. None: too many labels to keep; any may
        match."""
        if not self.requirements:
            return False
        return labels is None or (bool(labels) and all(r.holds(labels) for r in self.requirements))


class Protected(msgspec.Struct, frozen=True):
    """A pod as budgets see it. ``key`` stands for its labels: equal labels have equal keys."""

    uid: PodUID
    namespace: str
    name: str
    labels: Mapping[str, str] | None
    key: bytes = b""
