# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# matplotlib's own types leave keywords open.
"""The plots of a report, as SVG and PNG. Equal figures give equal bytes.

Colours are those of Okabe and Ito (2008), which colour-blind readers can tell apart; overlapping lines have different
dashes.
"""

import io
import re
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean, stdev

import matplotlib as mpl
import msgspec
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fractile.sim.report.cost import Cost
from fractile.sim.report.plot_style import COLOURS, STYLE
from fractile.sim.runs import Run, RunOutcome
from fractile.wire.output.simulation import RunFigures, Simulation

_DASHES = ("-", "--", ":")
_DPI = 130
_FROM, _TO = 70, 130  # percent arrived: below _FROM, every policy places everything
_SHOWN = 0.005  # percent: less rounds to zero
_CAUSES = (
    ("lack_gpu", "too few GPUs with room", "#D55E00"),
    ("lack_cpu", "too little CPU beside them", "#E69F00"),
    ("wrong_model", "another model needed", "#CC79A7"),
    ("sharing_remainder", "pieces too small", "#56B4E9"),
    ("no_gpu_asked", "pods without GPUs", "#c8c8c8"),
)


_LONG = re.compile(rb"([0-9]\.[0-9]{2})[0-9]+")  # a hundredth of a point is enough
_FIGURES = {"allocation_at_100": "allocation at 100 %", "allocation": "allocation"}


class Plot(msgspec.Struct, frozen=True):
    name: str
    title: str
    text: str  # the caption, one or two sentences
    svg: bytes
    png: bytes


def draw(report: Simulation, found: Mapping[Run, RunOutcome], measured: Sequence[Cost]) -> list[Plot]:
    """The plots for which there are figures."""
    with mpl.rc_context(STYLE):
        plots = [_allocation(report, found), _fragments(report), _steady(report), _paired(report), _cost(measured)]
    return [plot for plot in plots if plot is not None]


def _allocation(report: Simulation, found: Mapping[Run, RunOutcome]) -> Plot | None:
    if not any(outcome.curve for outcome in found.values()):
        return None
    figure = Figure(figsize=(9.0, 3.9))
    left, right = figure.subplots(1, 2)
    for number, policy in enumerate(report.policies):
        curves = [found[Run(policy.policy, seed.seed)].curve for seed in policy.seeds]
        allocated = [{p.arrived: p.allocated for p in curve} for curve in curves]
        fragmented = [{p.arrived: p.fragmented for p in curve} for curve in curves]
        _band(left, allocated, policy.policy, number, _from(report))
        _band(right, fragmented, policy.policy, number, 0)
    left.axvline(100, color="#888888", linewidth=0.8)
    right.axvline(100, color="#888888", linewidth=0.8)
    left.set(xlabel="GPUs asked for (% of the cluster)", ylabel="GPUs allocated (% of the cluster)")
    right.set(xlabel="GPUs asked for (% of the cluster)", ylabel="fragments (% of the cluster's GPUs)")
    left.legend(loc="lower right", fontsize=8)
    return _plot(
        figure,
        "allocation",
        "Allocation and fragments against what was asked for",
        f"Mean of {_seeds(report)}, the bands one standard deviation to each side. Left from {_from(report)} % on, "
        "since nearly every pod is placed before. Right: what the pods to be expected cannot use of what is left.",
    )


def _from(report: Simulation) -> int:
    return _FROM if (report.tune or 0) > 0.9 else 0


def _band(axes: Axes, curves: Sequence[Mapping[int, float]], label: str, number: int, least: int) -> None:
    percents = sorted({p for curve in curves for p in curve if least <= p <= _TO})
    points = [[curve[p] for curve in curves if p in curve] for p in percents]
    means = [fmean(values) for values in points]
    spread = [stdev(values) if len(values) > 1 else 0.0 for values in points]
    colour, dashes = _look(number)
    axes.plot(percents, means, label=label, color=colour, linestyle=dashes, linewidth=1.4)
    low = [m - s for m, s in zip(means, spread, strict=True)]
    high = [m + s for m, s in zip(means, spread, strict=True)]
    axes.fill_between(percents, low, high, color=colour, alpha=0.18, linewidth=0)


def _fragments(report: Simulation) -> Plot | None:
    policies = [p for p in report.policies if p.mean.fragmented is not None]
    if not policies:
        return None
    figure = Figure(figsize=(8.0, 1.5 + 0.36 * len(policies)))
    axes = figure.subplots()
    start = [0.0] * len(policies)
    for name, label, colour in _CAUSES:
        values = [_value(p.mean, name) for p in policies]
        if max(values) < _SHOWN:
            continue
        axes.barh(range(len(policies)), values, left=start, label=label, color=colour, height=0.66)
        start = [s + v for s, v in zip(start, values, strict=True)]
    for row, total in enumerate(start):
        axes.text(total, row, f" {total:.2f}", va="center", fontsize=8)
    floor = policies[0].mean.sharing_floor
    if floor is not None:
        axes.axvline(floor, color="black", linewidth=1, linestyle="--", label=f"floor of sharing pods: {floor:.2f}")
    axes.set_yticks(range(len(policies)), [p.policy for p in policies])
    axes.invert_yaxis()
    axes.margins(x=0.12)
    axes.grid(visible=False, axis="y")
    axes.set_xlabel("fragments when 100 % had been asked for (% of the cluster's GPUs)")
    figure.legend(loc="outside upper center", ncols=3, fontsize=8)
    return _plot(
        figure,
        "fragments",
        "Fragments by cause",
        f"GPUs that the pods to be expected cannot use, mean of {_seeds(report)}. The floor is what pods that share "
        "leave over on full GPUs however they are combined, by the cutting-stock linear program.",
    )


