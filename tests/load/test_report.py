import msgspec
import pytest

from tests.load import report
from tests.load.audit import CONTROL_PLANE_USER
from tests.load.figures import Round, Share, Times
from tests.load.scenarios import BY_NAME

ROWS = (BY_NAME["none"], BY_NAME["extender"])


def played(scenario: str, rate: float) -> Round:
    return Round(
        scenario=scenario,
        number=1,
        nodes=50,
        pods=100,
        rate=rate,
        created=300,
        seconds=2,
        load=0,
        programs={"etcd": Share(1.25, 60)},
        verbs={"bind": Times(100, 2.5, 9.75)},
        writes={CONTROL_PLANE_USER: {"create pods/binding": 1.0}},
        attempts={"scheduled": 100, "error": 3},
        algorithm=4.5,
    )


def test_the_tables_show_the_figures_and_the_bars(capsys: pytest.CaptureFixture[str]):
    result = report.show({50: [played("none", 100), played("extender", 90)]}, ROWS)
    shown = capsys.readouterr().out
    for words in ("1.25  60", "2.50 / 9.75", "0.900", "MISSED", "met", "4.50"):
        assert words in shown
    assert result.missed == ["50 nodes: extender, pods per second against none"]


def test_the_result_can_be_read_again():
    result = report.result_of({50: [played("none", 100)]}, ROWS)
    assert msgspec.json.decode(msgspec.json.encode(result), type=report.Result) == result


def test_a_run_that_was_stopped_shows_the_rows_that_it_has(capsys: pytest.CaptureFixture[str]):
    assert report.show({50: [played("extender", 90)]}, ROWS).missed == []
    assert "extender" in capsys.readouterr().out
