"""Find nodes with GPUs that could be emptied: all their pods would fit on other nodes in use.

The least used nodes are tried first. Only movable pods are moved; pods of DaemonSets and static pods go with their
node. Waiting pods that would fit are already placed, and stay.
"""

from collections.abc import Iterable, Sequence

import msgspec
import numpy as np

from fractile.sim.planner.placing import Placed, Placer
from fractile.sim.planner.stock import PodHold
from fractile.sim.snapshot.cluster_snapshot import OF_A_DAEMON_SET, STATIC, Task
from fractile.wire.output.plan import Consolidation, Emptied

_IN_VAIN = 100  # failures in a row: fuller nodes will not be emptied either
_GOES_ALONG = frozenset({OF_A_DAEMON_SET, STATIC})


class _Node(msgspec.Struct, frozen=True):
    row: int
    used: int  # thousandths of GPUs
    pods: tuple[Placed, ...]


def consolidation(placer: Placer, running: Sequence[Placed], coming: Iterable[Placed]) -> Consolidation:
    """The nodes that could be emptied. The stock is unchanged afterwards."""
    stock = placer.stock
    gone = {row for row, machine in enumerate(stock.machines) if machine.withheld}  # no move ends these processes
    taken = {p.held.row for p in coming} | gone
    nodes = _nodes(placer, running)
    gpus = stock.view.gpus
    empty = [int(r) for r in np.flatnonzero(gpus) if int(r) not in taken and int(r) not in nodes]
    placer.close(empty)
    undo: list[tuple[PodHold, PodHold]] = []
    emptied: list[Emptied] = []
    tried = failed = 0
    for node in sorted(nodes.values(), key=lambda n: (n.used, len(n.pods), n.row)):
        if failed >= _IN_VAIN:
            break
        if node.row in taken or not gpus[node.row] or not all(_may_go(p.task) for p in node.pods):
            continue
        tried += 1
        moved = _empty(placer, node, taken)
        if moved is None:
            failed += 1
            continue
        failed = 0
        undo += moved
        emptied.append(Emptied(stock.machines[node.row].name, int(gpus[node.row]), len(moved)))
    _restore(placer, undo, (*empty, *(stock.rows[e.node] for e in emptied)))
    return Consolidation(len(empty), tuple(emptied), sum(e.gpus for e in emptied), tried)


def _nodes(placer: Placer, running: Sequence[Placed]) -> dict[int, _Node]:
    by_row: dict[int, list[Placed]] = {}
    for placed in running:
        if placed.task.fixed not in _GOES_ALONG:
            by_row.setdefault(placed.held.row, []).append(placed)
    view = placer.stock.view
    used = (np.where(view.gpu_left >= 0, 1000 - view.gpu_left, 0)).sum(axis=1)
    return {row: _Node(row, int(used[row]), tuple(pods)) for row, pods in by_row.items()}


def _may_go(task: Task) -> bool:
    return not task.fixed


def _empty(placer: Placer, node: _Node, taken: set[int]) -> list[tuple[PodHold, PodHold]] | None:
    """Move all pods of the node; returns what each held before and holds now. None when one does not fit."""
    placer.close((node.row,))
    done: list[tuple[PodHold, PodHold]] = []
    for placed in sorted(node.pods, key=lambda p: (-p.task.demand.gpus, -p.task.demand.cpu)):
        held = placer.place(placed.task.demand)
        if held is None:
            for _, there in done:
                placer.release(there)
            placer.open((node.row,))
            return None
        done.append((placed.held, held))
    for before, there in done:
        placer.release(before)
        taken.add(there.row)
    return done


def _restore(placer: Placer, undo: Sequence[tuple[PodHold, PodHold]], closed: Iterable[int]) -> None:
    for before, there in undo:
        placer.release(there)
        placer.put_back(before)
    placer.open(closed)
