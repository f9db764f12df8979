"""Which pods a PodDisruptionBudget protects, counted as kube-scheduler counts (filterPodsWithPDBViolation).

All pods that might leave a node are counted, the most important first. Each takes one from every budget that selects
it; a pod that finds nothing left in one of these budgets would break it. A budget with an empty selector selects no
pod.
"""

from collections.abc import Callable, Mapping, Sequence

from fractile.model.disruption import EvictionBudget, Protected
from fractile.model.units import PodUID

Selecting = Callable[[Protected], Mapping[str, EvictionBudget] | None]


def violating(pods: Sequence[Protected], selecting: Selecting) -> frozenset[PodUID]:
    """The pods that would break a budget. ``pods``: the most important first. ``selecting``: the budgets of the pod's
    namespace that select its labels, by name; None when they are unknown, and then the pod may not leave."""
    left: dict[tuple[str, str], int] = {}
    found: set[PodUID] = set()
    for pod in pods:
        budgets = selecting(pod)
        if budgets is None:
            found.add(pod.uid)
            continue
        for name, budget in budgets.items():
            if pod.name in budget.leaving:
                continue
            key = pod.namespace, name
            left[key] = left.get(key, budget.allowed) - 1
            if left[key] < 0:
                found.add(pod.uid)
    return frozenset(found)
