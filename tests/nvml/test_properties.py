"""What cards say of themselves: a driver that tells all, one that tells little, and simulated cards."""

import json
from pathlib import Path
from typing import Any, cast

import pytest

from fractile.model.card import Card
from fractile.model.interconnect import Interconnect, groups
from fractile.model.units import CardUUID, MiB
from fractile.nvml import models
from fractile.nvml.library import Handle, Library
from fractile.nvml.properties import Tellings, cuda_version, joined, read
from fractile.nvml.simulated import SimulatedDriver
from tests.nvml.asker import asker
from tests.nvml.test_simgpu import BUILD, CTL

HANDLE = Handle(1)
CARD = Card(CardUUID("GPU-a"), 0, "Tesla V100", MiB(16384))


class Refused(Exception):
    """NVML_ERROR_NOT_SUPPORTED."""


class FakeNvml:
    """Answers as NVML does; what is not given is not supported."""

    NVMLError = Refused
    NVMLLibraryMismatchError = Refused

    def __init__(self, **answers: object) -> None:
        self.answers = answers
        self.asked = 0

    def __getattr__(self, name: str) -> Any:
        def answer(*args: object) -> object:
            self.asked += 1
            found = self.answers.get(name, Refused(name))
            if isinstance(found, Refused):
                raise found
            return cast(dict[object, object], found)[args[-1]] if isinstance(found, dict) else found

        return answer


FULL = FakeNvml(
    nvmlDeviceGetArchitecture=5,
    nvmlDeviceGetBrand=2,
    nvmlDeviceGetCudaComputeCapability=(7, 0),
    nvmlSystemGetDriverVersion=b"535.104.05",
    nvmlSystemGetCudaDriverVersion=12020,
    nvmlDeviceGetMaxClockInfo={1: 1530, 2: 877},
    nvmlDeviceGetMemoryBusWidth=4096,
    nvmlDeviceGetNumGpuCores=5120,
    nvmlDeviceGetPowerManagementLimit=300000,
    nvmlDeviceGetEccMode=[1, 1],
    nvmlDeviceGetMigMode=[0, 0],
)


def nvml(fake: FakeNvml) -> Library:
    return cast(Library, fake)


def test_all_that_a_driver_tells_is_a_word_or_a_quantity_with_its_unit() -> None:
    assert read(nvml(FULL), HANDLE) == {
        "architecture": "Volta",
        "brand": "Tesla",
        "computeCapability": "7.0",
        "driver": "535.104.05",
        "driverBranch": "535",
        "cudaVersion": "12.2",
        "clock": "1530MHz",
        "memoryClock": "877MHz",
        "memoryBusWidth": "4096",
        "cudaCores": "5120",
        "powerLimit": "300W",
        "ecc": "enabled",
        "mig": "disabled",
    }


def test_what_a_driver_does_not_tell_is_left_out() -> None:
    assert read(nvml(FakeNvml()), HANDLE) == {}
    strange = FakeNvml(nvmlDeviceGetArchitecture=99, nvmlDeviceGetMemoryBusWidth=0, nvmlSystemGetCudaDriverVersion=0)
    assert read(nvml(strange), HANDLE) == {}


def test_a_card_is_asked_once_in_a_while_and_says_the_same_thing_in_between() -> None:
    fake = FakeNvml(nvmlDeviceGetMaxClockInfo=1530)
    tellings = Tellings(nvml(fake))
    said = [tellings.of(CARD, HANDLE, group=None) for _ in range(12)]
    once = fake.asked
    assert all(s is said[0] for s in said)
    fake.answers["nvmlDeviceGetMaxClockInfo"] = 1380
    assert tellings.of(CARD, HANDLE, group=None)["clock"] == "1380MHz"
    assert fake.asked == 2 * once


def test_a_new_session_is_asked_anew() -> None:
    fake = FakeNvml(nvmlSystemGetDriverVersion="535.104.05")
    tellings = Tellings(nvml(fake))
    tellings.of(CARD, HANDLE, group=None)
    fake.answers["nvmlSystemGetDriverVersion"] = "550.54.15"
    tellings.forget()
    assert tellings.of(CARD, HANDLE, group=None)["driverBranch"] == "550"


