import os
import subprocess
from pathlib import Path

import pytest

from fractile.errors import SetupError
from tests.load.programs import FLOOR, build, configured, find_go, of_process
from tests.load.scenarios import BY_NAME, Scenario

WRITTEN = {
    "clientConnection": {"kubeconfig": "/k"},
    "profiles": [{"schedulerName": "default-scheduler"}],
    "extenders": [{"urlPrefix": "https://x"}],
}


def test_rows_without_an_extender_have_none_and_all_else_alike():
    with_one, without = (configured(WRITTEN, BY_NAME[name]) for name in ("extender-100", "none-100"))
    assert with_one.pop("extenders") == WRITTEN["extenders"]
    assert without.pop("extenders") == []
    assert with_one == without
    assert with_one["percentageOfNodesToScore"] == 100
    assert with_one["clientConnection"]["kubeconfig"] == "/k"
    assert with_one["clientConnection"]["qps"] > 1000


def test_a_row_may_change_the_profiles():
    row = Scenario(name="x", about="", percentage=0, extender=True, profile={"plugins": {"a": 1}})
    assert configured(WRITTEN, row)["profiles"] == [{"schedulerName": "default-scheduler", "plugins": {"a": 1}}]


@pytest.mark.parametrize(("name", "verbs"), [("floor", {"bindVerb", "urlPrefix"}), ("floor-no-bind", {"urlPrefix"})])
def test_the_extender_that_decides_nothing_is_asked_what_it_knows(name: str, verbs: set[str]) -> None:
    whole = {**WRITTEN, "extenders": [{"urlPrefix": "https://x", "bindVerb": "bind", "preemptVerb": "preempt"}]}
    assert set(configured(whole, BY_NAME[name])["extenders"][0]) == verbs


@pytest.mark.skipif(find_go() is None, reason="Go is not installed")
def test_the_extender_that_decides_nothing_is_built_and_a_program_that_is_none_is_a_sentence(tmp_path: Path) -> None:
    build(FLOOR, tmp_path / "floor")
    said = subprocess.run([tmp_path / "floor", "--help"], capture_output=True, text=True, timeout=20, check=False)
    assert "-http2" in said.stderr
    (tmp_path / "go.mod").write_text("module empty\n")
    with pytest.raises(SetupError, match="go could not build"):
        build(tmp_path, tmp_path / "nothing")


def test_what_a_process_has_used_grows_and_one_that_ended_has_used_nothing():
    before = of_process(os.getpid())
    sum(range(2_000_000))
    assert of_process(os.getpid()).processor >= before.processor > 0
    assert before.resident > 1_000_000
    assert of_process(2**22 + 1).processor == 0
