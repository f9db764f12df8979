"""Allocations as plain text: a line per node and resource, then the sums."""

from collections.abc import Callable
from fractions import Fraction

from fractile.cli.text.amounts import short
from fractile.cli.text.table import Column, plain
from fractile.model.words import printable
from fractile.policy.allocations import Allocations, ResourceLine

_AMOUNTS = (
    Column("REQUESTED", number=True),
    Column("LIMIT", number=True),
    Column("ALLOCATABLE", number=True),
    Column("FREE", number=True),
    Column("UTILIZATION", number=True),
)
_LINES = (Column("NODE"), Column("RESOURCE"), *_AMOUNTS)
_TOTALS = (Column("TOTAL"), Column("NODES", number=True), *_AMOUNTS)
_NONE = Fraction(-1)  # sorts nodes with nothing to request below all others
_SAME = Fraction(0)
_NOTE = (
    "note: Fractile's resources share the same cards, so an amount that is FREE of one resource may be held through "
    "another; fractile inspect shows what is free on the cards\n"
)

Row = tuple[str, ResourceLine]

# Sort keys: names in ascending order, amounts from the largest. Ties by node and resource.
_KEYS: dict[str, Callable[[Row], tuple[Fraction, str]]] = {
    "node": lambda row: (_SAME, ""),
    "resource": lambda row: (_SAME, row[1].resource),
    "requested": lambda row: (-row[1].requested, ""),
    "free": lambda row: (-row[1].free, ""),
    "utilization": lambda row: (-(_NONE if row[1].used is None else row[1].used), ""),
}


def table(found: Allocations, sort: str = "node") -> str:
    """Both tables and what could not be counted; a sentence when there is nothing to show."""
    rows = [(node.node, line) for node in found.nodes for line in node.lines]
    if not rows:
        return "no node has such a resource\n" + _problems(found)
    key = _KEYS[sort]
    ordered = sorted(rows, key=lambda row: (key(row), row[0], row[1].resource))
    lines = plain(_LINES, [(node, line.resource, *_cells(line)) for node, line in ordered])
    totals = plain(_TOTALS, [(line.resource, str(line.nodes), *_cells(line)) for line in found.totals])
    return f"{lines}\n{totals}{_NOTE if found.shares_cards else ''}{_problems(found)}"


def _cells(line: ResourceLine) -> tuple[str, ...]:
    amounts = (line.requested, line.limit, line.allocatable, line.free)
    used = "" if line.used is None else f"{float(round(line.used * 100, 1)):.1f}%"
    return *(short(line.resource, amount) for amount in amounts), used


def _problems(found: Allocations) -> str:
    return "".join(f"problem: {printable(problem)}\n" for problem in found.problems)
