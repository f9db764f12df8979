"""Which pods a PodDisruptionBudget protects, counted as kube-scheduler counts (filterPodsWithPDBViolation).

All pods that might leave a node are gone through, the most important first; each takes one from every budget that
selects it, and a pod for which nothing is left of one would break it. A budget with an empty selector selects nobody.
"""

from collections.abc import Callable, Mapping, Sequence

from fractile.model.disruption import EvictionBudget, Protected
from fractile.model.units import PodUID

Selecting = Callable[[Protected], Mapping[str, EvictionBudget] | None]


def violating(pods: Sequence[Protected], selecting: Selecting) -> frozenset[PodUID]:
    """Those that would break a budget; ``pods`` have the most important first. ``selecting``: the budgets of the pod's
    namespace with its labels, by name; None: it is not known which, so nothing may leave."""
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
