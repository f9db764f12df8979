"""make -C native gpu-shares: a matrix of shares on a real card, with library and arbiter.

Every workload first runs alone, without the library: its work per second counts as 100 percent. In the cases, a share
is a tenant's work per second as part of that; its error is the distance from its target. The output has lines of
progress with the time left, then the worst cases, and as the last line the figures as JSON. The figures, with a row per
case, are also written to docs/results, named by card, driver and date. The exit status is 1 if a figure misses its bar
or a case failed, and 77 if there is no card.

GPU_SHARES_SIMULATED=1 tries three short cases on a card of simgpu in real time and keeps no result."""

from __future__ import annotations

import argparse
import csv
import datetime
import json
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
import gpu_cases  # noqa: E402
import gpu_host  # noqa: E402
import judge  # noqa: E402
from cases import Case, Workload  # noqa: E402
from gpu_host import Host, NoCard  # noqa: E402
from host import Books, CaseFailed, Tenant  # noqa: E402
from host import numbers as host_numbers  # noqa: E402
from judge import Verdict  # noqa: E402

NO_CARD = 77
SIMULATED = any(os.environ.get(name) for name in ("GPU_SHARES_SIMULATED", "GPU_CHECK_SIMULATED"))
NEEDS = (
    "gpu-shares needs a machine with an NVIDIA card of compute capability 5.0 or newer that nobody else uses, and its "
    "driver (libcuda.so.1, libnvidia-ml.so.1); found: "
)
FAILED = Verdict([], [100.0], 0.0, [], [])
UNMEASURED = "convergence_ms_p95"  # no tenant arrives or departs here


@dataclass
class Measured:
    case: Case
    verdict: Verdict
    problem: str = ""


class Progress:
    """Prints what is done, with the time that the rest will take."""

    def __init__(self, runs: int, window: int) -> None:
        self.runs, self.done, self.began = runs, 0, time.monotonic()
        print(f"{runs} runs of {window / 1000:g} s and what it takes to start them", flush=True)

    def step(self, what: str) -> None:
        self.done += 1
        left = (time.monotonic() - self.began) / self.done * (self.runs - self.done)
        print(f"{self.done:3}/{self.runs}  {left:5.0f} s left  {what}", flush=True)


class Matrix:
    def __init__(self, host: Host, window: int, limited: bool, table: list[Case]) -> None:
        self.host, self.window, self.limited, self.table = host, window, limited, table
        self.alone: dict[str, Books] = {gpu_cases.IDLE.kind: Books([0, window], [[0, 0]], [[0, 0]])}

    def all(self) -> list[Measured]:
        loads = {w.kind: w for c in self.table for w in c.loads if w.kind not in self.alone}
        progress = Progress(len(loads) + len(self.table), self.window)
        for w in loads.values():
            progress.step(self._reference(w))
        done: list[Measured] = []
        for c in self.table:
            done.append(self._measure(c))
            progress.step(line(done[-1]))
        return done

    def _reference(self, w: Workload) -> str:
        try:
            books = self.host.run([Tenant(w.words, processes=w.processes)], self.window, limited=False)
        except CaseFailed as e:
            return f"{w.kind} by itself: {e}"
        if not (rate := judge.rate(w, books)):
            return f"{w.kind} by itself: no kernel was done"
        self.alone[w.kind] = books
        return f"{w.kind} by itself: {rate * 1000:.1f} kernels/s"

    def _measure(self, case: Case) -> Measured:
        missing = [w.kind for w in case.loads if w.kind not in self.alone]
        if missing:
            return Measured(case, FAILED, f"nothing to compare with: {missing}")
        try:
            books = self.host.run(list(case.tenants), self.window, limited=self.limited)
        except CaseFailed as e:
            return Measured(case, FAILED, str(e))
        return Measured(case, judge.judge(case, books, [self.alone[w.kind] for w in case.loads]))


# ---- output ----


def _list(values: list[str]) -> str:
    return " | ".join(values)


def _percent(values: list[float] | tuple[float, ...]) -> str:
    return _list([f"{v * 100:.2f}" for v in values])


def line(m: Measured) -> str:
    what = f"case {m.case.number} {m.case.group}: {_list([w.kind for w in m.case.loads])}"
    if m.problem:
        return f"{what}: {m.problem}"
    return f"{what}: due {_percent(m.case.targets)}, had {_percent(m.verdict.shares)}, error {m.verdict.error:.2f}"


