"""``fractile simulate`` as a person runs it."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from fractile.cli.simulate import command
from fractile.errors import SetupError, WireError
from fractile.policy.nodes.policies.table import POLICIES
from fractile.wire.output.simulation import decode
from tests.sim.traces import NODE_HEAD, POD_HEAD, write


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    nodes = [f"n{i},64000,262144,{g},T4" for i, g in enumerate((8, 4, 4, 2))]
    pods = [f"p{i},4000,8192,1,{m}," for i, m in enumerate([1000] * 8 + [810] * 3 + [470] * 2)]
    found = write(tmp_path / "n.csv", NODE_HEAD, nodes), write(tmp_path / "p.csv", POD_HEAD, pods)
    return ["--nodes", str(found[0]), "--pods", str(found[1]), "--jobs", "1"]


def run(*args: str) -> Result:
    return CliRunner().invoke(command, args)


def test_the_table_has_a_line_for_each_policy_and_pair(files: list[str]) -> None:
    result = run(*files, "--policy", "fgd-plus,bestfit+2*gpu-packing", "--seeds", "1..3")
    lines = [line.split() for line in result.stdout.splitlines()]

    assert result.exit_code == 0, result.exception
    assert [line[:2] for line in lines[1:3]] == [["fgd-plus", "3"], ["bestfit+2*gpu-packing", "3"]]
    assert lines[5][:2] == ["bestfit+2*gpu-packing", "fgd-plus"]
    assert "4 nodes, 18 GPUs" in result.stdout


def test_the_json_has_its_schema_first_and_a_run_for_each_seed(files: list[str]) -> None:
    result = run(*files, "--policy", ",".join(POLICIES), "--seeds", "7..8", "-o", "json")
    body = json.loads(result.stdout)
    report = decode(result.stdout)

    assert next(iter(body.items())) == ("schema", "fractile.dev/simulation/v1")
    assert [p.policy for p in report.policies] == list(POLICIES)
    assert [s.seed for s in report.policies[0].seeds] == [7, 8]
    assert len(report.paired) == len(POLICIES) * (len(POLICIES) - 1) // 2
    assert 50 < (report.policies[0].mean.allocation_at_100 or 0) <= 100


def test_the_steady_state_shows_allocation_and_acceptance(files: list[str]) -> None:
    report = decode(run(*files, "--mode", "steady", "--load", "0.5", "--seeds", "1", "-o", "json").stdout)
    figures = report.policies[0].mean

    assert (report.mode, report.load, report.tune) == ("steady", 0.5, None)
    assert figures.allocation_at_100 is None
    assert 20 < (figures.allocation or 0) < 80 < (figures.acceptance or 0)


def test_published_orders_are_others_and_say_it_all_too(files: list[str]) -> None:
    def figures(*args: str) -> list[tuple[float | None, float | None]]:
        report = decode(run(*files, "--policy", "random", "--seeds", "42..45", "-o", "json", *args).stdout)
        return [(s.figures.allocation_at_100, s.figures.failed_pods) for s in report.policies[0].seeds]

    assert figures("--orders", "published") == figures("--orders", "published") != figures()
    assert figures("--orders", "own") == figures()


@pytest.mark.parametrize(
    ("args", "said"),
    [
        pytest.param([], ("own", None), id="neither"),
        pytest.param(["--orders", "published", "--sample", "50"], ("published", "50"), id="both"),
        pytest.param(["--sample", "adaptive"], ("own", "adaptive"), id="adaptive"),
        pytest.param(["--mode", "steady"], (None, None), id="steady"),
    ],
)
def test_the_json_names_orders_and_sample(files: list[str], args: list[str], said: tuple[str | None, ...]) -> None:
    report = decode(run(*files, "--seeds", "1", "-o", "json", *args).stdout)

    assert (report.orders, report.sample) == said


@pytest.mark.parametrize(
    ("args", "said"),
    [
        pytest.param(["--policy", "bestfit,best"], "'best' is not one of fgd-plus, fgd-paper", id="policy"),
        pytest.param(["--policy", "bestfit+random"], "'bestfit+random' is not one of", id="no sum"),
        pytest.param(["--policy", ","], "',' is not one of", id="no policy"),
        pytest.param(["--seeds", "5..1"], "'5..1' is not a range", id="backwards"),
        pytest.param(["--seeds", "1-5"], "'1-5' is neither a number nor a range like 42..51", id="form"),
        pytest.param(["--seeds", "1..999999999"], "is not a range of 1 to 10000 seeds", id="far too many"),
        pytest.param(["--tune", "-1"], "-1", id="tune"),
        pytest.param(["--orders", "published", "--mode", "steady"], "goes with --mode fill", id="orders"),
    ],
)
def test_a_wrong_command_line_is_told_in_words(files: list[str], args: list[str], said: str) -> None:
    result = run(*files, *args)

    assert result.exit_code == 2
    assert said in result.stderr


def test_bad_input_is_one_sentence_and_no_report(files: list[str], tmp_path: Path) -> None:
    write(tmp_path / "p.csv", POD_HEAD, ["p,1,1,9,1000,"])
    result = run(*files)

    assert isinstance(result.exception, WireError)
    assert "p.csv line 2 column num_gpu" in str(result.exception)
    assert result.stdout == ""


def test_a_cluster_or_pods_without_gpus_are_not_compared(files: list[str], tmp_path: Path) -> None:
    write(tmp_path / "p.csv", POD_HEAD, ["p,1,1,0,0,"])
    assert isinstance(run(*files).exception, SetupError)

    write(tmp_path / "n.csv", NODE_HEAD, ["n,1000,64,0,"])
    assert "no node with GPUs" in str(run(*files).exception)


def test_a_file_that_is_not_there_is_named(files: list[str], tmp_path: Path) -> None:
    (tmp_path / "n.csv").unlink()
    assert str(run(*files).exception) == f"{tmp_path / 'n.csv'} cannot be read: No such file or directory"

    (tmp_path / "n.csv").mkdir()
    result = run(*files)
    assert isinstance(result.exception, SetupError)
    assert "Is a directory" in str(result.exception)


def test_a_report_is_written_beside_what_is_printed(files: list[str], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    plain = run(*files, "--policy", "fgd-plus,bestfit", "--seeds", "1..2")
    result = run(*files, "--policy", "fgd-plus,bestfit", "--seeds", "1..2", "--report", str(tmp_path / "out"))

    assert result.exit_code == 0, result.exception
    assert result.stdout == plain.stdout
    assert {p.suffix for p in (tmp_path / "out").iterdir()} == {".csv", ".json", ".html", ".svg", ".png"}


def test_a_folder_that_is_there_is_told_before_anything_is_read(tmp_path: Path) -> None:
    (tmp_path / "out" / "mine").mkdir(parents=True)
    result = run("--nodes", "no.csv", "--pods", "no.csv", "--report", str(tmp_path / "out"))

    assert isinstance(result.exception, SetupError)
    assert "exists already" in str(result.exception)
