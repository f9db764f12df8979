"""The cases for a real card: kernels of three kinds, 20 us to half a second; which of them share the card on which
terms."""

from __future__ import annotations

from dataclasses import dataclass

from cases import Case, Workload
from host import Tenant

FULL = 0  # blocks: as many as the card can run at once
FEW = 8


@dataclass(frozen=True)
class Kernel:
    kind: str  # spin, memory or matmul
    us: int
    blocks: int = FULL


def load(name: str, loop: str, *kernels: Kernel, processes: int = 1) -> tuple[Workload, tuple[Kernel, ...]]:
    words = f"loop={loop} kernels=" + ",".join(f"{k.kind}:{k.us}:{k.blocks}" for k in kernels)
    return Workload(name, words, max(k.us for k in kernels) / 1e3, processes, overlaps=True), kernels


LOADS = {
    w.kind: (w, kernels)
    for w, kernels in (
        load("spin 20us", "async", Kernel("spin", 20)),
        load("spin 200us", "async", Kernel("spin", 200)),
        load("spin 2ms", "async", Kernel("spin", 2000)),
        load("spin 20ms", "async", Kernel("spin", 20000)),
        load("spin 100ms", "async", Kernel("spin", 100000)),
        load("spin 500ms", "async", Kernel("spin", 500000)),
        load("few blocks", "async", Kernel("spin", 500, FEW)),
        load("memory 100us", "async", Kernel("memory", 100)),
        load("memory 1ms", "async", Kernel("memory", 1000)),
        load("memory 10ms", "async", Kernel("memory", 10000)),
        load("matmul 50us", "async", Kernel("matmul", 50)),
        load("matmul 1ms", "async", Kernel("matmul", 1000)),
        load("matmul 30ms", "async", Kernel("matmul", 30000)),
        load("mix", "async", Kernel("spin", 50), Kernel("matmul", 1000), Kernel("memory", 300)),
        load("sync 100us", "sync", Kernel("spin", 100)),
        load("sync 2ms", "sync", Kernel("matmul", 2000)),
        load("burst", "burst n=32", Kernel("matmul", 200)),
        load("streams", "async streams=4", Kernel("spin", 500, FEW)),
        load("graph", "graph n=20", Kernel("matmul", 100)),
        load("processes", "async", Kernel("matmul", 1000), processes=2),
        load("three in sync", "sync", Kernel("memory", 1000), processes=3),
    )
}
IDLE = Workload("idle", "loop=idle", 0, overlaps=True)

ALONE = {
    100: ("spin 20us", "spin 20ms", "memory 1ms", "matmul 50us", "sync 100us", "streams", "graph", "processes"),
    50: ("spin 200us", "spin 100ms", "memory 100us", "matmul 1ms", "burst", "few blocks", "three in sync"),
    10: ("spin 2ms", "memory 10ms", "matmul 50us", "sync 2ms", "graph"),
}
TOGETHER: list[tuple[list[int], list[tuple[str, ...]]]] = [
    (
        [50, 50],
        [
            ("spin 20us", "spin 20ms"),
            ("memory 1ms", "matmul 1ms"),
            ("spin 500ms", "matmul 50us"),
            ("sync 100us", "memory 100us"),
            ("streams", "graph"),
            ("mix", "processes"),
        ],
    ),
    (
        [70, 30],
        [
            ("matmul 1ms", "memory 1ms"),
            ("memory 10ms", "spin 200us"),
            ("spin 100ms", "burst"),
            ("processes", "spin 20us"),
            ("sync 2ms", "mix"),
            ("graph", "three in sync"),
        ],
    ),
    (
        [90, 10],
        [
            ("matmul 50us", "spin 2ms"),
            ("spin 20ms", "memory 100us"),
            ("memory 1ms", "streams"),
            ("burst", "matmul 30ms"),
        ],
    ),
    (
        [25, 25, 25, 25],
        [("spin 200us", "memory 1ms", "matmul 1ms", "sync 2ms"), ("graph", "matmul 30ms", "mix", "spin 20us")],
    ),
    (
        [40, 30, 20, 10],
        [("matmul 1ms", "memory 1ms", "spin 2ms", "burst"), ("spin 20us", "processes", "matmul 50us", "memory 10ms")],
    ),
]
TRIAL = ("alone 50", "pair 70/30", "idle neighbour")  # the first of each


def _add(table: list[Case], group: str, tenants: list[Tenant], loads: list[Workload], due: list[float]) -> None:
    table.append(Case(len(table) + 1, group, tuple(tenants), tuple(loads), tuple(due)))


def _tenant(w: Workload, cores: int, limit: int = 0) -> Tenant:
    return Tenant(w.words, cores, limit, processes=w.processes)


def table() -> list[Case]:
    """Alone at 100: a guarantee of half and no limit. Below that, and in the last case of every group: hard limits."""
    out: list[Case] = []
    for share, names in ALONE.items():
        for w in (LOADS[n][0] for n in names):
            t = _tenant(w, share, share) if share < 100 else _tenant(w, 50)
            _add(out, f"alone {share}", [t], [w], [share / 100])
    for w in (LOADS[n][0] for n in ("matmul 1ms", "spin 200us")):
        _add(out, "idle neighbour", [_tenant(w, 50), _tenant(IDLE, 50)], [w, IDLE], [1.0, 0.0])
    for shares, groups in TOGETHER:
        name = ("pair " if len(shares) == 2 else "four ") + "/".join(str(s) for s in shares)
        for i, names in enumerate(groups):
            loads, hard = [LOADS[n][0] for n in names], i == len(groups) - 1
            tenants = [_tenant(w, s, s if hard else 0) for w, s in zip(loads, shares, strict=True)]
            _add(out, name, tenants, loads, [s / 100 for s in shares])
    return out


def trial() -> list[Case]:
    cases = table()
    return [next(c for c in cases if c.group == group) for group in TRIAL]
