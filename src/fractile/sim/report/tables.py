"""The CSV files of a report. Numbers have four decimals; figures that a run does not have are empty."""

import csv
import io
from collections.abc import Iterable, Mapping, Sequence

from fractile.sim.report.cost import Cost
from fractile.sim.runs import Run, RunOutcome
from fractile.wire.output.simulation import RunFigures, Simulation

Cell = str | int | float | None

MEASURED = "decisions_per_second"  # the only figure that does not follow from the seed


def figures(report: Simulation) -> str:
    """A line for each policy and seed."""
    names = [name for name in RunFigures.__struct_fields__ if name != MEASURED]
    return _text(
        ("policy", "seed", *names),
        (
            (policy.policy, one.seed, *(getattr(one.figures, name) for name in names))
            for policy in report.policies
            for one in policy.seeds
        ),
    )


def curves(found: Mapping[Run, RunOutcome], runs: Sequence[Run]) -> str:
    """A line for each policy, seed and percent of the cluster's GPUs that had arrived."""
    return _text(
        ("policy", "seed", "arrived", "allocated", "fragmented"),
        ((run.policy, run.seed, p.arrived, p.allocated, p.fragmented) for run in runs for p in found[run].curve),
    )


def paired(report: Simulation) -> str:
    """A line for each pair of policies."""
    return _text(
        ("policy", "than", "figure", "mean", "stdev", "better", "seeds"),
        ((p.policy, p.than, p.figure, p.mean, p.stdev, p.better, p.seeds) for p in report.paired),
    )


def costs(measured: Sequence[Cost]) -> str:
    """A line for each number of nodes; microseconds."""
    return _text(("policy", "nodes", "median", "p99"), ((c.policy, c.nodes, c.median, c.p99) for c in measured))


def _text(heading: Sequence[str], rows: Iterable[Sequence[Cell]]) -> str:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(heading)
    writer.writerows([_cell(cell) for cell in row] for row in rows)
    return out.getvalue()


def _cell(cell: Cell) -> str:
    if isinstance(cell, float):
        return f"{cell:.4f}"
    return "" if cell is None else str(cell)
