"""Polls the driver from a thread of its own: events immediately, readings every few seconds.

A driver can hang for minutes inside one call (GSP timeouts, XID 119). Then only this thread hangs: it is a daemon, it
is never joined, and it reports through ``deliver``, which must not block.
"""

import logging
import threading
import time
from collections.abc import Callable, Sequence

import msgspec

from fractile.errors import SetupError
from fractile.model.health import CardEvent, HealthReading, Silence
from fractile.nvml.driver import Driver

_WAIT = 0.5  # seconds of one wait for events; a stop may take as long
_SOONEST = 1.0  # between two readings, however many events come
_RENEWAL = 30.0  # between two new sessions while a card needs one to come back

log = logging.getLogger(__name__)


class Readings(msgspec.Struct, frozen=True):
    """All cards that the driver lists."""

    cards: tuple[HealthReading, ...]


class Failed(msgspec.Struct, frozen=True):
    """The driver as a whole did not answer."""

    reason: str


Report = Readings | Failed | CardEvent


class Watcher:
    """Call ``start`` once; ``stop`` returns immediately, and nothing is delivered afterwards."""

    def __init__(
        self,
        driver: Driver,
        deliver: Callable[[Report], None],
        *,
        interval: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._driver = driver
        self._deliver = deliver
        self._interval = interval
        self._clock = clock
        self._stopped = threading.Event()
        self._renewed = -_RENEWAL
        self._renew = False

    def start(self) -> None:
        threading.Thread(target=self._run, name="nvml", daemon=True).start()

    def stop(self) -> None:
        self._stopped.set()

    def _run(self) -> None:
        read = due = self._clock()
        while not self._stopped.is_set():
            if self._clock() >= due:
                self._say(self._read())
                read = self._clock()
                due = read + self._interval
            if self._wait(max(0.0, min(_WAIT, due - self._clock()))):
                due = min(due, read + _SOONEST)  # read the card soon after an event

    def _wait(self, seconds: float) -> bool:
        events: Sequence[CardEvent] = self._driver.events(seconds)
        for event in events:
            self._say(event)
        return bool(events)

    def _read(self) -> Report:
        now = self._clock()
        if self._renew and now - self._renewed >= _RENEWAL:
            self._renewed = now
            self._driver.renew()
        try:
            readings = tuple(self._driver.readings())
        except SetupError as e:
            self._renew = True
            return Failed(str(e))
        self._renew = any(r.silence in (Silence.LOST, Silence.RESET_REQUIRED) for r in readings)
        return Readings(readings)

    def _say(self, report: Report) -> None:
        if not self._stopped.is_set():
            self._deliver(report)
