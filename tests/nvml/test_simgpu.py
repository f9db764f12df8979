"""Faults of simulated cards, through simgpu's own libnvidia-ml.so.1 and NVIDIA's binding; needs `make -C native`."""

import json
import os
import subprocess
import time
from collections.abc import Generator
from pathlib import Path

import msgspec
import pytest

from fractile.model.health import CardEvent, EventKind, HealthReading, Silence
from fractile.model.units import CardUUID
from fractile.nvml.simulated import SimulatedDriver
from tests.nvml.asker import Asker, asker
from tests.policy.cards.machines import LARGE, MACHINES, Machine

BUILD = Path(os.environ.get("FRACTILE_NATIVE_BUILD", Path(__file__).parents[2] / "native" / "build")) / "simgpu"
CTL = BUILD / "simgpu-ctl"
A, B = (CardUUID(f"GPU-0000000{i}-0000-4000-8000-000000000000") for i in range(2))

pytestmark = pytest.mark.skipif(not CTL.exists(), reason="`make -C native` has not been run")


class Host:
    """Two simulated cards, what a driver says of them, and the tool that hurts them."""

    def __init__(self, folder: Path, ask: Asker) -> None:
        self._folder = folder
        self.ask = ask

    def take_away(self, *left: CardUUID) -> None:
        write_cards(self._folder, *left)
        self.ctl("show")  # whoever starts reads the file

    def ctl(self, *words: str) -> None:
        subprocess.run([CTL, *words], env=self._environ, check=True, timeout=30, capture_output=True)

    def refusal(self, *words: str) -> str:
        """What the tool says when it refuses."""
        done = subprocess.run([CTL, *words], env=self._environ, check=False, timeout=30, capture_output=True, text=True)
        assert done.returncode != 0
        return done.stderr

    @property
    def _environ(self) -> dict[str, str]:
        return {"SIMGPU_DIR": str(self._folder)}

    def events(self) -> list[CardEvent]:
        """All that come within a moment."""
        found: list[CardEvent] = []
        while more := self.ask.events(0.5):
            found += more
        return found


def write_cards(folder: Path, *uuids: CardUUID, model: str = "Tesla-V100") -> None:
    cards = [
        {"uuid": uuid, "index": i, "model": model, "memoryMiB": 16384, "pciBusID": f"00000000:0{i}:00.0"}
        for i, uuid in enumerate(uuids)
    ]
    (folder / "cards.json").write_text(json.dumps(cards))


@pytest.fixture
def host(tmp_path: Path) -> Generator[Host]:
    write_cards(tmp_path, A, B)
    with asker(BUILD, SIMGPU_DIR=str(tmp_path)) as ask:
        host = Host(tmp_path, ask)
        assert host.events() == []  # registered from now on
        yield host


def test_cards_are_well_at_first(host: Host) -> None:
    readings = host.ask.readings()
    assert [r.card.uuid if r.card else None for r in readings] == [A, B]
    assert [(r.silence, r.uncorrected, r.prohibited, r.partitioned) for r in readings] == [(None, 0, False, False)] * 2


def test_xids_arrive_in_order_with_card_and_number(host: Host) -> None:
    for card, xid in ((A, 31), (B, 119), (A, 13)):
        host.ctl("xid", card, str(xid))
    found = host.events()
    assert sorted((e.card, e.xid, e.kind) for e in found) == sorted(
        [(A, 31, EventKind.XID), (B, 119, EventKind.XID), (A, 13, EventKind.XID)]
    )
    assert [e.xid for e in found if e.card == A] == [31, 13]


def test_an_event_ends_the_wait_at_once(host: Host) -> None:
    host.ask.say("events 20")
    time.sleep(0.3)
    began = time.monotonic()
    host.ctl("xid", A, "43")
    assert [e.xid for e in host.ask.answer(list[CardEvent])] == [43]
    assert time.monotonic() - began < 10