def row(m: Measured, facts: dict[str, str]) -> dict[str, object]:
    """One line of the table. Lists have one entry per tenant."""
    c, v = m.case, m.verdict
    return {
        "case": c.number,
        "group": c.group,
        "kinds": _list([w.kind for w in c.loads]),
        "workloads": _list([w.words for w in c.loads]),
        "processes": _list([str(t.processes) for t in c.tenants]),
        "cores": _list([str(t.cores) for t in c.tenants]),
        "limits": _list([str(t.limit) for t in c.tenants]),
        "longest_piece_ms": c.piece,
        "due_percent": _percent(c.targets),
        "share_percent": _percent(v.shares),
        "error_points": f"{v.error:.3f}",
        "total_throughput": f"{v.throughput:.4f}",
        "problem": m.problem,
        **facts,
    }


def figures(done: list[Measured]) -> dict[str, float | int | None]:
    found: dict[str, float | int | None] = dict(judge.figures([(m.case, m.verdict) for m in done]))
    return found | {UNMEASURED: None}


def missed(done: list[Measured]) -> list[str]:
    """The figures that miss their bars. Those of groups that were not run are not judged."""
    groups = {m.case.group for m in done}
    found = judge.figures([(m.case, m.verdict) for m in done])
    lacking = {UNMEASURED}
    if not groups & {"alone 100", "idle neighbour"}:
        lacking.add("idle_harvest")
    if not any(g.startswith(("pair", "four")) for g in groups):
        lacking.add("min_total_throughput")
    return [m for m in judge.missed(found) if m.split(" ", 1)[0] not in lacking]


def keep(results: Path, host: Host, done: list[Measured], window: int) -> None:
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    facts = {"card": host.card["name"], "driver": host.card["driver"], "date": today, "window_ms": str(window)}
    parts = (facts["card"], facts["driver"], today)
    name = "-".join("".join(c if c.isalnum() or c == "." else "_" for c in part) for part in parts)
    results.mkdir(parents=True, exist_ok=True)
    path = results / f"gpu-shares-{name}.csv"
    with path.open("w", newline="") as f:
        out = csv.DictWriter(f, fieldnames=list(row(done[0], facts)))
        out.writeheader()
        out.writerows(row(m, facts) for m in done)
    path.with_suffix(".json").write_text(json.dumps(facts | {"figures": figures(done)}, indent=1) + "\n")
    print(f"written: {path.name} and .json")


def report(done: list[Measured]) -> int:
    print("worst:")
    for m in sorted(done, key=lambda m: -m.verdict.error)[:5]:
        print(f"  {line(m)}")
    problems, bars = [m for m in done if m.problem], missed(done)
    if bars:
        print("missed: " + "; ".join(bars))
    print(json.dumps(figures(done)))
    return 1 if bars or problems else 0


def options() -> argparse.Namespace:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--build", type=Path, required=True, help="where make put the programs")
    p.add_argument("--results", type=Path, help="where a table and figures of a real card are kept")
    p.add_argument("--window", type=float, default=1.5 if SIMULATED else 10.0, help="seconds of each run")
    p.add_argument("--only", type=host_numbers, default=[], help="comma-separated numbers of cases")
    p.add_argument("--driver-only", action="store_true", help="without the library; not kept")
    return p.parse_args()


def main() -> int:
    a = options()
    host = Host(a.build.resolve(), SIMULATED)
    gpu_host.end_on_signals(host)
    try:
        host.find_card()
        print(f"{host.card['name']}, driver {host.card['driver']}")
        table = gpu_cases.trial() if SIMULATED else gpu_cases.table()
        if a.only:
            table = [c for c in gpu_cases.table() if c.number in a.only]
            if len(table) < len(set(a.only)):
                known = [c.number for c in gpu_cases.table()]
                print(
                    f"gpu-shares: --only names a case that is not there; there are {min(known)} to {max(known)}",
                    file=sys.stderr,
                )
                return 2
        window = int(a.window * 1000)
        done = Matrix(host, window, not a.driver_only, table).all()
        if a.results and not SIMULATED and not a.driver_only and not a.only:
            keep(a.results, host, done, window)
        return report(done)
    except NoCard as why:
        print(f"{NEEDS}{why}.")
        return NO_CARD
    finally:
        host.close()


if __name__ == "__main__":
    sys.exit(main())
