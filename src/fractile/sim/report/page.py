"""The page of a report: one self-contained HTML file without scripts."""

import base64
from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING

from fractile.wire.output.simulation import PolicyReport, RunFigures, Simulation

if TYPE_CHECKING:
    from fractile.sim.report.plots import Plot

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2em auto; max-width: 62em; padding: 0 1em; color: #222; }
h1 { font-size: 1.5em; } h2 { font-size: 1.15em; margin-top: 2em; }
table { border-collapse: collapse; font-size: 0.9em; display: block; overflow-x: auto; }
th, td { padding: 0.3em 0.8em; border-bottom: 1px solid #ddd; text-align: right; white-space: nowrap; }
th:first-child, td:first-child { text-align: left; }
img { max-width: 100%; height: auto; } p { max-width: 50em; }
"""
_NAMES = {
    "allocation_at_100": "allocated at 100 %",
    "allocation_at_130": "at 130 %",
    "allocation": "allocated",
    "acceptance": "accepted",
    "offered": "offered",
    "pooled": "held by one pool",
    "fragmented": "fragments",
    "failed_pods": "failed pods",
    "failed_gpus": "failed GPUs",
}


def page(report: Simulation, plots: "Sequence[Plot]") -> str:
    """The page with titles, tables and plots."""
    title = f"Simulation of {', '.join(p.policy for p in report.policies)}"
    parts = [
        "<!DOCTYPE html>",
        f'<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>',
        f"<style>{_STYLE}</style></head><body>",
        f"<h1>{escape(title)}</h1>",
        f"<p>{escape(_about(report))}</p>",
        _policies(report),
        *(_section(plot) for plot in plots),
        _pairs(report),
        "</body></html>",
    ]
    return "\n".join(part for part in parts if part) + "\n"


def _about(report: Simulation) -> str:
    cluster = f"{report.nodes:,} nodes with {report.gpus:,} GPUs"
    seeds = f"{'Published orders, seeds' if report.orders == 'published' else 'Seeds'} "
    seeds += ", ".join(str(s.seed) for s in report.policies[0].seeds)
    how = f"pods arrive one by one and stay, up to {report.tune or 0:g} times the GPUs."
    if report.mode == "steady":
        how = f"pods come and go, {report.load:g} times the GPUs are requested at any time."
    return f"{cluster}; {how}{_shown(report.sample)} {seeds}."


def _shown(sample: str | None) -> str:
    if sample is None:
        return ""
    share = "its adaptive share" if sample == "adaptive" else f"{sample} %"
    return f" Policies see as many nodes as kube-scheduler shows, {share}."


def _policies(report: Simulation) -> str:
    names = [n for n in _NAMES if any(getattr(p.mean, n) is not None for p in report.policies)]
    head = "".join(f"<th>{escape(h)}</th>" for h in ("policy", *(_NAMES[n] for n in names)))
    rows = "\n".join(f"<tr><td>{escape(p.policy)}</td>{''.join(_cells(p, names))}</tr>" for p in report.policies)
    return (
        f"<table><thead><tr>{head}</tr></thead><tbody>\n{rows}\n</tbody></table>\n"
        "<p>Percent of the cluster's GPUs; mean and standard deviation over seeds.</p>"
    )


def _cells(policy: PolicyReport, names: Sequence[str]) -> list[str]:
    return [f"<td>{_number(policy.mean, policy.stdev, name)}</td>" for name in names]


def _number(mean: RunFigures, deviation: RunFigures, name: str) -> str:
    value: float | None = getattr(mean, name)
    spread: float | None = getattr(deviation, name)
    digits = 0 if name.startswith("failed") else 2
    if value is None:
        return ""
    return f"{value:,.{digits}f}" + ("" if spread is None else f" ± {spread:,.{digits}f}")


def _section(plot: "Plot") -> str:
    image = base64.b64encode(plot.svg).decode()
    return (
        f"<h2>{escape(plot.title)}</h2>\n"
        f'<img alt="{escape(plot.title)}" src="data:image/svg+xml;base64,{image}">\n<p>{escape(plot.text)}</p>'
    )


def _pairs(report: Simulation) -> str:
    if not report.paired:
        return ""
    rows = "\n".join(
        f"<tr><td>{escape(p.policy)}</td><td>{escape(p.than)}</td><td>{p.mean:+.2f}"
        f"{'' if p.stdev is None else f' ± {p.stdev:.2f}'}</td><td>{p.better} of {p.seeds}</td></tr>"
        for p in report.paired
    )
    return (
        f"<h2>All differences, points of {escape(report.paired[0].figure.replace('_', ' '))}</h2>\n"
        "<table><thead><tr><th>policy</th><th>than</th><th>mean ± deviation</th><th>better in</th></tr></thead>"
        f"<tbody>\n{rows}\n</tbody></table>"
    )
