"""The PodDisruptionBudgets of the cluster, by namespace, and which of them select which labels.

Owners of namespaces write them, as many and as large as they like, and preemption needs them for every pod of every
proposed node. So a pod is compared only with the budgets of its own namespace, and only once: the result is kept for
its labels until a selector of the namespace changes. Selectors beyond a bound are not compared at all: every pod of the
namespace then counts as protected by a budget, so no pod is evicted that the budget would have spared. The same holds
when a call has no time left to compare. Many budgets do not prevent eviction: protected pods leave last, but they
leave.
"""

from collections.abc import Callable, Mapping

from fractile.model.disruption import EvictionBudget, Protected

MOST = 4096  # budgets of a namespace plus their requirements and values: 819 budgets with two labels each
_KEPT = 2**16  # budget names in the results kept for a namespace
_COMPARED = 8  # budgets compared in the time of one look of a search (``policy.cards.effort``)
_COUNTED = 4  # budgets charged for a pod in the same time

Spend = Callable[[int], bool]  # so many looks; False: no looks are left


def nothing(_looks: int) -> bool:
    """For callers that count no looks."""
    return True


class DisruptionBudgets:
    """By namespace and name; written by the watch of budgets only."""

    def __init__(self) -> None:
        self._of: dict[str, _Namespace] = {}

    def __bool__(self) -> bool:
        return bool(self._of)

    def put(self, name: str, budget: EvictionBudget) -> None:
        mine = self._of.get(budget.namespace)
        if mine is None:
            mine = self._of[budget.namespace] = _Namespace()
        mine.put(name, budget)

    def drop(self, namespace: str, name: str) -> None:
        mine = self._of.get(namespace)
        if mine is not None and mine.drop(name):
            del self._of[namespace]

    def selecting(self, pod: Protected, spend: Spend = nothing) -> Mapping[str, EvictionBudget] | None:
        """The budgets that select the pod, by name; None when they are too large to compare, or no looks are left."""
        mine = self._of.get(pod.namespace)
        return {} if mine is None else mine.selecting(pod, spend)


class _Namespace:
    """The budgets of one namespace. One that exceeds the bound counts as too large; it is read again when it changes,
    or when all budgets are listed again."""

    def __init__(self) -> None:
        self._budgets: dict[str, EvictionBudget] = {}
        self._size = 0
        self._too_large = 0
        self._selecting: dict[bytes, tuple[str, ...]] = {}  # by the key of the labels
        self._kept = 0

    def put(self, name: str, budget: EvictionBudget) -> None:
        before = self._budgets.get(name)
        if before is not None and (before.requirements, before.too_large) == (budget.requirements, budget.too_large):
            self._budgets[name] = budget  # only the number of pods that may leave has changed
            return
        self.drop(name)
        if self._size + _size(budget) > MOST:
            budget = EvictionBudget(budget.namespace, too_large=True)
        self._budgets[name] = budget
        self._count(budget, 1)

    def drop(self, name: str) -> bool:
        """Remove a budget; returns whether it was the last one."""
        before = self._budgets.pop(name, None)
        if before is not None:
            self._count(before, -1)
        return not self._budgets

    def selecting(self, pod: Protected, spend: Spend) -> Mapping[str, EvictionBudget] | None:
        if self._too_large:
            return None
        names = self._selecting.get(pod.key)
        if names is None:
            if not spend(self._size // _COMPARED):
                return None
            names = tuple(name for name, budget in self._budgets.items() if budget.selects(pod.labels))
            self._keep(pod.key, names)
        looks = len(names) // _COUNTED
        if looks and not spend(looks):
            return None
        return {name: self._budgets[name] for name in names}

    def _keep(self, key: bytes, names: tuple[str, ...]) -> None:
        self._kept += 1 + len(names)
        if self._kept > _KEPT:
            self._selecting.clear()
            self._kept = 1 + len(names)
        self._selecting[key] = names

    def _count(self, budget: EvictionBudget, sign: int) -> None:
        """Add or remove a selector's size, and drop all results kept so far."""
        self._size += sign * _size(budget)
        self._too_large += sign * budget.too_large
        self._selecting.clear()
        self._kept = 0


def _size(budget: EvictionBudget) -> int:
    return 0 if budget.too_large else 1 + sum(1 + len(r.values) for r in budget.requirements)
