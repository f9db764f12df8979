"""The options of the policies for nodes, and the file that pins the pods to be expected."""

from pathlib import Path

import pytest

from fractile.errors import FractileError
from fractile.main.scoring import read_mix
from fractile.policy.score.view import Ask

HEADING = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec\n"


def test_a_file_of_the_simulator_pins_the_mix(tmp_path: Path) -> None:
    file = tmp_path / "pods.csv"
    file.write_text(f"{HEADING}a,4000,1,1,500,\nb,4000,9,1,500,\nc,8000,1,2,1000,T4|P100\nd,8000,1,0,0,\n")
    mix = read_mix(file)
    expected = {Ask(4000, 0, 1, 500): 2, Ask(8000, 0, 2, 1000, ("T4", "P100")): 1}
    assert dict(zip(mix.asks, mix.counts, strict=True)) == expected


@pytest.mark.parametrize(
    ("text", "said"),
    [
        pytest.param(f"{HEADING}a,4000,1,1,1500,\n", "line 2 column gpu_milli", id="more than a GPU"),
        pytest.param("name\na\n", "column cpu_milli: there is no such column", id="a column is missing"),
        pytest.param(f"{HEADING}a,4000,1,0,0,\n", "has no pod that asks for a GPU", id="no GPU"),
        pytest.param("\xff\xfe", "column name", id="no table"),
    ],
)
def test_a_file_that_makes_no_sense_is_told_with_its_place(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "pods.csv"
    file.write_text(text)
    with pytest.raises(FractileError, match=said):
        read_mix(file)


def test_a_file_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(FractileError, match="cannot be read"):
        read_mix(tmp_path / "none.csv")
