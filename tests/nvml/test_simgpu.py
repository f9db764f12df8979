"""Faults of simulated cards, through simgpu's own libnvidia-ml.so.1 and NVIDIA's binding; needs `make -C native`."""

import json
import os
import subprocess
import time
from collections.abc import Generator
from pathlib import Path

import pytest

from fractile.model.health import CardEvent, EventKind, Silence
from fractile.model.units import CardUUID
from tests.nvml.asker import Asker, asker

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
        environ = {"SIMGPU_DIR": str(self._folder)}
        subprocess.run([CTL, *words], env=environ, check=True, timeout=30, capture_output=True)

    def events(self) -> list[CardEvent]:
        """All that come within a moment."""
        found: list[CardEvent] = []
        while more := self.ask.events(0.5):
            found += more
        return found


def write_cards(folder: Path, *uuids: CardUUID) -> None:
    cards = [
        {"uuid": uuid, "index": i, "model": "Tesla-V100", "memoryMiB": 16384, "pciBusID": f"00000000:0{i}:00.0"}
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
