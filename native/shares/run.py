"""make -C native shares: the matrix of cases under the arbiter, and the same matrix under the baseline, judged by
simgpu's accounts.

Each case has a simulated host of its own under the virtual clock; several run at a time. The output has lines of
progress, then the worst cases, the figures of the baseline, and as the last line those of the arbiter, as JSON. One row
per case is written to shares.csv, with plots beside it. The exit status is 1 if a figure misses its bar."""

from __future__ import annotations

import argparse
import csv
import json
import signal
import sys
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import cases
import host
import judge
import plots
from cases import Case
from host import Books, CaseFailed, Tenant
from judge import Verdict

FAILED = Verdict([], [100.0], 0.0, [], [])


@dataclass
class Measured:
    case: Case
    window: Verdict
    long: Verdict | None = None  # over many pieces of work, if the window is too short for 5 points
    baseline: Verdict | None = None
    seconds: float = 0.0
    problem: str = ""


@dataclass
class Matrix:
    build: Path
    alone: dict[tuple[str, int, int], Books] = field(default_factory=dict[tuple[str, int, int], Books])

    def reference(self, key: tuple[str, int, int]) -> None:
        words, processes, window = key
        try:
            self.alone[key] = host.run(self.build, [Tenant(words, processes=processes)], "none", window, window)
        except CaseFailed as e:
            print(f"alone, {words}: {e}", flush=True)

    def references(self, case: Case, window: int) -> list[Books]:
        missing = [w.words for w in case.loads if (w.words, w.processes, window) not in self.alone]
        if missing:
            raise CaseFailed(f"nothing to compare with: {missing}")
        return [self.alone[w.words, w.processes, window] for w in case.loads]

    def judged(self, case: Case, mode: str, window: int) -> tuple[Verdict, float]:
        books = host.run(self.build, list(case.tenants), mode, window, judge.STEP if case.events else window)
        if mode == "fractile" and (silent := books.silent(case.tenants)):
            raise CaseFailed(f"tenants that did no work at all: {silent}")
        return judge.judge(case, books, self.references(case, window)), books.seconds

    def measure(self, case: Case, baseline: bool) -> Measured:
        m = Measured(case, FAILED)
        try:
            m.window, m.seconds = self.judged(case, "fractile", cases.WINDOW)
            if case.excused:
                m.long, seconds = self.judged(case, "fractile", case.long_window)
                m.seconds += seconds
        except CaseFailed as e:
            m.problem = str(e)
        try:
            m.baseline = self.judged(case, "bucket", cases.WINDOW)[0] if baseline else None
        except CaseFailed as e:
            m.baseline, m.problem = FAILED, f"{m.problem} baseline: {e}".strip()
        return m


def keys_of(table: list[Case]) -> list[tuple[str, int, int]]:
    windows = [(c, w) for c in table for w in {cases.WINDOW, c.long_window if c.excused else cases.WINDOW}]
    return list(dict.fromkeys((w.words, w.processes, length) for c, length in windows for w in c.loads))


def measure_all(build: Path, table: list[Case], jobs: int, baseline: bool) -> list[Measured]:
    matrix = Matrix(build)
    done: list[Measured] = []
    with ThreadPoolExecutor(jobs) as pool:
        list(pool.map(matrix.reference, keys_of(table)))
        for m in pool.map(partial(matrix.measure, baseline=baseline), table):
            done.append(m)
            if m.problem:
                print(f"case {m.case.number} ({m.case.group}): {m.problem}", flush=True)
            if len(done) % 50 == 0:
                print(f"{len(done)} of {len(table)} cases", flush=True)
    return done


# ---- output ----


def _list(values: Iterable[object]) -> str:
    return " | ".join(str(v) for v in values)


def _percent(values: Iterable[float]) -> str:
    return _list(f"{v * 100:.2f}" for v in values)


def row(m: Measured) -> dict[str, object]:
    """One line of the table. Lists have one entry per tenant, or per event."""
    c, v, b, long = m.case, m.window, m.baseline, m.long
    return {
        "case": c.number,
        "group": c.group,
        "kinds": _list(w.kind for w in c.loads),
        "workloads": _list(w.words for w in c.loads),
        "processes": _list(t.processes for t in c.tenants),
        "cores": _list(t.cores for t in c.tenants),
        "limits": _list(t.limit for t in c.tenants),
        "arrive_ms": _list(t.arrive for t in c.tenants),
        "depart_ms": _list("" if t.depart is None else t.depart for t in c.tenants),
        "window_ms": cases.WINDOW,
        "longest_piece_ms": f"{c.piece:.3f}",
        "due_percent": _percent(c.targets),
        "share_percent": _percent(v.shares),
        "card_time_percent": _percent(v.times),
        "error_points": f"{v.error:.3f}",
        "unavoidable_points": f"{judge.unavoidable(c):.3f}" if c.excused else "",
        "beyond_points": f"{v.error - judge.unavoidable(c):.3f}" if c.excused else "",
        "total_throughput": f"{v.throughput:.4f}",
        "convergence_ms": _list(f"{t:.0f}" for t in v.convergence),
        "excused": int(c.excused),
        "long_window_ms": c.long_window if long else "",
        "long_error_points": f"{long.error:.3f}" if long else "",
        "baseline_share_percent": _percent(b.shares) if b else "",
        "baseline_error_points": f"{b.error:.3f}" if b else "",
        "real_seconds": f"{m.seconds:.2f}",
        "problem": m.problem,
    }


