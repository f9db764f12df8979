"""Cards from a file."""

import json
import time
from pathlib import Path

import pytest

from fractile.errors import SetupError
from fractile.model.health import Silence
from fractile.model.interconnect import Interconnect
from fractile.nvml.simulated import SimulatedDriver

CARD = {"uuid": "GPU-a", "index": 0, "model": "Tesla-V100", "memoryMiB": 16276, "pciBusID": "00000000:00:04.0"}


def write(path: Path, content: object) -> Path:
    file = path / "cards.json"
    file.write_text(content if isinstance(content, str) else json.dumps(content))
    return file


def test_cards_come_by_index_with_all_they_say(tmp_path: Path) -> None:
    file = write(tmp_path, [{**CARD, "uuid": "GPU-b", "index": 1, "model": "A100"}, CARD])
    first, second = SimulatedDriver(file).cards()
    assert (first.uuid, first.index, first.model, first.memory, first.pci_bus_id) == (
        "GPU-a",
        0,
        "Tesla-V100",
        16276,
        "00000000:00:04.0",
    )
    assert second.uuid == "GPU-b"


def test_what_a_context_costs_is_what_the_file_says_or_what_simgpu_takes(tmp_path: Path) -> None:
    file = write(tmp_path, [CARD, {**CARD, "uuid": "GPU-b", "index": 1, "contextMiB": 300}])
    assert [card.context for card in SimulatedDriver(file).cards()] == [256, 300]


def test_how_cards_are_joined_is_the_files_row_or_simgpus_word_for_all(tmp_path: Path) -> None:
    cards = [
        {**CARD, "uuid": f"GPU-{n}", "index": n, "interconnect": word} for n, word in enumerate(("NV4", "NV4", ""))
    ]
    rows = [c.interconnect and c.interconnect.peers for c in SimulatedDriver(write(tmp_path, cards)).cards()]
    assert rows == ["X NV4 NODE", "NV4 X NODE", None]
    told = [{**CARD, "topology": "X NV2", "nvlink": 2, "numa": 1}, {**CARD, "uuid": "GPU-b", "index": 1}]
    first, second = SimulatedDriver(write(tmp_path, told)).cards()
    assert first.interconnect == Interconnect("X NV2", nvlink=2, numa=1)
    assert second.interconnect is None


def test_a_changed_file_is_read_anew(tmp_path: Path) -> None:
    driver = SimulatedDriver(write(tmp_path, [CARD]))
    write(tmp_path, [])
    assert driver.cards() == []


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        pytest.param("[", "is not a list of cards", id="no json"),
        pytest.param({}, "is not a list of cards", id="no list"),
        pytest.param([{**CARD, "topology": "X WIFI"}], "topology", id="an unknown way"),
        pytest.param([{**CARD, "topology": "X " * 900}], "topology", id="a row without end"),
        pytest.param([{**CARD, "contextMiB": -1}], "contextMiB", id="a context that gives memory"),
        pytest.param([{**CARD, "memoryMiB": 0}], "memoryMiB", id="no memory"),
        pytest.param([{**CARD, "uuid": "GPU::a"}], "uuid", id="uuid that breaks ids"),
        pytest.param([{**CARD, "uuid": "GPU-a\n"}], "uuid", id="uuid with a line break"),
        pytest.param([{"uuid": "GPU-a"}], "index", id="missing fields"),
        pytest.param([CARD, {**CARD, "index": 1}], "twice", id="uuid twice"),
        pytest.param([CARD, {**CARD, "uuid": "GPU-A", "index": 1}], "twice", id="uuid twice but for case"),
        pytest.param([CARD, {**CARD, "uuid": "GPU-b"}], "twice", id="index twice"),
    ],
)
def test_a_file_that_makes_no_sense_is_refused_at_start(tmp_path: Path, content: object, reason: str) -> None:
    with pytest.raises(SetupError, match=reason):
        SimulatedDriver(write(tmp_path, content))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match=r"cards\.json"):
        SimulatedDriver(tmp_path / "cards.json")


def test_faults_stand_in_the_file(tmp_path: Path) -> None:
    faulty = {**CARD, "uuid": "GPU-b", "index": 1, "temperature": 92, "uncorrected": 3}
    driver = SimulatedDriver(write(tmp_path, [{**CARD, "lost": True}, faulty]))
    lost, hot = driver.readings()
    assert (lost.index, lost.card, lost.silence) == (0, None, Silence.LOST)
    assert (hot.temperature, hot.slowdown_at, hot.uncorrected) == (92, 90, 3)
    assert [c.uuid for c in driver.cards()] == ["GPU-b"]


def test_each_xid_that_is_added_is_one_event_and_those_from_before_the_start_are_none(tmp_path: Path) -> None:
    driver = SimulatedDriver(write(tmp_path, [{**CARD, "xids": [31]}]))
    assert driver.events(0.1) == []
    write(tmp_path, [{**CARD, "xids": [31, 31, 79]}])
    assert [(e.card, e.xid) for e in driver.events(0.1)] == [("GPU-a", 31), ("GPU-a", 79)]
    assert driver.events(0.1) == []


def test_a_file_that_is_just_being_written_brings_no_event_and_no_error(tmp_path: Path) -> None:
    driver = SimulatedDriver(write(tmp_path, [CARD]))
    write(tmp_path, "[")
    assert driver.events(0.1) == []
    with pytest.raises(SetupError):
        driver.readings()


def test_a_closed_driver_waits_for_nothing(tmp_path: Path) -> None:
    driver = SimulatedDriver(write(tmp_path, [CARD]))
    driver.close()
    began = time.monotonic()
    assert driver.events(20) == []
    assert time.monotonic() - began < 10
