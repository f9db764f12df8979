"""The PodDisruptionBudgets of the cluster, by namespace, and which of them select which labels.

Owners of namespaces write them, as many and as long as they like, and preemption asks about every pod of every node
that is proposed. So a pod is compared with the budgets of its own namespace only, and once: the answer is kept for its
labels until a selector of the namespace changes. Selectors beyond a bound are not compared at all: then every pod of
the namespace counts as one that a budget protects, which evicts nobody whom the budget would have spared. It is the
same where a call has no time left to compare: nobody escapes eviction by many budgets, since who is protected leaves
last, but leaves.
"""

from collections.abc import Callable, Mapping

from fractile.model.disruption import EvictionBudget, Protected

MOST = 4096  # budgets of a namespace, with their requirements and values: 819 that ask for two labels each
_KEPT = 2**16  # budgets that are named in the answers kept for a namespace
_COMPARED = 8  # of them in the time of one look of a search (``policy.effort``)
_COUNTED = 4  # budgets that a pod takes one from, likewise

Spend = Callable[[int], bool]  # so many looks; False: there are none left


def nothing(_looks: int) -> bool:
    """For callers who count no looks."""
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
        """The budgets that select the pod, by name; None where they are too large to be compared, or no looks are left
        for it."""
        mine = self._of.get(pod.namespace)
        return {} if mine is None else mine.selecting(pod, spend)


class _Namespace:
    """The budgets of one namespace. One for which there is no room is too large; it is read when it changes, or when
    all budgets are listed again."""

    def __init__(self) -> None:
        self._budgets: dict[str, EvictionBudget] = {}
        self._size = 0
        self._too_large = 0
        self._selecting: dict[bytes, tuple[str, ...]] = {}  # by the key of the labels
        self._kept = 0

    def put(self, name: str, budget: EvictionBudget) -> None:
        before = self._budgets.get(name)
        if before is not None and (before.requirements, before.too_large) == (budget.requirements, budget.too_large):
            self._budgets[name] = budget  # only how many may leave has changed
            return
        self.drop(name)
        if self._size + _size(budget) > MOST:
            budget = EvictionBudget(budget.namespace, too_large=True)
        self._budgets[name] = budget
        self._count(budget, 1)

    def drop(self, name: str) -> bool:
        """Whether it was the last one."""
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
        """A selector comes or goes, and with it what was found by the selectors before."""
        self._size += sign * _size(budget)
        self._too_large += sign * budget.too_large
        self._selecting.clear()
        self._kept = 0


def _size(budget: EvictionBudget) -> int:
    return 0 if budget.too_large else 1 + sum(1 + len(r.values) for r in budget.requirements)