@pytest.mark.parametrize(
    ("number", "text"), [(12020, "12.2"), (11080, "11.8"), (13050, "13.5"), (9000, "9.0"), (0, "")]
)
def test_the_version_of_cuda_is_written_as_people_write_it(number: int, text: str) -> None:
    assert cuda_version(number) == text


def test_how_a_card_is_joined_is_told_as_far_as_it_is_known() -> None:
    full = Interconnect("NV2 X", nvlink=3, pcie=4, lanes=16, numa=0)
    assert joined(full, group=0) == {
        "nvlinkGeneration": "3",
        "pcieGeneration": "4",
        "pcieLanes": "16",
        "interconnectGroup": "0",
        "numaNode": "0",
    }
    assert joined(Interconnect("X"), group=None) == joined(None, group=None) == {}


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ({0: "X NV2 SYS SYS", 1: "NV2 X SYS SYS", 2: "SYS SYS X NV2", 3: "SYS SYS NV2 X"}, {0: 0, 1: 0, 2: 2, 3: 2}),
        ({0: "X NV1 SYS", 1: "NV1 X NV1", 2: "SYS NV1 X"}, {0: 0, 1: 0, 2: 0}),
        ({0: "X PIX", 1: "PIX X"}, {}),
        ({0: "X NV4 NV4", 2: "NV4 NV4 X"}, {0: 0, 1: 0, 2: 0}),
        ({}, {}),
    ],
    ids=["two pairs", "a chain", "no NVLink", "one that does not answer", "no cards"],
)
def test_cards_that_reach_each_other_over_nvlink_are_one_group(rows: dict[int, str], expected: dict[int, int]) -> None:
    assert groups({index: Interconnect(row) for index, row in rows.items()}) == expected


def simulated(folder: Path, **fields: object) -> list[Card]:
    entries = [
        {"uuid": f"GPU-{i}", "index": i, "model": "Tesla V100", "memoryMiB": 16384, "topology": row, **fields}
        for i, row in enumerate(("X NV2", "NV2 X"))
    ]
    (folder / "cards.json").write_text(json.dumps(entries))
    return SimulatedDriver(folder / "cards.json").cards()


def test_simulated_cards_say_what_data_sheets_say_of_their_model(tmp_path: Path) -> None:
    for card in simulated(tmp_path, pcie=3, lanes=16, numa=1):
        found = {key: card.property(key) for key in ("architecture", "computeCapability", "clock", "interconnectGroup")}
        assert found == {
            "architecture": "Volta",
            "computeCapability": "7.0",
            "clock": "1530MHz",
            "interconnectGroup": "0",
        }
        assert card.property("numaNode") == "1"


def test_the_file_of_simulated_cards_may_say_something_else(tmp_path: Path) -> None:
    card, _ = simulated(tmp_path, properties={"clock": "900MHz", "colour": "green"})
    assert (card.property("clock"), card.property("colour")) == ("900MHz", "green")
    assert card.property("architecture") == "Volta"


@pytest.mark.skipif(not CTL.exists(), reason="`make -C native` has not been run")
def test_the_simulated_driver_and_the_file_of_cards_say_the_same_of_every_model(tmp_path: Path) -> None:
    names = [f"NVIDIA {m.part}-X" for m in (*models.MODELS, models.OTHER)]
    entries = [
        {"uuid": f"GPU-{i:08x}-0000-4000-8000-000000000000", "index": i, "model": name, "memoryMiB": 16384}
        for i, name in enumerate(names)
    ]
    (tmp_path / "cards.json").write_text(json.dumps(entries))
    with asker(BUILD, SIMGPU_DIR=str(tmp_path)) as ask:
        told = {r.card.model: dict(r.card.properties) for r in ask.readings() if r.card is not None}
    file = {c.model: dict(c.properties) for c in SimulatedDriver(tmp_path / "cards.json").cards()}
    assert set(told) == set(file) == set(names)
    for name in names:
        assert told[name].items() >= file[name].items()
        assert set(told[name]) - set(file[name]) <= {"pcieGeneration", "pcieLanes", "numaNode", "interconnectGroup"}
