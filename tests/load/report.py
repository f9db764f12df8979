"""The tables of a run, and its result as JSON."""

from collections.abc import Iterable, Mapping

import msgspec
from rich.console import Console
from rich.table import Table

from tests.load.audit import CONTROL_PLANE_USER
from tests.load.figures import Round, Verdict, best, mean_rate, verdicts
from tests.load.programs import NAMES
from tests.load.scenarios import Scenario
from tests.perf.measuring.report import machine


class Result(msgspec.Struct, frozen=True):
    """``missed``: the bars that were not met."""

    version: int
    machine: dict[str, str]
    rounds: list[Round]
    verdicts: list[Verdict]
    missed: list[str]


def result_of(rounds: Mapping[int, list[Round]], table: tuple[Scenario, ...]) -> Result:
    """``rounds``: by the number of nodes."""
    found = [v for some in rounds.values() for v in verdicts(some, table, CONTROL_PLANE_USER)]
    everything = [r for some in rounds.values() for r in some]
    return Result(1, machine(), everything, found, [v.what for v in found if not v.met])


def show(rounds: Mapping[int, list[Round]], table: tuple[Scenario, ...]) -> Result:
    """Print it."""
    result = result_of(rounds, table)
    console = Console(width=190)
    console.print("\n" + "  ".join(f"{key}={value}" for key, value in result.machine.items()), highlight=False)
    for nodes, some in rounds.items():
        console.print(f"\n{nodes:,} nodes, {some[0].pods:,} pods a round", highlight=False)
        console.print(_rates(some, table))
        console.print(_details(some, table))
    console.print()
    console.print(_bars(result.verdicts))
    return result


def _rates(some: list[Round], table: Iterable[Scenario]) -> Table:
    made = _table("row", "", "pods/s by round", "best", "mean", "against", "best to best", "mean to mean", "bar")
    for row in table:
        mine, other = best(some, row.name), best(some, row.against)
        if mine is None:
            continue
        rates = "  ".join(f"{r.rate:.1f}" for r in some if r.scenario == row.name)
        ratio, means = "", ""
        if other is not None:
            ratio = f"{mine.rate / other.rate:.3f}"
            means = f"{mean_rate(some, row.name) / mean_rate(some, row.against):.3f}"
        bar = "" if row.bar is None else f">= {row.bar:g}"
        mean = f"{mean_rate(some, row.name):.1f}"
        made.add_row(row.name, row.about, rates, f"{mine.rate:.1f}", mean, row.against, ratio, means, bar)
    return made


def _details(some: list[Round], table: Iterable[Scenario]) -> Table:
    """Of the best round of each row."""
    programs = [*NAMES, "load"]
    made = _table(
        "best round of",
        *(f"{p} ms/pod, MB" for p in programs),
        "choice ms",
        "verbs: p50 / p99 ms",
        "writes/pod",
        "retries",
        "nominations",
    )
    for row in table:
        one = best(some, row.name)
        if one is None:
            continue
        cells = [f"{s.ms:.2f}  {s.megabytes:.0f}" if (s := one.programs.get(p)) else "" for p in programs]
        verbs = ", ".join(f"{verb} {t.p50:.2f} / {t.p99:.2f}" for verb, t in one.verbs.items())
        writes = "\n".join(f"{who.rpartition(':')[2]} {sum(what.values()):.3f}" for who, what in one.writes.items())
        retries = sum(n for outcome, n in one.attempts.items() if outcome != "scheduled")
        became = "\n".join(f"{how} {part:.2f}" for how, part in one.nominations.items())
        became += f"\none look {one.alone:.2f}" if became else ""
        made.add_row(row.name, *cells, f"{one.algorithm:.2f}", verbs, writes, str(retries), became)
    return made


def _bars(found: Iterable[Verdict]) -> Table:
    made = _table("bar", "value", "", "")
    for one in found:
        sign = "<=" if one.most else ">="
        made.add_row(one.what, f"{one.value:.3f}", f"{sign} {one.bar:g}", "met" if one.met else "MISSED")
    return made


def _table(*headings: str) -> Table:
    made = Table(show_edge=False, pad_edge=False)
    for heading in headings:
        made.add_column(heading)
    return made
