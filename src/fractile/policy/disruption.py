"""Which pods a PodDisruptionBudget protects, counted as kube-scheduler counts (filterPodsWithPDBViolation).

All pods that might leave a node are gone through, the most important first; each takes one from every budget that
selects it, and a pod for which nothing is left of one would break it. A budget with an empty selector selects nobody.
"""

from collections.abc import Sequence

from fractile.model.disruption import Budget, Protected
from fractile.model.units import PodUID


def violating(pods: Sequence[Protected], budgets: Sequence[Budget]) -> frozenset[PodUID]:
    """Those that would break a budget; ``pods`` have the most important first."""
    left = [b.allowed for b in budgets]
    found: set[PodUID] = set()
    for pod in pods:
        for i, budget in enumerate(budgets):
            if budget.selects(pod):
                left[i] -= 1
                if left[i] < 0:
                    found.add(pod.uid)
    return frozenset(found)