def test_a_lost_card_is_known_by_its_place_its_event_has_its_name_and_the_other_answers(host: Host) -> None:
    host.ctl("xid", A, "79")
    assert host.events() == [CardEvent(A, EventKind.XID, xid=79)]
    lost, well = host.ask.readings()
    assert (lost.index, lost.card, lost.silence) == (0, None, Silence.LOST)
    assert well.card is not None
    host.ctl("heal", A)
    host.ask.renew()
    assert [r.silence for r in host.ask.readings()] == [None, None]


def test_events_come_also_after_a_new_session_and_also_from_the_card_that_was_lost(host: Host) -> None:
    host.ctl("xid", A, "79")
    assert len(host.events()) == 1
    host.ask.renew()
    host.ctl("heal", A)
    host.ask.renew()
    assert host.events() == []
    host.ctl("xid", A, "94")
    host.ctl("xid", B, "31")
    assert {(e.card, e.xid) for e in host.events()} == {(A, 94), (B, 31)}


def test_a_card_that_was_away_when_the_session_began_has_events_once_it_answers(host: Host) -> None:
    host.ctl("xid", A, "79")
    assert len(host.events()) == 1
    host.ask.renew()
    assert host.events() == []
    host.ctl("heal", A)
    assert [r.silence for r in host.ask.readings()] == [None, None]
    assert host.events() == []
    host.ctl("xid", A, "94")
    assert [(e.card, e.xid) for e in host.events()] == [(A, 94)]


def test_ecc_errors_are_counted_and_the_uncorrected_are_events(host: Host) -> None:
    host.ctl("ecc", B, "corrected", "5")
    host.ctl("ecc", B, "uncorrected", "2")
    assert [(e.card, e.xid) for e in host.events()] == [(B, 48)]
    one, two = host.ask.readings()
    assert (one.corrected, one.uncorrected, two.corrected, two.uncorrected) == (0, 0, 5, 2)
    host.ctl("heal", B)
    assert host.ask.readings()[1].uncorrected == 0


def test_a_new_session_is_one_although_a_meter_asks_in_it_too(host: Host) -> None:
    """A session lists the cards that were there when it began."""
    assert [r.uuid for r in host.ask.read()] == [A, B]
    host.take_away(A)
    assert [r.silence for r in host.ask.readings()] == [None, Silence.LOST]
    host.ask.renew()
    assert [r.card.uuid for r in host.ask.readings() if r.card] == [A]
    assert [r.uuid for r in host.ask.read()] == [A]


def well(reading: HealthReading) -> tuple[object, ...]:
    """What of a reading is about heat, worn memory and the driver's advice."""
    return reading.temperature, reading.repair_pending, reading.repair_failed, reading.reset_wanted


def test_heat_and_the_drivers_advice_are_as_the_tool_says_until_the_card_is_healed(host: Host) -> None:
    one, _ = host.ask.readings()
    assert (one.slowdown_at, one.shutdown_at) == (90, 95)
    host.ctl("temperature", A, "93")
    host.ctl("recovery", B, "drain-reset")
    one, two = host.ask.readings()
    assert (well(one), well(two)) == ((93, False, None, False), (40, False, None, True))
    host.ctl("recovery", B, "none")
    host.ctl("heal", A)
    assert [well(r) for r in host.ask.readings()] == [(40, False, None, False)] * 2


def test_a_card_before_ampere_retires_pages_and_never_says_that_it_failed(host: Host) -> None:
    host.ctl("repair", A, "pending")
    assert [r.repair_pending for r in host.ask.readings()] == [True, False]
    assert "retires pages" in host.refusal("repair", A, "failed")
    host.ctl("repair", A, "none")
    assert [r.repair_pending for r in host.ask.readings()] == [False, False]


