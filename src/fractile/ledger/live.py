"""The cluster as node scores see it, updated from the ledger: one row per column of the ledger, in thousandths.

The ledger writes cards; ``NodeTotals`` has the CPU and memory left on nodes. Only rows that changed since the last call
are recomputed, so the cost of a decision depends on the changes and not on the size of the cluster. When the arrays
have grown or their models have changed, a new view is built from scratch.

A card's room is the smaller of its free memory and its free cores, each as a fraction of the card and rounded up; only
a card that no pod holds a part of has all of its thousandths. Devices are in the order of the ledger's slots. A node
counts with the model and the size of its largest card; pods that name a smaller one are still served, as the ledger
decides.
"""

import numpy as np

from fractile.ledger import node_totals as nt
from fractile.ledger.arrays import CardArrays
from fractile.ledger.node_totals import NodeTotals
from fractile.policy.nodes.view import KINDS, WHOLE_GPU, Flags, Ints, View

_NO_CARD = -1
_OF_A_PERCENT = WHOLE_GPU // 100


class Live:
    """``view`` is valid until ``follow`` reports a new one."""

    size: Ints  # MiB of each node's largest card
    sizes: tuple[int, ...]  # the sizes that exist

    def __init__(self, arrays: CardArrays, totals: NodeTotals) -> None:
        self._arrays = arrays
        self._totals = totals
        self._seen: tuple[int, int] | None = None  # number of changes of the arrays, and of the totals
        self.view = self._empty()

    def follow(self) -> Ints | None:
        """The rows that changed since the last call; None when ``view`` is a new one."""
        arrays, totals = self._arrays, self._totals
        seen = arrays.changes, totals.changes
        if self._seen == seen:
            return np.zeros(0, np.int64)
        grown = len(arrays.names) != len(self.view.number) or arrays.memory.shape[0] != self.view.gpu_left.shape[1]
        if self._seen is None or grown or tuple(arrays.models) != self.view.models:
            self.view = self._empty()
            self._write(np.arange(len(arrays.names)))
            changed = None
        else:
            rows = self._rows(*self._seen)
            changed = rows[self._write(rows)]
        self._seen = seen
        return changed

    def _rows(self, cards_seen: int, totals_seen: int) -> Ints:
        """The rows that may have changed since; all of them when the changes are no longer known."""
        cards = self._arrays.changed_since(cards_seen)
        nodes = self._totals.changed_since(totals_seen)
        if cards is None or nodes is None:
            return np.arange(len(self._arrays.names))
        columns = {*cards, *(column for name in nodes if (column := self._arrays.find(name)) >= 0)}
        return np.array(sorted(columns), np.int64)

    def _write(self, rows: Ints) -> Flags:
        """Recompute the rows; returns which of them changed."""
        changed = np.zeros(len(rows), np.bool_)
        for before, after in zip(_columns(self.view), self._fresh(rows), strict=True):
            differs = before[rows] != after
            changed |= differs.any(axis=1) if differs.ndim > 1 else differs
            before[rows] = after
        size = self._arrays.memory[:, rows].max(axis=0)
        if not np.array_equal(self.size[rows], size):
            self.size[rows] = size
            some: list[int] = np.unique(self.size).tolist()
            self.sizes = tuple(s for s in some if s)
        return changed

    def _fresh(self, rows: Ints) -> tuple[Ints, ...]:
        """The current rows, in the order of ``_columns``."""
        arrays = self._arrays
        memory = arrays.memory[:, rows]
        largest = memory.argmax(axis=0)
        at: list[int] = rows.tolist()
        known = self._totals.of([arrays.names[row] for row in at])
        return (
            known[:, nt.CPU],
            known[:, nt.CPU] - known[:, nt.CPU_USED],
            known[:, nt.MEMORY],
            known[:, nt.MEMORY] - known[:, nt.MEMORY_USED],
            (memory > 0).sum(axis=0),
            _left(arrays, rows).T,
            arrays.model[largest, rows],
            known[:, nt.KINDS_FROM :],
            known[:, nt.PODS] - known[:, nt.PODS_USED],
        )

    def _empty(self) -> View:
        nodes, slots = len(self._arrays.names), self._arrays.memory.shape[0]
        self.size, self.sizes = np.zeros(nodes, np.int64), ()

        def column() -> Ints:
            return np.zeros(nodes, np.int64)

        return View(
            number=np.arange(nodes, dtype=np.int64),
            cpu=column(),
            cpu_left=column(),
            memory=column(),
            memory_left=column(),
            gpus=column(),
            gpu_left=np.full((nodes, slots), _NO_CARD, np.int64),
            model=column(),
            kinds=np.zeros((nodes, KINDS), np.int64),
            slots_left=column(),
            models=tuple(self._arrays.models),
        )


def _columns(view: View) -> tuple[Ints, ...]:
    return (
        view.cpu, view.cpu_left, view.memory, view.memory_left,
        view.gpus, view.gpu_left, view.model, view.kinds, view.slots_left,
    )  # fmt: skip


def _left(arrays: CardArrays, rows: Ints) -> Ints:
    """[slots, rows]. The percent that must stay free next to slices without cores is not subtracted: new pods either
    ask for memory, or are refused the card because it is in use."""
    memory, usable = arrays.memory[:, rows], arrays.usable[:, rows]
    by_memory = -(-np.maximum(usable, 0) * WHOLE_GPU // np.maximum(memory, 1))
    by_cores = np.maximum(arrays.free_cores[:, rows], 0) * _OF_A_PERCENT
    left = np.where(arrays.idle[:, rows], by_memory, np.minimum(np.minimum(by_memory, by_cores), WHOLE_GPU - 1))
    return np.where(memory > 0, left, _NO_CARD)