def _steady(report: Simulation) -> Plot | None:
    policies = [p for p in report.policies if p.mean.allocation is not None]
    if not policies:
        return None
    figure = Figure(figsize=(8.0, 1.2 + 0.36 * len(policies)))
    axes = figure.subplots()
    for row, policy in enumerate(policies):
        colour, _ = _look(row)
        values = [_value(s.figures, "allocation") for s in policy.seeds]
        axes.plot(values, [row] * len(values), "o", color=colour, alpha=0.35, markersize=4)
        axes.errorbar(
            _value(policy.mean, "allocation"), row, xerr=policy.stdev.allocation or 0.0,
            fmt="s", color=colour, capsize=3, markersize=5,
        )  # fmt: skip
    axes.set_yticks(range(len(policies)), [p.policy for p in policies])
    axes.set_ylim(len(policies) - 0.4, -0.6)
    axes.set_xlabel(f"GPUs allocated, mean over time (% of the cluster), load {report.load:g}")
    return _plot(
        figure,
        "steady",
        "Allocation while pods come and go",
        f"Squares: mean of {_seeds(report)}, with one standard deviation; dots: single seeds.",
    )


def _paired(report: Simulation) -> Plot | None:
    first = report.policies[0]
    pairs = [p for p in report.paired if p.than == first.policy]
    if not pairs:
        return None
    figure = Figure(figsize=(8.0, 1.0 + 0.36 * len(pairs)))
    axes = figure.subplots()
    others = {p.policy: p for p in report.policies}
    for row, pair in enumerate(pairs):
        colour, _ = _look(row + 1)
        each = [
            _value(mine.figures, pair.figure) - _value(base.figures, pair.figure)
            for mine, base in zip(others[pair.policy].seeds, first.seeds, strict=True)
        ]
        axes.plot(each, [row] * len(each), "o", color=colour, alpha=0.35, markersize=4)
        error = 2 * (pair.stdev or 0.0) / pair.seeds**0.5
        axes.errorbar(pair.mean, row, xerr=error, fmt="s", color=colour, capsize=3, markersize=5)
        axes.annotate(
            f"{pair.mean:+.2f}", (pair.mean, row), (0, 6), textcoords="offset points", ha="center", fontsize=8
        )
    axes.axvline(0, color="#888888", linewidth=0.8)
    axes.set_yticks(range(len(pairs)), [p.policy for p in pairs])
    axes.set_ylim(len(pairs) - 0.4, -0.7)
    axes.set_xlabel(f"{_FIGURES[pairs[0].figure]}, less that of {first.policy} with the same seed (points)")
    return _plot(
        figure,
        "paired",
        f"Difference to {first.policy}, seed by seed",
        f"Squares: mean of {_seeds(report)}, with two standard errors; dots: single seeds. Policies of one seed meet "
        "the same pods in the same order.",
    )


def _cost(measured: Sequence[Cost]) -> Plot | None:
    if not measured:
        return None
    figure = Figure(figsize=(8.0, 3.9))
    axes = figure.subplots()
    policies = list(dict.fromkeys(c.policy for c in measured))
    for number, policy in enumerate(policies):
        colour, dashes = _look(number)
        mine = [c for c in measured if c.policy == policy]
        nodes = [c.nodes for c in mine]
        axes.plot(
            nodes,
            [c.median for c in mine],
            "o",
            linestyle=dashes,
            color=colour,
            markersize=4,
            label=f"{policy}: median",
        )
        if len(policies) == 1:
            axes.plot(nodes, [c.p99 for c in mine], "^", linestyle="--", color=colour, markersize=4, label="p99")
    first = [c for c in measured if c.policy == policies[0]]
    line = [first[0].median * c.nodes / first[0].nodes for c in first]
    axes.plot([c.nodes for c in first], line, ":", color="#888888", linewidth=1, label="as the number of nodes")
    axes.set(xscale="log", yscale="log", xlabel="nodes", ylabel="processor time of a decision (µs)")
    axes.legend(loc="upper left", fontsize=8)
    return _plot(
        figure,
        "cost",
        "What a decision costs",
        "Processor time on this machine, half-used clusters of hardly two equal nodes; both axes are logarithmic. The "
        "dotted line grows as the number of nodes does.",
    )


def _plot(figure: Figure, name: str, title: str, text: str) -> Plot:
    save: Callable[..., None] = figure.savefig  # its stubs are loose
    svg, png = io.BytesIO(), io.BytesIO()
    save(svg, format="svg", metadata={"Date": None, "Creator": None})
    save(png, format="png", dpi=_DPI, metadata={"Software": None})
    return Plot(name, title, text, _LONG.sub(rb"\1", svg.getvalue()), png.getvalue())


def _look(number: int) -> tuple[str, str]:
    return COLOURS[number % len(COLOURS)], _DASHES[number % len(_DASHES)]


def _value(figures: RunFigures, name: str) -> float:
    value: float | None = getattr(figures, name)
    return 0.0 if value is None else value


def _seeds(report: Simulation) -> str:
    count = len(report.policies[0].seeds)
    return f"{count} seeds" if count > 1 else "one seed"