def test_a_newer_card_replaces_rows_and_says_when_none_is_left(tmp_path: Path) -> None:
    write_cards(tmp_path, A, B, model="NVIDIA A100-SXM4-40GB")
    with asker(BUILD, SIMGPU_DIR=str(tmp_path)) as ask:
        host = Host(tmp_path, ask)
        host.ctl("repair", A, "pending")
        host.ctl("repair", B, "failed")
        found = [(r.repair_pending, r.repair_failed) for r in ask.readings()]
        assert found == [(True, False), (False, True)]
        host.ctl("heal", B)
        assert [r.repair_failed for r in ask.readings()] == [False, False]


@pytest.mark.parametrize(
    "words",
    [("temperature", "0", "hot"), ("temperature", "0", ""), ("repair", "0", "new"), ("recovery", "0", "pray")],
    ids=" ".join,
)
def test_a_word_that_the_tool_does_not_know_is_refused(host: Host, words: tuple[str, ...]) -> None:
    assert "--help" in host.refusal(*words)
    assert [well(r) for r in host.ask.readings()] == [(40, False, None, False)] * 2


@pytest.mark.parametrize("machine", [*MACHINES, *LARGE], ids=lambda m: m.name)
def test_cards_are_joined_as_the_rows_of_the_file_say(machine: Machine, tmp_path: Path) -> None:
    """Through NVML, link by link; and as the agent reads the same file by itself."""
    cards = [
        {"uuid": f"GPU-{n}", "index": n, "model": model, "memoryMiB": memory, "pciBusID": f"00000000:{n + 7:02X}:00.0"}
        | {"topology": machine.rows[n], "nvlink": machine.nvlink, "pcie": machine.pcie, "lanes": 16, "numa": n // 4}
        for n, (model, memory) in enumerate(machine.kinds)
    ]
    file = tmp_path / "cards.json"
    file.write_text(json.dumps(cards))
    with asker(BUILD, SIMGPU_DIR=str(tmp_path)) as ask:
        found = [r.card.interconnect for r in ask.readings() if r.card]
    assert [i.peers for i in found if i] == list(machine.rows)
    assert [i.numa for i in found if i] == [n // 4 for n in range(len(cards))]
    has = [c.interconnect for c in SimulatedDriver(file).cards()]
    links = ["NV" in row for row in machine.rows]  # a card without links says no generation of theirs
    assert found == [
        i if i and n else i and msgspec.structs.replace(i, nvlink=0) for i, n in zip(has, links, strict=True)
    ]


@pytest.mark.parametrize("row", ["X NV0", "X  SYS", "X SYS ", "X nv2", "X NV100"])
def test_a_row_that_is_none_is_refused(row: str, tmp_path: Path) -> None:
    card = {"uuid": A, "index": 0, "model": "A100", "memoryMiB": 1024, "topology": row}
    (tmp_path / "cards.json").write_text(json.dumps([card]))
    done = subprocess.run([CTL], env={"SIMGPU_DIR": str(tmp_path)}, check=False, capture_output=True, text=True)
    assert done.returncode == 1
    assert "topology" in done.stderr


@pytest.mark.parametrize(
    ("field", "value", "told"),
    [
        ("contextMiB", 1e300, "no card has so much memory"),
        ("reservedMiB", 1e30, "no card has so much memory"),
        ("eccErrors", -5, "eccErrors must be from 0"),
        ("eccErrors", 1e99, "eccErrors must be from 0"),
    ],
)
def test_a_number_that_no_integer_holds_is_refused(tmp_path: Path, field: str, value: float, told: str) -> None:
    card = {"uuid": A, "index": 0, "model": "Tesla V100", "memoryMiB": 4096, field: value}
    (tmp_path / "cards.json").write_text(json.dumps([card]))
    done = subprocess.run(
        [CTL, "show"], env={"SIMGPU_DIR": str(tmp_path)}, check=False, timeout=30, capture_output=True, text=True
    )
    assert done.returncode != 0
    assert told in done.stderr
