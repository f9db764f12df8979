"""How many nodes of a shape must be added so that enough pods find a place.

Pods come in one random order per seed (higher priority first). Only pods that the cluster refuses in an order go to new
nodes: present nodes are filled first. The least number is found by doubling and bisection, so that it suffices and one
less does not; each number is tried in every order.
"""

from collections.abc import Callable, Sequence
from random import Random

import msgspec

from fractile.policy.nodes.policy import Policy
from fractile.policy.nodes.view import WHOLE_GPU
from fractile.sim.planner.placing import Placer
from fractile.sim.planner.shapes import copies, described
from fractile.sim.planner.stock import PodHold
from fractile.sim.snapshot.cluster_snapshot import Demand, Machine, Task
from fractile.wire.output.plan import Growth

Tell = Callable[[], None]  # called after each number of nodes tried


class Order(msgspec.Struct, frozen=True):
    """The pods that did not fit in one order."""

    left: tuple[Demand, ...]


class WaitingDemand(msgspec.Struct, frozen=True):
    """All waiting pods: their number, and their thousandths of GPUs, in ``weight`` by demand."""

    pods: int
    milli: int
    weight: dict[Demand, int]
    orders: tuple[Order, ...]


def wanted(placer: Placer, tasks: Sequence[Task], seeds: Sequence[int]) -> WaitingDemand:
    """Try every order on the cluster, which is unchanged afterwards."""
    weight = {t.demand: placer.weight(t.demand) for t in tasks}
    orders = tuple(_order(placer, tasks, seed) for seed in seeds)
    return WaitingDemand(len(tasks), sum(weight[t.demand] for t in tasks), weight, orders)


def growth(wanted: WaitingDemand, shape: tuple[str, Machine], policy: Policy, *, target: float, tell: Tell) -> Growth:
    """The growth with one shape; ``target`` in percent."""
    trial = _Trial(wanted, shape[1], policy, tell)
    most = max(len(order.left) for order in wanted.orders)
    before, reached = trial.acceptance(0), trial.acceptance(most)
    about = described(*shape)
    if before >= target:
        return Growth(about, 0, 0, before, before)
    if reached < target:
        why = "other pods fit on no node of this shape, however many there are"
        return Growth(about, None, None, reached, before, why)
    nodes = least(lambda n: trial.acceptance(n) >= target, most, guess=trial.guess())
    return Growth(about, nodes, nodes * len(shape[1].cards), trial.acceptance(nodes), before)


def least(enough: Callable[[int], bool], most: int, *, guess: int) -> int:
    """A number that is enough while one less is not, given that 0 is not and ``most`` is."""
    low, high, step = 0, most, 1
    probe = min(max(1, guess), most)
    # 1. Gallop from the guess until the result lies between two numbers.
    if enough(probe):
        high = probe
        while high - step > low and enough(high - step):
            high, step = high - step, 2 * step
        low = max(low, high - step)
    else:
        low = probe
        while low + step < high and not enough(low + step):
            low, step = low + step, 2 * step
        high = min(high, low + step)
    # 2. Bisect.
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


class _Trial:
    """The numbers of nodes of one shape that were tried."""

    def __init__(self, wanted: WaitingDemand, machine: Machine, policy: Policy, tell: Tell) -> None:
        self._wanted, self._machine, self._policy, self._tell = wanted, machine, policy, tell
        self._known: dict[int, float] = {}

    def guess(self) -> int:
        """How many nodes the GPUs, CPUs and memory left over in the fullest order would fill without loss."""
        return max(self._filled(order.left) for order in self._wanted.orders)

    def _filled(self, left: Sequence[Demand]) -> int:
        m, weight = self._machine, self._wanted.weight
        gpus = -(-sum(weight[d] for d in left) // (WHOLE_GPU * len(m.cards))) if m.cards else 0
        cpu, memory = -(-sum(d.cpu for d in left) // m.cpu), -(-sum(d.memory for d in left) // m.memory)
        return max(gpus, cpu, memory)

    def acceptance(self, nodes: int) -> float:
        """In the worst order: the smaller share of pods and of GPUs, in percent."""
        if nodes not in self._known:
            self._known[nodes] = self._tried(nodes)
            self._tell()
        return self._known[nodes]

    def _tried(self, nodes: int) -> float:
        machines = copies(self._machine, nodes)
        every = tuple(d for order in self._wanted.orders for d in order.left)
        placer = Placer(machines, every, self._policy) if nodes and every else None
        return min(self._accepted(placer, order) for order in self._wanted.orders)

    def _accepted(self, placer: Placer | None, order: Order) -> float:
        helds = [placer.place(d) if placer else None for d in order.left]
        refused = [d for d, held in zip(order.left, helds, strict=True) if held is None]
        for held in helds:
            if held is not None and placer is not None:
                placer.release(held)
        w = self._wanted
        pods = 100 * (w.pods - len(refused)) / w.pods if w.pods else 100.0
        gpus = 100 * (w.milli - sum(w.weight[d] for d in refused)) / w.milli if w.milli else 100.0
        return round(min(pods, gpus), 4)


def _order(placer: Placer, tasks: Sequence[Task], seed: int) -> Order:
    queue = list(tasks)
    Random(f"{seed}:plan").shuffle(queue)
    queue.sort(key=lambda t: -t.priority)
    helds: list[PodHold] = []
    left: list[Demand] = []
    for task in queue:
        held = placer.place(task.demand)
        if held is None:
            left.append(task.demand)
        else:
            helds.append(held)
    for held in helds:
        placer.release(held)
    return Order(tuple(left))
