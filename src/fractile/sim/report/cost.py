"""Measure what a decision costs on clusters of different sizes: the experiment's nodes, fewer or repeated, half used.

This is measured on the current machine; everything else in a report follows from the seeds.
"""

import time
from collections.abc import Callable, Sequence
from random import Random

import msgspec
import numpy as np

from fractile.policy.nodes.mix import Mix, mix_of
from fractile.policy.nodes.score_cache import ScoreCache
from fractile.policy.nodes.scoring_context import scoring_of
from fractile.policy.nodes.view import TaskDemand
from fractile.sim.cluster import Cluster
from fractile.sim.kernel import Kernel, kernel_of
from fractile.sim.runs import Experiment
from fractile.sim.snapshot.trace import NodeRow

TIMES = (0.125, 0.25, 0.5, 1, 2, 4, 8)  # of the experiment's nodes
MOST_NODES = 10_000  # unless the experiment's cluster is larger
WARM = 500  # uncounted decisions, after one of every class of pods
COUNTED = 1_000
_LEFT = (0, 0, 190, 530, 1000)  # thousandths of a device


class Cost(msgspec.Struct, frozen=True):
    """Microseconds of processor time per decision, including recording the placement."""

    policy: str
    nodes: int
    median: float
    p99: float


def cost_of(
    experiment: Experiment, policies: Sequence[str], *, clock: Callable[[], float] = time.thread_time
) -> list[Cost]:
    """The cost of every policy on every size of cluster. ``clock`` counts seconds of processor time, so that other work
    on the machine does not count."""
    kernel = kernel_of(compiled=experiment.compiled)
    mix = mix_of(p.ask for p in experiment.pods)
    queue = Random("cost").choices([p.ask for p in experiment.pods], k=WARM + COUNTED)
    found: list[Cost] = []
    for policy in policies:
        for size in sizes(len(experiment.nodes)):
            nodes = [_named(experiment.nodes, i) for i in range(size)]
            found.append(_measure(nodes, queue, mix, policy, kernel, clock))
    return found


def sizes(nodes: int) -> list[int]:
    """The numbers of nodes of the measured clusters."""
    wanted = {max(1, round(nodes * t)) for t in TIMES}
    return sorted(n for n in wanted if n <= max(MOST_NODES, nodes))


def _named(nodes: Sequence[NodeRow], number: int) -> NodeRow:
    return msgspec.structs.replace(nodes[number % len(nodes)], name=f"n{number:06}")


def _measure(
    nodes: Sequence[NodeRow],
    queue: Sequence[TaskDemand],
    mix: Mix,
    policy: str,
    kernel: Kernel,
    clock: Callable[[], float],
) -> Cost:
    cluster = _used(Cluster(nodes))
    score_cache = ScoreCache(cluster.view, kernel.policy(policy), scoring_of(cluster.view, mix))
    for ask in mix.asks:
        score_cache.best(ask, 0)
    taken: list[float] = []
    for number, ask in enumerate(queue):
        began = clock()
        choice = score_cache.best(ask, number)
        if choice is not None:
            cluster.place(ask, choice)
            score_cache.changed(choice.row)
        taken.append(1e6 * (clock() - began))
    counted = sorted(taken[WARM:])
    return Cost(policy, len(nodes), counted[len(counted) // 2], counted[len(counted) * 99 // 100])


def _used(cluster: Cluster) -> Cluster:
    """A half-used cluster with hardly two equal nodes, so that nothing can be computed once for many."""
    lots = np.random.default_rng(1)
    view = cluster.view
    view.gpu_left[:] = np.where(view.gpu_left < 0, -1, lots.choice(_LEFT, view.gpu_left.shape))
    view.cpu_left[:] = (view.cpu * lots.random(len(view.cpu))).astype(np.int64)
    return cluster
