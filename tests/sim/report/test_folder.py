"""The folder of ``--report``: complete or not there, the same for the same seeds, and its numbers those of the runs."""

import csv
import importlib.util
import io
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from fractile.errors import SetupError
from fractile.sim.processes import outcomes
from fractile.sim.report import cost
from fractile.sim.report import folder as folders
from fractile.sim.report import tables as report_tables
from fractile.sim.report.cost import Cost, cost_of, sizes
from fractile.sim.runs import Experiment, Run, RunOutcome
from fractile.sim.summary import summary
from fractile.wire.output import simulation
from fractile.wire.output.simulation import Simulation
from tests.sim.traces import mixed, nodes

if importlib.util.find_spec("matplotlib") is None:
    pytest.skip("matplotlib is not installed (pip install fractile[report])", allow_module_level=True)

EXPERIMENT = Experiment(nodes(8, 8, 8, 4, 4, 2, 2), mixed())
NAMES = ("fgd-plus", "bestfit", "most-allocated<&>")
SEEDS = (1, 2)
COSTS = [Cost("fgd-plus", 10, 5.0, 9.0), Cost("fgd-plus", 100, 7.0, 12.0)]
FILES = {"allocation", "fragments", "paired", "cost"}


@pytest.fixture(scope="module")
def runs() -> list[Run]:
    return [Run(name, seed) for name in NAMES for seed in SEEDS]


@pytest.fixture(scope="module")
def found(runs: list[Run]) -> dict[Run, RunOutcome]:
    """The third policy is the second under a name that HTML must not swallow."""
    plain = outcomes(EXPERIMENT, [run for run in runs if "<" not in run.policy], jobs=1)
    return {run: plain.get(run) or plain[Run("bestfit", run.seed)] for run in runs}


@pytest.fixture(scope="module")
def report(found: dict[Run, RunOutcome]) -> Simulation:
    return summary(EXPERIMENT, NAMES, SEEDS, {run: outcome.figures for run, outcome in found.items()})


@pytest.fixture
def write(report: Simulation, found: dict[Run, RunOutcome], runs: list[Run]) -> Callable[[Path], None]:
    return lambda directory: folders.write(directory, report, found, runs, COSTS)


def lines(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def test_the_folder_holds_tables_plots_of_both_kinds_and_a_page(tmp_path: Path, write: Callable[[Path], None]) -> None:
    write(tmp_path / "out")
    there = {p.name for p in (tmp_path / "out").iterdir()}

    tables = {"figures.csv", "curves.csv", "paired.csv", "cost.csv", "simulation.json", "index.html"}
    assert there == tables | {f"{n}.svg" for n in FILES} | {f"{n}.png" for n in FILES}
    assert [p.name for p in tmp_path.iterdir()] == ["out"]
    for name in FILES:
        assert ET.fromstring((tmp_path / "out" / f"{name}.svg").read_text()).tag.endswith("svg")
        assert (tmp_path / "out" / f"{name}.png").read_bytes().startswith(b"\x89PNG\r\n\x1a\n")


def test_the_page_needs_no_other_file_and_shows_names_as_they_are(
    tmp_path: Path, write: Callable[[Path], None]
) -> None:
    write(tmp_path / "out")
    page = (tmp_path / "out" / "index.html").read_text()

    assert page.count("data:image/svg+xml;base64,") == len(FILES)
    assert not any(word in page for word in ("http:", "https:", "<script", 'src="/'))
    assert "most-allocated&lt;&amp;&gt;" in page
    assert "<&>" not in page


def test_equal_runs_give_equal_bytes(tmp_path: Path, write: Callable[[Path], None]) -> None:
    write(tmp_path / "a")
    write(tmp_path / "b")

    for file in (tmp_path / "a").iterdir():
        assert file.read_bytes() == (tmp_path / "b" / file.name).read_bytes(), file.name


def test_the_tables_hold_every_run_and_point(report: Simulation, found: dict[Run, RunOutcome], runs: list[Run]) -> None:
    figures, curves = lines(report_tables.figures(report)), lines(report_tables.curves(found, runs))
    first = found[runs[0]]

    assert [(f["policy"], f["seed"]) for f in figures] == [(run.policy, str(run.seed)) for run in runs]
    assert figures[0]["allocation_at_100"] == f"{first.figures.allocation_at_100:.4f}"
    assert "decisions_per_second" not in figures[0]  # a measurement
    assert len(curves) == sum(len(found[run].curve) for run in runs)
    at_100 = next(line for line in curves if line["arrived"] == "100")
    assert at_100["allocated"] == figures[0]["allocation_at_100"]
    assert len(lines(report_tables.paired(report))) == 3


def test_the_json_in_the_folder_is_that_of_the_command_without_speeds(
    tmp_path: Path, report: Simulation, write: Callable[[Path], None]
) -> None:
    write(tmp_path / "out")
    read = simulation.decode((tmp_path / "out" / "simulation.json").read_bytes())

    assert read.policies[0].mean.allocation_at_100 == pytest.approx(report.policies[0].mean.allocation_at_100, abs=1e-4)
    assert {p.mean.decisions_per_second for p in read.policies} == {None}


def test_a_report_that_cannot_be_written_leaves_nothing(tmp_path: Path, write: Callable[[Path], None]) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").touch()
    with pytest.raises(SetupError, match="cannot be written"):
        write(tmp_path / "out")

    assert [p.name for p in tmp_path.rglob("*")] == ["out", "mine"]


def test_what_is_in_the_way_is_told_before_anything_runs(tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine").touch()
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()

    folders.check(tmp_path / "new")
    folders.check(tmp_path / "empty")
    for name in ("full", "link", "full/mine"):
        with pytest.raises(SetupError, match="exists already"):
            folders.check(tmp_path / name)
    with pytest.raises(SetupError, match="not a writable folder"):
        folders.check(tmp_path / "no" / "out")


def test_without_matplotlib_it_is_said_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        assert name == "matplotlib"

    monkeypatch.setattr(folders.importlib.util, "find_spec", missing)
    with pytest.raises(SetupError, match=r"the wheel's extra report"):
        folders.check(tmp_path / "out")


def test_a_steady_state_has_its_own_plot_and_no_curves(tmp_path: Path) -> None:
    experiment = msgspec.structs.replace(EXPERIMENT, mode="steady", load=0.5)
    some = [Run(name, 1) for name in NAMES[:2]]
    found = outcomes(experiment, some, jobs=1)
    report = summary(experiment, NAMES[:2], (1,), {run: o.figures for run, o in found.items()})
    folders.write(tmp_path / "out", report, found, some, [])

    assert {p.stem for p in (tmp_path / "out").glob("*.svg")} == {"steady", "paired"}
    assert not (tmp_path / "out" / "curves.csv").exists()


def test_a_cost_is_measured_for_each_size_of_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    """Time stands still but for a second at each look: every decision takes one second, and nothing else is timed."""
    monkeypatch.setattr(cost, "WARM", 5)
    monkeypatch.setattr(cost, "COUNTED", 10)
    now = iter(range(10**6))
    measured = cost_of(EXPERIMENT, ["fgd-plus"], clock=lambda: next(now))

    assert [c.nodes for c in measured] == sizes(7) == [1, 2, 4, 7, 14, 28, 56]
    assert {(c.policy, c.median, c.p99) for c in measured} == {("fgd-plus", 1e6, 1e6)}
    assert sizes(5_000)[-1] == 10_000
    assert sizes(40_000)[-1] == 40_000
