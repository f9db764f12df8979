"""`fractile up`: what is wrong with its files is said before anything is started."""

from pathlib import Path

import pytest

from fractile.lab.layout import cluster_names, default_clusters_dir
from fractile.main.cli import main

NAME = "test-up-refused"


def refusal(capsys: pytest.CaptureFixture[str], file: Path) -> str:
    with pytest.raises(SystemExit) as end:
        main(["up", "--name", NAME, "--hollow", "--nodes", "1", "--sharing", str(file)])
    assert end.value.code == 1
    assert NAME not in cluster_names(default_clusters_dir())
    return capsys.readouterr().err


def test_rules_that_make_no_sense_are_refused_with_file_and_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "sharing.yaml"
    file.write_text("version: 1\ndefault: {maxSlices: many}\n")
    assert f"{file}: line 2: maxSlices is 'many'" in refusal(capsys, file)


def test_a_file_of_rules_that_is_not_there_or_no_text_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "sharing.yaml"
    assert f"{file} cannot be read" in refusal(capsys, file)
    file.write_bytes(b"\xff\xfe\x00")
    assert "is not UTF-8 text" in refusal(capsys, file)
