"""The table of cases, from a fixed seed: workloads (how programs launch), and which of them share a card on which
terms."""

from __future__ import annotations

import random
from dataclasses import dataclass
from itertools import pairwise

from host import Tenant

DURATIONS = [
    2,
    5,
    10,
    20,
    50,
    100,
    200,
    500,
    1000,
    2000,
    5000,
    10000,
    20000,
    50000,
    100000,
    200000,
    500000,
    1000000,
    2000000,
]  # us
GRIDS = [1, 8, 64, 108, 432, 864, 1024, 4096, 65536, 1000000]
WINDOW = 10000  # ms
EXCUSED = 0.05  # half of the longest piece of work is more than this part of the window: 5 points cannot be promised
LENGTHS = 50  # the second window of such a case, in pieces of work


@dataclass(frozen=True)
class Workload:
    """words: the tenant program's arguments; piece: ms of the longest work that cannot be stopped once launched."""

    kind: str
    words: str
    piece: float
    processes: int = 1
    overlaps: bool = False  # kernels of one length run together: work is counted in kernels, not in time


@dataclass(frozen=True)
class Case:
    number: int
    group: str
    tenants: tuple[Tenant, ...]
    loads: tuple[Workload, ...]
    targets: tuple[float, ...]  # over the window, as part of each one's work alone

    @property
    def piece(self) -> float:
        return max(w.piece for w in self.loads)

    @property
    def excused(self) -> bool:
        return self.piece / 2 / WINDOW >= EXCUSED

    @property
    def long_window(self) -> int:
        return max(WINDOW, int(-(-self.piece * LENGTHS // 1000) * 1000))

    @property
    def events(self) -> list[int]:
        """ms at which a tenant arrives or departs while others are present."""
        times = {t.arrive for t in self.tenants} | {t.depart for t in self.tenants if t.depart is not None}
        return sorted(t for t in times if 0 < t < WINDOW)


def _kernels(rng: random.Random, durations: list[int]) -> str:
    return ",".join(f"{us}:{rng.choice(GRIDS)}" for us in durations)


def _one_length(rng: random.Random) -> list[Workload]:
    out: list[Workload] = []
    for us in DURATIONS:
        for _ in range(3):
            out.append(Workload("async", f"loop=async kernels={_kernels(rng, [us])}", us / 1e3))
        for _ in range(2):
            out.append(Workload("sync", f"loop=sync kernels={_kernels(rng, [us])}", us / 1e3))
    return out


def _bursts(rng: random.Random) -> list[Workload]:
    out: list[Workload] = []
    for _ in range(24):
        us = [rng.choice(DURATIONS[:13]) for _ in range(rng.randint(1, 4))]
        out.append(
            Workload("burst", f"loop=burst n={rng.choice([4, 16, 64])} kernels={_kernels(rng, us)}", max(us) / 1e3)
        )
    for _ in range(20):
        us, n = [rng.choice(DURATIONS[:11]) for _ in range(rng.randint(1, 3))], rng.choice([5, 20, 100])
        out.append(
            Workload(
                "graph", f"loop=graph n={n} kernels={_kernels(rng, us)}", sum(us[i % len(us)] for i in range(n)) / 1e3
            )
        )
    for what in ("copy", "fill"):
        for size in (1, 16, 256, 1024):
            us = rng.choice(DURATIONS[5:10])
            out.append(
                Workload(
                    what, f"loop=burst n=8 {what}={size} kernels={_kernels(rng, [us])}", max(us / 1e3, size / 1400)
                )
            )
    return out


def _mixes(rng: random.Random) -> list[Workload]:
    out: list[Workload] = []
    for i in range(24):
        us = rng.sample(DURATIONS[:16], rng.randint(2, 5))
        hidden = " hidden=1" if i % 3 == 0 else ""
        words = f"loop=async pick=random seed={i} kernels={_kernels(rng, us)}{hidden}"
        out.append(Workload("hidden" if hidden else "mix", words, max(us) / 1e3))
    return out


def _parallel(rng: random.Random) -> list[Workload]:
    out: list[Workload] = []
    for _ in range(20):
        us, streams, grid = rng.choice(DURATIONS[3:14]), rng.choice([2, 4, 8]), rng.choice([1, 8, 64, 108, 432, 1024])
        loop = rng.choice(["async", f"burst n={streams * 4}"])
        out.append(Workload("streams", f"loop={loop} streams={streams} kernels={us}:{grid}", us / 1e3, overlaps=True))
    for _ in range(16):
        us, loop = rng.choice(DURATIONS[4:14]), rng.choice(["async", "sync", "burst n=16"])
        out.append(
            Workload(
                "processes", f"loop={loop} kernels={_kernels(rng, [us])}", us / 1e3, processes=rng.choice([2, 3, 4])
            )
        )
    return out


def workloads(rng: random.Random) -> list[Workload]:
    return _one_length(rng) + _bursts(rng) + _mixes(rng) + _parallel(rng)


# ---- which workloads share a card ----


class _Table:
    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.loads = workloads(self.rng)
        self.cases: list[Case] = []
        self._deck: list[Workload] = []

    def draw(self, longest: float = 1e9) -> Workload:
        """Every workload is drawn once before any is drawn again."""
        while True:
            if not self._deck:
                self._deck = self.rng.sample(self.loads, len(self.loads))
            w = self._deck.pop()
            if w.piece <= longest:
                return w

    def add(self, group: str, loads: list[Workload], tenants: list[Tenant], targets: list[float]) -> None:
        self.cases.append(Case(len(self.cases) + 1, group, tuple(tenants), tuple(loads), tuple(targets)))

    def alone(self, count: int, share: int) -> None:
        """At 100: a guarantee of half, no limit, no other tenant. Below: a hard limit."""
        for _ in range(count):
            w, hard = self.draw(), share < 100
            t = Tenant(w.words, cores=share if hard else 50, limit=share if hard else 0, processes=w.processes)
            self.add(f"alone {share}", [w], [t], [share / 100])

    def idle_neighbour(self, count: int) -> None:
        for _ in range(count):
            w, idle = self.draw(), Workload("idle", "loop=idle", 0)
            self.add(
                "idle neighbour",
                [w, idle],
                [Tenant(w.words, 50, processes=w.processes), Tenant(idle.words, 50)],
                [1.0, 0.0],
            )

    def together(self, group: str, count: int, shares: list[int]) -> None:
        """In every fourth case the shares are hard limits, too."""
        for i in range(count):
            loads = [self.draw() for _ in shares]
            tenants = [
                Tenant(w.words, s, s if i % 4 == 3 else 0, processes=w.processes)
                for w, s in zip(loads, shares, strict=True)
            ]
            self.add(group, loads, tenants, [s / 100 for s in shares])

    def coming_and_going(self, count: int) -> None:
        """One stays; one or two others come and go, seconds apart. Kernels are at most 20 ms, so that half a second is
        enough to measure a share."""
        for i in range(count):
            loads = [self.draw(20) for _ in range(2 + i % 2)]
            weights = self.rng.choice([[50, 50, 50], [70, 30, 50], [20, 60, 20]])[: len(loads)]
            whens = [
                (0, WINDOW),
                (2000 + 10 * self.rng.randint(0, 99), 8000),
                (4500 + 10 * self.rng.randint(0, 99), WINDOW),
            ]
            tenants = [
                Tenant(w.words, cores=c, arrive=a, depart=d if d < WINDOW else None, processes=w.processes)
                for w, c, (a, d) in zip(loads, weights, whens, strict=False)
            ]
            self.add("arrivals", loads, tenants, [entitled(tenants, k, 0, WINDOW) for k in range(len(tenants))])


def entitled(tenants: list[Tenant] | tuple[Tenant, ...], which: int, begin: int, end: int) -> float:
    """The part of the card's time between two instants that is due to a tenant: its weight among those present."""
    edges = {begin, end}
    for t in tenants:
        edges |= {e for e in (t.arrive, WINDOW if t.depart is None else t.depart) if begin < e < end}
    times, due = sorted(edges), 0.0
    for a, b in pairwise(times):
        present = [
            k for k, t in enumerate(tenants) if t.arrive <= a and b <= (WINDOW if t.depart is None else t.depart)
        ]
        if which in present:
            due += (b - a) * tenants[which].cores / sum(tenants[k].cores for k in present)
    return due / (end - begin)


def table(seed: int = 5) -> list[Case]:
    t = _Table(seed)
    for share in (100, 50, 10):
        t.alone(65, share)
    t.idle_neighbour(30)
    t.together("pair 50/50", 95, [50, 50])
    t.together("pair 70/30", 95, [70, 30])
    t.together("pair 90/10", 65, [90, 10])
    t.together("four 25/25/25/25", 20, [25, 25, 25, 25])
    t.together("four 40/30/20/10", 20, [40, 30, 20, 10])
    t.coming_and_going(50)
    return t.cases


def quick(cases: list[Case]) -> list[Case]:
    """A part with cases of every group, without those that no controller can satisfy within the window."""
    chosen: list[Case] = []
    for group in dict.fromkeys(c.group for c in cases):
        chosen += [c for c in cases if c.group == group and c.piece <= 200][:5]
    return chosen
