"""Computes figures from simgpu's accounts. A tenant's share is its work, as a part of the work that the same processes
did alone, without any library, in the same run. Its error is the distance of the share from its target, in points."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import cases
from cases import Case, Workload
from host import Books

STEP = 10  # ms between the samples of a case in which a tenant arrives or departs
SETTLED = 5.0  # points


@dataclass(frozen=True)
class Verdict:
    shares: list[float]  # per tenant
    errors: list[float]  # points, signed
    throughput: float  # sum of shares, as part of what the limits allow
    convergence: list[float]  # ms, one per event
    times: list[float]  # part of the card's time in simgpu's accounts, per tenant

    @property
    def error(self) -> float:
        return max(abs(e) for e in self.errors)


def rate(load: Workload, alone: Books) -> float:
    """Work per ms of the workload alone."""
    return alone.work(0, 0, alone.at[-1], load.overlaps) / alone.at[-1]


def _share(case: Case, books: Books, k: int, rates: list[float], begin: int, end: int) -> float:
    return books.work(k, begin, end, case.loads[k].overlaps) / (rates[k] * (end - begin)) if rates[k] else 0.0


def _settles(case: Case, books: Books, rates: list[float], event: int, until: int) -> float:
    """ms until the first moment from which all have their share over half a second (longer for long kernels)."""
    over = max(500, int(-(-case.piece * 25 // STEP) * STEP))
    for t in range(event, until - over + 1, STEP):
        due = [cases.entitled(case.tenants, k, t, t + over) for k in range(len(case.tenants))]
        if all(abs(_share(case, books, k, rates, t, t + over) - d) * 100 <= SETTLED for k, d in enumerate(due)):
            return float(t - event)
    return float(until - event)


def judge(case: Case, books: Books, alone: list[Books]) -> Verdict:
    window = books.at[-1]
    rates = [rate(w, a) for w, a in zip(case.loads, alone, strict=True)]
    shares = [_share(case, books, k, rates, 0, window) for k in range(len(case.loads))]
    errors = [(s - t) * 100 for s, t in zip(shares, case.targets, strict=True)]
    times = [books.share(k, 0, window) for k in range(len(case.loads))]
    ends = [*case.events[1:], window] if case.events else []
    settled = [_settles(case, books, rates, e, u) for e, u in zip(case.events, ends, strict=True)]
    return Verdict(shares, errors, sum(shares) / sum(case.targets), settled, times)


# ---- the error that no scheduler could avoid ----

WHOLE = ("async", "sync", "graph")  # kinds whose pieces all have the same length
SHORTEST = 50.0  # ms: shorter pieces count as divisible


def unavoidable(case: Case) -> float:
    """Points: the least error of any choice of whole pieces of work that fits into the window. The work of a tenant
    with short pieces, or pieces of several lengths, counts as divisible, so the result is a lower bound."""
    long = [k for k, w in enumerate(case.loads) if w.kind in WHOLE and w.piece >= SHORTEST]
    due = [t * cases.WINDOW for t in case.targets]
    fine = [due[k] for k in range(len(due)) if k not in long and due[k] > 0]
    choices = [_around(due[k] / case.loads[k].piece) for k in long]
    best = 100.0
    for counts in itertools.product(*choices):
        had = [n * case.loads[k].piece for n, k in zip(counts, long, strict=True)]
        short_of = sum(had) + sum(fine) - cases.WINDOW  # the time that tenants with short pieces lose
        if short_of > 1e-6 and not fine:
            continue
        errors = [abs(h - due[k]) for h, k in zip(had, long, strict=True)] + [max(0.0, short_of) / max(1, len(fine))]
        best = min(best, max(errors) / cases.WINDOW * 100)
    return best


def _around(pieces: float) -> range:
    return range(max(0, int(pieces) - 1), int(pieces) + 3)


# ---- the figures of the matrix ----


def _quantile(values: list[float], q: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, max(0, -(-len(ordered) * int(q * 100) // 100) - 1))] if ordered else 0.0


MANY = 20


def figures(results: list[tuple[Case, Verdict]]) -> dict[str, float | int]:
    errors = [v.error for _, v in results]
    hard = [v.error for c, v in results if c.group in ("alone 50", "alone 10")]
    harvest = [v.shares[0] for c, v in results if c.group in ("alone 100", "idle neighbour")]
    busy = [v.throughput for c, v in results if c.group.startswith(("pair", "four", "arrivals"))]
    settled = [t for _, v in results for t in v.convergence]
    found = {
        "cases": len(results),
        "mean_error_points": round(sum(errors) / max(1, len(errors)), 3),
        "p95_error_points": round(_quantile(errors, 0.95), 3),
        "worst_error_points": round(max(errors, default=0), 3),
        "hard_limit_error_points": round(max(hard, default=0), 3),
    }
    # A figure without a case is left out, so it is not judged. Of fewer than twenty, the 95th percentile is the worst.
    if len(settled) >= MANY:
        found["convergence_ms_p95"] = round(_quantile(settled, 0.95), 1)
    elif settled:
        found["convergence_ms_worst"] = round(max(settled), 1)
    if busy:
        found["min_total_throughput"] = round(min(busy), 4)
    if harvest:
        found["idle_harvest"] = round(min(harvest), 4)
    return found


BARS: dict[str, tuple[str, float]] = {
    "mean_error_points": ("<=", 2),
    "p95_error_points": ("<=", 4),
    "worst_error_points": ("<=", 5),
    "min_total_throughput": (">=", 0.95),
    "convergence_ms_p95": ("<=", 200),
    "convergence_ms_worst": ("<=", 500),
    "hard_limit_error_points": ("<=", 2),
    "idle_harvest": (">=", 0.97),
}


def missed(found: dict[str, float | int]) -> list[str]:
    return [
        f"{k} {found[k]} (wanted {sign} {bar})"
        for k, (sign, bar) in BARS.items()
        if k in found and (found[k] > bar if sign == "<=" else found[k] < bar)
    ]
