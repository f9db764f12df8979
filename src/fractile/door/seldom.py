"""Lines about what strangers do: anybody can do it any number of times, and must not fill the log with it."""

import time
from collections.abc import Callable

EVERY = 10.0  # seconds


class Seldom:
    """A line at most every so often. ``total``: all that happened."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._next = 0.0
        self._unsaid = 0
        self.total = 0

    def happened(self) -> int:
        """How many there were since the last line, this one among them; 0: it is too early for another."""
        self.total += 1
        self._unsaid += 1
        now = self._clock()
        if now < self._next:
            return 0
        self._next = now + EVERY
        count, self._unsaid = self._unsaid, 0
        return count


HANDSHAKES = Seldom()  # those that failed in this process, whatever listens, as processor time is counted
