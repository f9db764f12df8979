"""CPU, memory and pods of the nodes: what each node can give, and what the pods on it take.

Scores need it, filters do not: kube-scheduler has judged CPU and memory before it calls. A pod counts from when it is
first seen on a node until it has finished. Sums are updated with every pod and never recomputed.
"""

from collections.abc import Sequence

import numpy as np

from fractile.model.pod_demand import PodDemand
from fractile.model.units import NodeName, PodUID
from fractile.policy.nodes.view import KINDS, Ints
from fractile.wire.kubernetes.pod_totals import NodeCapacity

_FEW = 64  # the most changes that are tracked individually
_ROWS = 64
_ALIKE = 4096

# columns of the table
CPU, MEMORY, PODS = 0, 1, 2  # the node's capacity
CPU_USED, MEMORY_USED, PODS_USED = 3, 4, 5
KINDS_FROM = 6  # pods that hold GPUs, by ``View.kinds``
WIDTH = KINDS_FROM + KINDS


class NodeTotals:
    """By node name. One writer, on the loop of the ledger."""

    def __init__(self) -> None:
        self._table: Ints = np.zeros((_ROWS, WIDTH), np.int64)  # row 0 stays empty: for unknown nodes
        self._row: dict[str, int] = {}
        self._unused = list(range(_ROWS - 1, 0, -1))
        self._pods: dict[PodUID, tuple[str, PodDemand]] = {}
        self._alike: dict[PodDemand, PodDemand] = {}  # thousands of equal pods share one object
        self._written: list[str] = []
        self._forgotten = 0

    @property
    def changes(self) -> int:
        """Number of changes so far."""
        return self._forgotten + len(self._written)

    def changed_since(self, changes: int) -> list[str] | None:
        """The nodes that changed since there were ``changes`` changes; None when they are many or no longer known."""
        if changes < self._forgotten or self.changes - changes > _FEW:
            return None
        return list(dict.fromkeys(self._written[changes - self._forgotten :]))

    def put_node(self, name: NodeName, capacity: NodeCapacity) -> None:
        """Set what the node can give."""
        given = [capacity.cpu, capacity.memory, capacity.pods]
        row = self._at(name)
        if self._table[row, : PODS + 1].tolist() != given:
            self._table[row, : PODS + 1] = given
            self._note(name)

    def drop_node(self, name: NodeName) -> None:
        """Remove a node; its pods count until they are gone too."""
        if name in self._row:
            self.put_node(name, NodeCapacity(0, 0, 0))
            self._give_back(name)

    def put_pod(self, uid: PodUID, node: NodeName, wish: PodDemand) -> None:
        """Record that a pod is on a node; repeating it changes nothing."""
        known = self._pods.get(uid)
        if known is not None and known[0] == node and known[1] == wish:
            return
        self.drop_pod(uid)
        if len(self._alike) > _ALIKE:
            self._alike.clear()
        self._pods[uid] = node, self._alike.setdefault(wish, wish)
        self._add(node, wish, 1)

    def drop_pod(self, uid: PodUID) -> None:
        """Remove a pod that has finished or is gone; an unknown one changes nothing."""
        known = self._pods.pop(uid, None)
        if known is not None:
            self._add(*known, -1)
            self._give_back(known[0])

    def of(self, names: Sequence[str | None]) -> Ints:
        """[names, WIDTH]; 0 for unknown nodes."""
        rows = np.fromiter((self._row.get(name or "", 0) for name in names), np.int64, len(names))
        return self._table[rows]

    def __len__(self) -> int:
        """Number of pods that count."""
        return len(self._pods)

    def _add(self, node: str, wish: PodDemand, sign: int) -> None:
        row = self._at(node)  # first: it may replace the table
        sums = self._table[row]
        sums[CPU_USED] += sign * wish.cpu
        sums[MEMORY_USED] += sign * wish.memory
        sums[PODS_USED] += sign
        if wish.asks:
            sums[KINDS_FROM + kind_of(wish)] += sign
        self._note(node)

    def _at(self, name: str) -> int:
        row = self._row.get(name)
        if row is None:
            if not self._unused:
                rows = len(self._table)
                self._table = np.pad(self._table, ((0, rows), (0, 0)))
                self._unused = list(range(2 * rows - 1, rows - 1, -1))
            row = self._row[name] = self._unused.pop()
        return row

    def _give_back(self, name: str) -> None:
        """Release the row of a node that is gone together with its pods."""
        row = self._row[name]
        if not self._table[row].any():
            del self._row[name]
            self._unused.append(row)

    def _note(self, name: str) -> None:
        self._written.append(name)
        if len(self._written) > 2 * _FEW:
            del self._written[:_FEW]
            self._forgotten += _FEW


def kind_of(wish: PodDemand) -> int:
    """Column of ``View.kinds``; any number of parts of cards counts as one kind."""
    return min(wish.whole, KINDS - 1)