def write_table(path: Path, done: list[Measured]) -> None:
    with path.open("w", newline="") as f:
        out = csv.DictWriter(f, fieldnames=list(row(done[0])))
        out.writeheader()
        out.writerows(row(m) for m in done)


def _report_unavoidable(done: list[Measured]) -> None:
    parts = [(m.window.error, judge.unavoidable(m.case)) for m in done]
    worst, of_it = max(parts)
    least, beyond = [u for _, u in parts], [e - u for e, u in parts]
    print(
        f"whole pieces of work cannot do better there than {sum(least) / len(least):.2f} points in the mean,", end=" "
    )
    print(f"{max(least):.2f} at worst; beyond that: {sum(beyond) / len(beyond):.2f} and {max(beyond):.2f};", end=" ")
    print(f"of the worst error, {worst:.2f}, {of_it:.2f} are unavoidable")


def report(done: list[Measured], baseline: bool) -> list[str]:
    """Prints everything but the last line; returns the bars that were missed."""
    for group in dict.fromkeys(m.case.group for m in done):
        errors = sorted(m.window.error for m in done if m.case.group == group)
        print(
            f"{group:18} {len(errors):4} cases   mean {sum(errors) / len(errors):6.2f}   worst {errors[-1]:6.2f} points"
        )
    print("worst:")
    for m in sorted(done, key=lambda m: -m.window.error)[:12]:
        long = f", {m.long.error:.2f} over {m.case.long_window // 1000} s" if m.long else ""
        print(
            f"  case {m.case.number} {m.case.group}: {m.window.error:.2f}{long}  {_list(w.words for w in m.case.loads)}"
        )
    excused = [m.case.number for m in done if m.case.excused]
    print(f"{len(excused)} cases have pieces of work of which half is 5 % of the window or more: {excused}")
    if excused:
        _report_unavoidable([m for m in done if m.case.excused])
    judged = [(m.case, m.long or m.window) for m in done]
    print("with these over 50 pieces of work: " + json.dumps(judge.figures(judged)))
    short = judge.figures([(m.case, m.window) for m in done if not m.case.excused])
    print("without these:                     " + json.dumps(short))
    if baseline:
        print(
            "token bucket, strict:              "
            + json.dumps(judge.figures([(m.case, m.baseline or FAILED) for m in done]))
        )
    return judge.missed(judge.figures(judged))


def main() -> int:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--build", type=Path, required=True, help="where make put the programs")
    p.add_argument("--quick", action="store_true", help="a part of the cases, without the baseline")
    p.add_argument("--only", type=host.numbers, default=[], help="comma-separated numbers of cases, as in the table")
    p.add_argument("--seed", type=int, default=5)
    p.add_argument("--jobs", type=int, default=2, help="cases at a time")
    p.add_argument("--no-baseline", action="store_true")
    p.add_argument("--results", type=Path, help="where to copy table and plots, beside BUILD/shares")
    a = p.parse_args()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, host.end_all)
    began, table, baseline = time.monotonic(), cases.table(a.seed), not (a.quick or a.no_baseline)
    if a.quick:
        table = cases.quick(table)
    if a.only:
        table = [c for c in table if c.number in a.only]
        if len(table) < len(set(a.only)):
            p.error(f"--only names a case that is not there; there are 1 to {len(cases.table(a.seed))}")
    done = measure_all(a.build, table, a.jobs, baseline)
    for place in [a.build / "shares"] + ([a.results] if a.results else []):
        place.mkdir(parents=True, exist_ok=True)
        write_table(place / ("quick.csv" if a.quick else "shares.csv"), done)
        if not a.quick:
            plots.matrix(place, [(m.case, m.window, m.baseline) for m in done])
    missed = report(done, baseline)
    print(f"took {time.monotonic() - began:.0f} s")
    if missed:
        print("missed: " + "; ".join(missed))
    print(json.dumps(judge.figures([(m.case, m.window) for m in done])))
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
