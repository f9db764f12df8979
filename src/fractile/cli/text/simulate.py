"""The table of ``fractile simulate``."""

from fractile.cli.text.table import Column, plain
from fractile.wire.output.simulation import Paired, PolicyReport, RunFigures, Simulation

_FILL = (
    ("ALLOCATED AT 100 %", "allocation_at_100"),
    ("AT 130 %", "allocation_at_130"),
    ("FRAGMENTS", "fragmented"),
    ("LACK GPU", "lack_gpu"),
    ("LACK CPU", "lack_cpu"),
    ("WRONG MODEL", "wrong_model"),
    ("REMAINDERS", "sharing_remainder"),
    ("NO GPU ASKED", "no_gpu_asked"),
)
_STEADY = (("ALLOCATED", "allocation"), ("ACCEPTED", "acceptance"), ("OFFERED", "offered"), ("ONE POOL", "pooled"))


def table(report: Simulation) -> str:
    """Means and deviations over seeds, in percent of the cluster's GPUs; then differences."""
    figures = _FILL if report.mode == "fill" else _STEADY
    numbers = [*(heading for heading, _ in figures), "FAILED PODS", "FAILED GPUS"]
    columns = [Column("POLICY"), Column("SEEDS", number=True), *(Column(h, number=True) for h in numbers)]
    rows = [_row(p, [name for _, name in figures]) for p in report.policies]
    text = plain(columns, rows)
    if report.paired:
        heads = (Column("POLICY"), Column("THAN"), Column("POINTS", number=True), Column("BETTER IN", number=True))
        text += "\n" + plain(heads, [_pair(p) for p in report.paired])
    return text + "\n" + _note(report)


def _row(policy: PolicyReport, names: list[str]) -> list[str]:
    cells = [_cell(policy.mean, policy.stdev, name, 2) for name in names]
    failed = [_cell(policy.mean, policy.stdev, name, 0) for name in ("failed_pods", "failed_gpus")]
    return [policy.policy, str(len(policy.seeds)), *cells, *failed]


def _cell(mean: RunFigures, stdev: RunFigures, name: str, digits: int) -> str:
    value: float | None = getattr(mean, name)
    deviation: float | None = getattr(stdev, name)
    if value is None:
        return ""
    return f"{value:.{digits}f}" + ("" if deviation is None else f"±{deviation:.{digits}f}")


def _pair(pair: Paired) -> list[str]:
    deviation = "" if pair.stdev is None else f"±{pair.stdev:.2f}"
    return [pair.policy, pair.than, f"{pair.mean:+.2f}{deviation}", f"{pair.better} of {pair.seeds}"]


def _note(report: Simulation) -> str:
    cluster = (
        f"{report.nodes} nodes, {report.gpus} GPUs. Figures are percent of all GPUs, mean and deviation over seeds."
    )
    floor = report.policies[0].mean.sharing_floor
    if floor is None:
        return cluster + "\n"
    return f"{cluster}\nSharing pods of these sizes leave {floor:.2f} % of full GPUs over, however they are combined.\n"
