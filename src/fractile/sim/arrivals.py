"""The order and number of arriving pods, as the FGD paper's experiments define them. Everything follows from the seed:
our own orders, or those of the published runs, which were drawn by a Go program."""

from collections.abc import Sequence
from random import Random
from typing import Protocol

import msgspec

from fractile.policy.nodes.view import WHOLE_GPU, TaskDemand
from fractile.sim.gorandom import GoRandom
from fractile.sim.snapshot.trace import NodeRow, PodRow

_WATCHES = 10  # opened by the published program's kube-scheduler


class Orders(msgspec.Struct, frozen=True):
    """Pods in order of arrival; nodes in the order in which ties are broken."""

    queue: list[TaskDemand]
    nodes: list[NodeRow]


class TieBreaks(Protocol):
    def randrange(self, stop: int, /) -> int: ...


def orders(pods: Sequence[PodRow], nodes: Sequence[NodeRow], *, tune: float, seed: int, which: str) -> Orders:
    """The orders of one run. ``which``: "own" or "published". Our own orders of pods and of nodes use separate random
    streams, so that other nodes do not change the pods."""
    if which == "published":
        return _published(pods, nodes, tune=tune, random=GoRandom(seed))
    queue = arrivals(pods, nodes, tune=tune, random=Random(f"{seed}:pods"))
    return Orders(queue, in_order(nodes, Random(f"{seed}:nodes")))


def _published(pods: Sequence[PodRow], nodes: Sequence[NodeRow], *, tune: float, random: GoRandom) -> Orders:
    """Draw them as ``pkg/simulator`` of hkust-adsl/kubernetes-scheduler-simulator does, all from one stream. Two other
    users of the stream are skipped: a line of its log draws once; and between pods and nodes, each watch that its
    kube-scheduler opens draws its timeout (``ListAndWatch`` of client-go). The number of watches was found by trial: of
    0 to 23, only 10 reproduces the published curves to the last digit."""
    by_name = [p.ask for p in sorted(pods, key=lambda p: p.name)]
    queue = list(by_name)
    random.skip(1)
    random.shuffle(queue)
    queue = _tuned(queue, by_name, nodes, tune=tune, random=random)
    random.skip(_WATCHES)
    order = sorted(nodes, key=lambda n: n.name)
    prefix = random.permutation(len(order))  # the number put before each node's name
    return Orders(queue, [order[i] for i in sorted(range(len(order)), key=prefix.__getitem__)])


def arrivals(pods: Sequence[PodRow], nodes: Sequence[NodeRow], *, tune: float, random: Random) -> list[TaskDemand]:
    """The pods, sorted by name and shuffled; then random pods are removed, or copies appended, until their GPUs are
    ``tune`` times the cluster's. If ``tune`` is 0 or no pod asks for GPUs, the number is unchanged."""
    queue = [p.ask for p in sorted(pods, key=lambda p: p.name)]
    random.shuffle(queue)
    return _tuned(queue, list(queue), nodes, tune=tune, random=random)


def _tuned(
    queue: list[TaskDemand], known: list[TaskDemand], nodes: Sequence[NodeRow], *, tune: float, random: TieBreaks
) -> list[TaskDemand]:
    capacity = sum(n.gpus for n in nodes) * WHOLE_GPU
    bar = round(tune * capacity)
    requested = sum(a.total for a in queue)
    if not bar or not requested:
        return queue
    if requested > bar:
        return _fewer(queue, requested - bar, random)
    return _more(queue, known, bar - requested, random)


def _fewer(queue: list[TaskDemand], excess: int, random: TieBreaks) -> list[TaskDemand]:
    while excess > 0:
        excess -= queue.pop(random.randrange(len(queue))).total
    return queue


def _more(queue: list[TaskDemand], known: list[TaskDemand], room: int, random: TieBreaks) -> list[TaskDemand]:
    """Append copies of random pods. The published code compares a pod's share of one GPU, not its total, with the
    remaining room; the few extra GPUs are part of the published figures."""
    while True:
        drawn = known[random.randrange(len(known))]
        if drawn.milli > room:
            return queue
        queue.append(drawn)
        room -= drawn.total


def in_order(nodes: Sequence[NodeRow], random: Random) -> list[NodeRow]:
    """The nodes in a random order, in which ties are broken."""
    order = sorted(nodes, key=lambda n: n.name)
    random.shuffle(order)
    return order
