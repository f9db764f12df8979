"""How good the chosen groups of cards are, on machines as they are sold; and what a choice costs.

``python -m tests.perf.topology`` prints the tables of docs/concepts/topology.md. The optimum of a single choice is
found by trying every group of as few models, with rings found by trying every order of their cards.
"""

import time
from collections.abc import Callable, Iterator
from functools import cache
from itertools import combinations, permutations
from random import Random

import msgspec

from fractile.policy.cards import topology
from fractile.policy.cards.bandwidth import Matrix, matrix, ring
from tests.perf.measuring.report import Row
from tests.policy.cards.machines import LARGE, MACHINES, Machine

Positions = tuple[int, ...]
Pick = Callable[[Machine, Positions, int], Positions]

COUNTS = (2, 3, 4)
ARRIVALS = 4000
SIZES = (1, 1, 1, 2, 2, 4)  # cards of an arriving pod


class Choices(msgspec.Struct, frozen=True):
    """Over all states of a machine, for groups of one size: mean rates of rings in MB/s."""

    machine: str
    count: int
    states: int
    lowest: float
    ours: float
    optimum: float
    below: int  # states in which ours is below the optimum
    worse: int  # states in which the lowest indexes are below it


class Times(msgspec.Struct, frozen=True):
    """Of choices that nobody has made before, in ms of processor time."""

    machine: str
    median: float
    worst: float


@cache
def pairs_of(machine: Machine) -> Matrix:
    return matrix(tuple((n, machine.interconnect(n)) for n in range(len(machine.rows))))


@cache
def tried(machine: Machine, group: Positions) -> int:
    """The best ring through the group, by trying every order."""
    pairs, first, rest = pairs_of(machine), group[0], group[1:]
    return max(
        min(pairs[a][b] for a, b in zip((first, *way), (*way, first), strict=True)) for way in permutations(rest)
    )


def ours(machine: Machine, free: Positions, count: int) -> Positions:
    """As the policy ``topology`` chooses."""
    pick = topology.closest if count > 1 else topology.fragment
    return pick(pairs_of(machine), machine.kinds, free, count)


def lowest(machine: Machine, free: Positions, count: int) -> Positions:
    return free[:count]


def choices(machine: Machine) -> Iterator[Choices]:
    """Every state of the machine, for every size of a group."""
    cards = range(len(machine.rows))
    for count in COUNTS:
        states = [free for n in cards for free in combinations(cards, n + 1) if n + 1 >= count]
        if not states:
            continue
        found = [[tried(machine, pick(machine, free, count)) for free in states] for pick in (lowest, ours)]
        best = [max(tried(machine, g) for g in _fewest_models(machine, free, count)) for free in states]
        yield Choices(
            machine=machine.name,
            count=count,
            states=len(states),
            lowest=_mean(found[0]),
            ours=_mean(found[1]),
            optimum=_mean(best),
            below=sum(a < b for a, b in zip(found[1], best, strict=True)),
            worse=sum(a < b for a, b in zip(found[0], best, strict=True)),
        )


def traffic(machine: Machine, pick: Pick, seed: int = 7) -> float:
    """Pods come and go: the mean rate of the rings of those with several cards, as a part of the best that the empty
    machine has for so many. The same pods come to every way of choosing; who finds no room goes away."""
    random = Random(seed)
    free, running, parts = set(range(len(machine.rows))), list[Positions](), list[float]()
    for _ in range(ARRIVALS):
        count, leaves = random.choice(SIZES), random.random()
        while running and (len(free) < count or random.random() < 0.3):
            free.update(running.pop(int(leaves * len(running))))
        if count > len(free):
            continue
        group = pick(machine, tuple(sorted(free)), count)
        free.difference_update(group)
        running.append(group)
        if count > 1:
            parts.append(tried(machine, group) / _best(machine, count))
    return _mean(parts)


def times(machine: Machine) -> Times:
    """Groups of every size among all cards and among three quarters of them, in several ways."""
    taken: list[float] = []
    size = len(machine.rows)
    for seed in range(6):
        free = tuple(sorted(Random(seed).sample(range(size), size if seed == 0 else size * 3 // 4)))
        for count in range(1, len(free)):
            pick = topology.closest if count > 1 else topology.fragment
            started = time.thread_time()
            pick.__wrapped__(pairs_of(machine), machine.kinds, free, count)
            taken.append(1000 * (time.thread_time() - started))
    taken.sort()
    return Times(machine.name, taken[len(taken) // 2], taken[-1])


def measure() -> list[Row]:
    """For ``make bench``."""
    below = sum(c.below for machine in MACHINES for c in choices(machine))
    rows = [Row("groups of cards below the optimum, of all states of 5 machines", below, "", 0)]
    for machine in LARGE:
        found = times(machine)
        rows.append(Row(f"choosing cards, {machine.name}, worst first time", found.worst, "ms", None))
    return rows


def _fewest_models(machine: Machine, free: Positions, count: int) -> list[Positions]:
    groups = list(combinations(free, count))
    models = [len({machine.kinds[a][0] for a in g}) for g in groups]
    fewest = min(models)
    return [g for g, n in zip(groups, models, strict=True) if n == fewest]


@cache
def _best(machine: Machine, count: int) -> int:
    free = tuple(range(len(machine.rows)))
    return max(ring(pairs_of(machine), g) for g in combinations(free, count))


def _mean(values: list[int] | list[float]) -> float:
    return sum(values) / max(len(values), 1)


def _print() -> None:
    print("| machine | cards | states | lowest indexes | ours | optimum | ours below it | lowest below it |")
    print("|---|---|---|---|---|---|---|---|")
    for machine in MACHINES:
        for c in choices(machine):
            rates = " | ".join(f"{rate / 1000:.1f}" for rate in (c.lowest, c.ours, c.optimum))
            print(f"| {c.machine} | {c.count} | {c.states} | {rates} | {c.below} | {c.worse} |")
    print("\n| machine | lowest indexes | ours |\n|---|---|---|")
    for machine in MACHINES:
        if len(machine.rows) > 2:
            print(f"| {machine.name} | {traffic(machine, lowest):.1%} | {traffic(machine, ours):.1%} |")
    print("\n| machine | median ms | worst ms |\n|---|---|---|")
    for machine in (*MACHINES, *LARGE):
        if len(machine.rows) > 2:
            t = times(machine)
            print(f"| {machine.name} | {t.median:.2f} | {t.worst:.2f} |")


if __name__ == "__main__":
    _print()
