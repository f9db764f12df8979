"""In which order pods arrive, and how many, as the FGD paper's experiments define it. Everything follows from the
seed: of orders of our own, or of those of the published runs, which a program in Go drew."""

from collections.abc import Sequence
from random import Random
from typing import Protocol

import msgspec

from fractile.policy.nodes.view import WHOLE_GPU, TaskDemand
from fractile.sim.gorandom import GoRandom
from fractile.sim.snapshot.trace import NodeRow, PodRow

_WATCHES = 10  # of the published program's kube-scheduler


class Orders(msgspec.Struct, frozen=True):
    """Pods as they arrive; nodes in the order in which ties are broken."""

    queue: list[TaskDemand]
    nodes: list[NodeRow]


class TieBreaks(Protocol):
    def randrange(self, stop: int, /) -> int: ...


def orders(pods: Sequence[PodRow], nodes: Sequence[NodeRow], *, tune: float, seed: int, which: str) -> Orders:
    """``which``: "own" or "published". Of our own each has its own stream: other nodes do not change the pods."""
    if which == "published":
        return _published(pods, nodes, tune=tune, random=GoRandom(seed))
    queue = arrivals(pods, nodes, tune=tune, random=Random(f"{seed}:pods"))
    return Orders(queue, in_order(nodes, Random(f"{seed}:nodes")))


def _published(pods: Sequence[PodRow], nodes: Sequence[NodeRow], *, tune: float, random: GoRandom) -> Orders:
    """As ``pkg/simulator`` of hkust-adsl/kubernetes-scheduler-simulator draws them, all from one stream. What else
    draws from it: a line of its log, once; and between pods and nodes the watches that its kube-scheduler opens, once
    each for how long they are to last (``ListAndWatch`` of client-go). How many those are was found by trying: with 10
    the published curves come out to the last digit, with none of 0 to 23 else."""
    by_name = [p.ask for p in sorted(pods, key=lambda p: p.name)]
    queue = list(by_name)
    random.skip(1)
    random.shuffle(queue)
    queue = _tuned(queue, by_name, nodes, tune=tune, random=random)
    random.skip(_WATCHES)
    order = sorted(nodes, key=lambda n: n.name)
    prefix = random.permutation(len(order))  # the number that each node's name gets in front
    return Orders(queue, [order[i] for i in sorted(range(len(order)), key=prefix.__getitem__)])


def arrivals(pods: Sequence[PodRow], nodes: Sequence[NodeRow], *, tune: float, random: Random) -> list[TaskDemand]:
    """The pods by name, shuffled; then some at random are left out, or copies appended, until their GPUs make up
    ``tune`` times the cluster's. A tune of 0, or pods without GPUs, leave the number as it is."""
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
    """The published code weighs the drawn pod by its share of one GPU when it asks whether it is still below the bar;
    the few GPUs more that come of it are part of the published figures."""
    while True:
        drawn = known[random.randrange(len(known))]
        if drawn.milli > room:
            return queue
        queue.append(drawn)
        room -= drawn.total


def in_order(nodes: Sequence[NodeRow], random: Random) -> list[NodeRow]:
    """The nodes in a random order, the one in which ties are broken."""
    order = sorted(nodes, key=lambda n: n.name)
    random.shuffle(order)
    return order
