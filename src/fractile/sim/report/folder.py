"""``--report DIR``: write tables, plots and a page about an experiment.

All or nothing: everything is made first, then written into a folder next to DIR, which is renamed. If DIR exists, it is
complete. Except for the cost of decisions (``cost.*`` and its part of the page), equal seeds give equal bytes.
"""

import importlib.util
import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from fractile.errors import SetupError
from fractile.sim.report import page, tables
from fractile.sim.report.cost import Cost
from fractile.sim.runs import Run, RunOutcome
from fractile.sim.summary import without_times
from fractile.wire.output import simulation
from fractile.wire.output.simulation import Simulation

_MODE = 0o755


def check(directory: Path) -> None:
    """Check, before hours are spent, that the report can be written; SetupError if not."""
    if importlib.util.find_spec("matplotlib") is None:
        raise SetupError(
            "--report draws plots with matplotlib, which is not installed: install the wheel's extra report (README.md)"
        )
    if directory.is_symlink() or (directory.exists() and not _empty(directory)):
        raise SetupError(f"{directory} exists already; --report needs a new folder, so that nothing is overwritten")
    if not os.access(directory.absolute().parent, os.W_OK):
        raise SetupError(f"{directory.absolute().parent} is not a writable folder, which --report needs")


def write(
    directory: Path,
    report: Simulation,
    found: Mapping[Run, RunOutcome],
    runs: Sequence[Run],
    measured: Sequence[Cost],
) -> None:
    """Write the folder. SetupError if that fails; then nothing is left of it."""
    files = _files(report, found, runs, measured)
    directory = directory.absolute()
    try:
        beside = Path(tempfile.mkdtemp(prefix=f".{directory.name}.", dir=directory.parent))
        try:
            for name, content in files.items():
                (beside / name).write_bytes(content)
            beside.chmod(_MODE)
            beside.rename(directory)
        except BaseException:
            shutil.rmtree(beside, ignore_errors=True)
            raise
    except OSError as e:
        raise SetupError(f"{directory} cannot be written: {e.strerror}") from None


def _empty(directory: Path) -> bool:
    return directory.is_dir() and not any(directory.iterdir())


def _files(
    report: Simulation, found: Mapping[Run, RunOutcome], runs: Sequence[Run], measured: Sequence[Cost]
) -> dict[str, bytes]:
    from fractile.sim.report import plots as report_plots

    plots = report_plots.draw(report, found, measured)
    texts = {
        "simulation.json": simulation.encode(without_times(report)) + "\n",
        "figures.csv": tables.figures(report),
        "paired.csv": tables.paired(report),
        "cost.csv": tables.costs(measured),
        "index.html": page.page(report, plots),
    }
    if any(found[run].curve for run in runs):
        texts["curves.csv"] = tables.curves(found, runs)
    files = {name: text.encode() for name, text in texts.items()}
    for plot in plots:
        files[f"{plot.name}.svg"] = plot.svg
        files[f"{plot.name}.png"] = plot.png
    return files
