"""The published experiment: pods arrive one by one and stay; one that fits nowhere is lost."""

import time
from collections.abc import Callable, Sequence
from random import Random

import msgspec
import numpy as np

from fractile.policy.score.board import Board
from fractile.policy.score.fragmentation import Causes, causes, fragments
from fractile.policy.score.mix import Mix
from fractile.policy.score.policy import Policy, Situation
from fractile.policy.score.situation import situation_of
from fractile.policy.score.view import Ask, View
from fractile.sim.arrivals import arrivals, in_order
from fractile.sim.cluster import Cluster
from fractile.sim.curve import Curve
from fractile.sim.trace import NodeRow, PodRow

Tell = Callable[[int, int], None]  # pods done, of so many


class FillRun(msgspec.Struct, frozen=True):
    """What one run of one policy came to. ``causes``: when all of the cluster's GPUs had been asked for."""

    seed: int
    curve: Curve
    causes: Causes
    pods: int
    failed: int
    failed_milli: int
    weight: int  # what the figures of fragments are divided by to be thousandths
    seconds: float  # of the decisions, on the monotonic clock


def fill(
    nodes: Sequence[NodeRow],
    pods: Sequence[PodRow],
    policy: Policy,
    mix: Mix,
    *,
    seed: int,
    tune: float,
    tell: Tell = lambda done, total: None,
    clock: Callable[[], float] = time.monotonic,
) -> FillRun:
    """One run. ``tell`` is called after each pod."""
    # 1. Order of pods and of nodes, each from its own stream: other nodes do not change the pods.
    queue = arrivals(pods, nodes, tune=tune, random=Random(f"{seed}:pods"))
    cluster = Cluster(in_order(nodes, Random(f"{seed}:nodes")))
    situation = situation_of(cluster.view, mix)
    # 2. One decision after the other.
    curve = Curve(cluster.capacity, planned=round(100 * tune))
    run = _Filling(cluster, Board(cluster.view, policy, situation), situation, curve, seed << 32)
    start = clock()
    for number, ask in enumerate(queue):
        run.arrive(number, ask)
        tell(number + 1, len(queue))
    # 3. Figures.
    return FillRun(
        seed=seed,
        curve=run.curve,
        causes=run.causes or causes(cluster.view, situation.expected),
        pods=len(queue),
        failed=run.failed,
        failed_milli=run.failed_milli,
        weight=situation.expected.total,
        seconds=clock() - start,
    )


class _Filling:
    def __init__(self, cluster: Cluster, board: Board, situation: Situation, curve: Curve, lots: int) -> None:
        self.curve = curve
        self.causes: Causes | None = None
        self.failed = self.failed_milli = 0
        self._cluster, self._board, self._situation = cluster, board, situation
        self._lots = lots
        self._arrived = 0
        self._fragment = fragments_of(cluster.view, situation, slice(None))
        self._fragments = int(self._fragment.sum())

    def arrive(self, number: int, ask: Ask) -> None:
        if self.causes is None and self._arrived + ask.total > self._cluster.capacity:
            self.causes = causes(self._cluster.view, self._situation.expected)
        self._arrived += ask.total
        choice = self._board.best(ask, self._lots + number)
        if choice is None:
            self.failed += 1
            self.failed_milli += ask.total
        else:
            self._cluster.place(ask, choice)
            self._board.changed(choice.row)
            self._measure(choice.row)
        self.curve.add(self._arrived, self._cluster.allocated, self._fragments)

    def _measure(self, row: int) -> None:
        now = fragments_of(self._cluster.view, self._situation, slice(row, row + 1))
        self._fragments += int(now[0] - self._fragment[row])
        self._fragment[row] = now[0]


def fragments_of(view: View, situation: Situation, rows: slice) -> "np.ndarray[tuple[int], np.dtype[np.int64]]":
    """F of some nodes, in thousandths times the mix' weight."""
    return fragments(view.cpu_left[rows], view.gpu_left[rows], view.model[rows], situation.expected)
