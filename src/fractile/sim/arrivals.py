"""In which order pods arrive, and how many, as the FGD paper's experiments define it. Everything follows from the
seed."""

from collections.abc import Sequence
from random import Random

from fractile.policy.score.view import WHOLE_GPU, Ask
from fractile.sim.trace import NodeRow, PodRow


def arrivals(pods: Sequence[PodRow], nodes: Sequence[NodeRow], *, tune: float, random: Random) -> list[Ask]:
    """The pods by name, shuffled; then some at random are left out, or copies appended, until their GPUs make up
    ``tune`` times the cluster's. A tune of 0, or pods without GPUs, leave the number as it is."""
    queue = [p.ask for p in sorted(pods, key=lambda p: p.name)]
    random.shuffle(queue)
    capacity = sum(n.gpus for n in nodes) * WHOLE_GPU
    bar = round(tune * capacity)
    requested = sum(a.total for a in queue)
    if not bar or not requested:
        return queue
    return _fewer(queue, requested - bar, random) if requested > bar else _more(queue, bar - requested, random)


def _fewer(queue: list[Ask], excess: int, random: Random) -> list[Ask]:
    while excess > 0:
        excess -= queue.pop(random.randrange(len(queue))).total
    return queue


def _more(queue: list[Ask], room: int, random: Random) -> list[Ask]:
    """The published code weighs the drawn pod by its share of one GPU when it asks whether it is still below the bar;
    the few GPUs more that come of it are part of the published figures."""
    known = len(queue)
    while True:
        drawn = queue[random.randrange(known)]
        if drawn.milli > room:
            return queue
        queue.append(drawn)
        room -= drawn.total


def in_order(nodes: Sequence[NodeRow], random: Random) -> list[NodeRow]:
    """The nodes in a random order, the one in which ties are broken."""
    order = sorted(nodes, key=lambda n: n.name)
    random.shuffle(order)
    return order
