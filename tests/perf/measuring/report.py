"""The table that ``make bench`` prints, and its machine-readable last line."""

import os
import platform
from pathlib import Path

import msgspec
from rich.console import Console
from rich.table import Table


class Row(msgspec.Struct, frozen=True, omit_defaults=True):
    """One figure. ``bar`` is the most it may be; None: it is shown without a verdict."""

    what: str
    value: float
    unit: str
    bar: float | None = None
    note: str = ""

    @property
    def verdict(self) -> str:
        if self.bar is None:
            return ""
        return "PASS" if self.value <= self.bar else "FAIL"


class Result(msgspec.Struct, frozen=True):
    """All figures of a run, with what they were measured on."""

    machine: dict[str, str]
    rows: list[Row]
    failed: list[str]


# docs/results/peers.md says on what they were measured.
PEERS = (
    ("HAMi scheduler 4707fb0", "filter p50 543 ms, first call 69.6 s, RSS 1,374 MB; answers one node"),
    ("gpushare extender c0b6141", "filter p50 249 ms, p99 337 ms, RSS 843 MB; answers all 5,000 names"),
)


def machine() -> dict[str, str]:
    model = next((v for k, v in _fields(Path("/proc/cpuinfo")) if k == "model name"), platform.processor())
    memory = next((v for k, v in _fields(Path("/proc/meminfo")) if k == "MemTotal"), "")
    return {
        "cores": str(len(os.sched_getaffinity(0))),
        "cpu": model,
        "memory": memory,
        "kernel": platform.release(),
        "python": platform.python_version(),
        "load": f"{os.getloadavg()[0]:.2f}",
    }


def show(rows: list[Row]) -> None:
    """Print the table, the peers' figures, and one line of JSON."""
    console = Console(width=150)
    about = machine()
    console.print("\n" + "  ".join(f"{key}={value}" for key, value in about.items()), highlight=False)
    table = Table(show_edge=False, pad_edge=False)
    for heading in ("figure", "value", "unit", "bar", "", "note"):
        table.add_column(heading, justify="right" if heading in ("value", "bar") else "left")
    for row in rows:
        table.add_row(row.what, _number(row.value), row.unit, _bar(row.bar), row.verdict, row.note)
    console.print(table)
    console.print("\nThe peers, recorded earlier on 2 cores with the same cluster:", highlight=False)
    for name, figures in PEERS:
        console.print(f"  {name}: {figures}", highlight=False)
    result = Result(about, rows, [row.what for row in rows if row.verdict == "FAIL"])
    print(msgspec.json.encode(result).decode())


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:.2f}"


def _bar(bar: float | None) -> str:
    return "" if bar is None else f"<= {bar:g}"


def _fields(file: Path) -> list[tuple[str, str]]:
    return [(k.strip(), v.strip()) for k, _, v in (line.partition(":") for line in file.read_text().splitlines())]
