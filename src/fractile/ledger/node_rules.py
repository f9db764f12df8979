"""What keeps pods away from nodes other than lack of room: labels, taints and cordons, judged for all nodes together.

The extender is called with nodes that kube-scheduler has judged already; code that chooses a node itself must judge
them. Pods of a workload have the same rules, so answers are kept until a node or a card comes, goes or changes.
"""

import sys
from collections import OrderedDict
from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from fractile.ledger.arrays import Bools, CardArrays
from fractile.policy.nodes.where import Where
from fractile.wire.kubernetes.manifests import Taint

_ALIKE = 64  # distinct pod rules whose answer is kept


class NodeRule(msgspec.Struct, frozen=True):
    """The properties of one node."""

    labels: Mapping[str, str]
    taints: tuple[Taint, ...] = ()
    cordoned: bool = False


class NodeRules:
    """By node name. One writer, on the loop of the ledger."""

    def __init__(self, arrays: CardArrays) -> None:
        self._arrays = arrays
        self._rules: dict[str, NodeRule] = {}
        self._kept: OrderedDict[Where, Bools] = OrderedDict()
        self._moves = arrays.moves

    def put(self, name: str, labels: Mapping[str, str], taints: Sequence[Taint], *, cordoned: bool) -> None:
        """Add or change a node."""
        shared = {sys.intern(key): sys.intern(value) for key, value in labels.items()}
        rule = NodeRule(shared, tuple(taints), cordoned)
        if self._rules.get(name) != rule:
            self._rules[name] = rule
            self._kept.clear()

    def drop(self, name: str) -> None:
        """Remove a node."""
        if self._rules.pop(name, None) is not None:
            self._kept.clear()

    def admitted(self, where: Where) -> Bools:
        """By column of the arrays: whether such a pod may run on the node; never on a node that no watch has shown."""
        if self._moves != self._arrays.moves:
            self._kept.clear()
            self._moves = self._arrays.moves
        found = self._kept.pop(where, None)
        if found is None:
            found = np.fromiter((self._admits(name, where) for name in self._arrays.names), np.bool_)
            if len(self._kept) >= _ALIKE:
                self._kept.popitem(last=False)
        self._kept[where] = found
        return found

    def _admits(self, name: str | None, where: Where) -> bool:
        if name is None:
            return False
        rule = self._rules.get(name)
        if rule is None:
            return False
        if rule.cordoned or rule.taints:
            barred = where.untolerated(rule.taints, cordoned=rule.cordoned) is not None
            return not barred and where.admits(name, rule.labels)
        return where.admits(name, rule.labels)
