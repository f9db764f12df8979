"""The file of simulated cards that the chart's init container writes."""

import json
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from fractile.lab.programs.simulated_cards import command


def run(directory: Path, node: str = "n1", cards: str = "2x Tesla-V100 16276MiB") -> str:
    args = ["--node-name", node, "--cards", cards, "--directory", str(directory)]
    return CliRunner().invoke(command, args, catch_exceptions=False).output


def test_cards_are_those_of_the_node_and_the_same_each_time(tmp_path: Path) -> None:
    for folder, node in (("a", "n1"), ("b", "n1"), ("c", "n2")):
        run(tmp_path / folder, node)
    a, b, c = ((tmp_path / f / "cards.json").read_text() for f in "abc")
    assert a == b
    cards: list[Any] = json.loads(a)
    assert [(k["model"], k["memoryMiB"]) for k in cards] == [("Tesla-V100", 16276)] * 2
    assert not {k["uuid"] for k in cards} & {k["uuid"] for k in json.loads(c)}
    assert (tmp_path / "a" / "cards.json").stat().st_mode & 0o777 == 0o644


def test_cards_that_are_there_stay_since_pods_may_hold_them(tmp_path: Path) -> None:
    run(tmp_path)
    before = (tmp_path / "cards.json").read_text()
    assert "exists already" in run(tmp_path, cards="1x Tesla-T4 15109MiB")
    assert (tmp_path / "cards.json").read_text() == before
