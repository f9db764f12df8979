"""The thread that asks the driver."""

import queue
import threading
import time
from collections.abc import Generator

import pytest

from fractile.errors import SetupError
from fractile.model.card import Card
from fractile.model.health import CardEvent, EventKind, HealthReading, Silence
from fractile.model.units import CardUUID
from fractile.nvml.watcher import Failed, Readings, Report, Watcher
from tests.agent.world import card

CARD = card(0)
WELL = HealthReading(index=0, card=CARD)
LOST = HealthReading(index=0, card=None, silence=Silence.LOST)


class Scripted:
    """A driver that answers what the test put there."""

    def __init__(self) -> None:
        self.now: list[HealthReading] | None = [WELL]
        self.coming: queue.Queue[CardEvent] = queue.Queue()
        self.renewed = 0
        self.read = 0
        self.hangs = threading.Event()
        self.hangs.set()

    def cards(self) -> list[Card]:
        return []

    def readings(self) -> list[HealthReading]:
        self.hangs.wait(30)
        self.read += 1
        if self.now is None:
            raise SetupError("no driver")
        return self.now

    def events(self, timeout: float) -> list[CardEvent]:
        try:
            return [self.coming.get(timeout=max(timeout, 0.001))]
        except queue.Empty:
            return []

    def renew(self) -> None:
        self.renewed += 1

    def asking(self) -> CardUUID | None:
        return None

    def close(self) -> None: ...


@pytest.fixture
def driver() -> Scripted:
    return Scripted()


@pytest.fixture
def reports() -> "queue.Queue[Report]":
    return queue.Queue()


@pytest.fixture
def watcher(driver: Scripted, reports: "queue.Queue[Report]") -> Generator[Watcher]:
    made = Watcher(driver, reports.put, interval=0.05)
    yield made
    made.stop()
    driver.hangs.set()


def test_it_reads_at_once_and_then_again_and_again(watcher: Watcher, reports: "queue.Queue[Report]") -> None:
    watcher.start()
    assert [reports.get(timeout=10) for _ in range(3)] == [Readings((WELL,))] * 3


def test_a_driver_that_fails_is_a_report_and_asked_again(
    driver: Scripted, watcher: Watcher, reports: "queue.Queue[Report]"
) -> None:
    driver.now = None
    watcher.start()
    assert reports.get(timeout=10) == Failed("no driver")
    driver.now = [WELL]
    while reports.get(timeout=10) != Readings((WELL,)):
        pass
    assert driver.renewed == 1, "it may need a new session"


def test_an_event_is_told_before_the_next_reading_and_brings_that_nearer(
    driver: Scripted, reports: "queue.Queue[Report]"
) -> None:
    event = CardEvent(CARD.uuid, EventKind.XID, xid=79)
    slow = Watcher(driver, reports.put, interval=3600.0)
    slow.start()
    try:
        assert reports.get(timeout=10) == Readings((WELL,))
        driver.coming.put(event)
        assert reports.get(timeout=10) == event
        assert reports.get(timeout=10) == Readings((WELL,))
    finally:
        slow.stop()


def test_a_lost_card_is_asked_for_in_a_new_session_but_not_every_time(
    driver: Scripted, watcher: Watcher, reports: "queue.Queue[Report]"
) -> None:
    driver.now = [LOST]
    watcher.start()
    for _ in range(5):
        reports.get(timeout=10)
    assert driver.renewed == 1


def test_cards_that_answer_need_no_new_session(
    driver: Scripted, watcher: Watcher, reports: "queue.Queue[Report]"
) -> None:
    watcher.start()
    for _ in range(5):
        reports.get(timeout=10)
    assert driver.renewed == 0


def test_a_stop_does_not_wait_for_a_driver_that_hangs_and_nothing_comes_afterwards(
    driver: Scripted, watcher: Watcher, reports: "queue.Queue[Report]"
) -> None:
    driver.hangs.clear()
    watcher.start()
    began = time.monotonic()
    watcher.stop()
    assert time.monotonic() - began < 1
    driver.hangs.set()
    with pytest.raises(queue.Empty):
        reports.get(timeout=0.3)
