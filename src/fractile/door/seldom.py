"""Rate limit for log lines about strangers, who can cause any number of events and must not fill the log."""

import time
from collections.abc import Callable

EVERY = 10.0  # seconds


class Seldom:
    """Allow a line at most every ``EVERY`` seconds. ``total``: all events."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._next = 0.0
        self._unsaid = 0
        self.total = 0

    def happened(self) -> int:
        """Count an event. Returns how many since the last line, this one included; 0: too early for another line."""
        self.total += 1
        self._unsaid += 1
        now = self._clock()
        if now < self._next:
            return 0
        self._next = now + EVERY
        count, self._unsaid = self._unsaid, 0
        return count


HANDSHAKES = Seldom()  # failed handshakes in this process, of all listeners
