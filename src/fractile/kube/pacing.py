"""A token bucket, so that our programs never flood the API server, whatever their callers do."""

import asyncio
from collections.abc import Awaitable, Callable

Sleep = Callable[[float], Awaitable[None]]
Clock = Callable[[], float]


class Pacer:
    """``rate`` calls a second on average, up to ``burst`` without a wait. Waiters are served in order of arrival."""

    def __init__(self, rate: float, burst: int, *, clock: Clock, sleep: Sleep = asyncio.sleep) -> None:
        self._rate = rate
        self._burst = float(burst)
        self._clock = clock
        self._sleep = sleep
        self._tokens = self._burst
        self._seen = clock()

    def reserve(self) -> float:
        """Take one token, if necessary from the future, and return the seconds to wait for it (0 = go ahead)."""
        now = self._clock()
        self._tokens = min(self._burst, self._tokens + (now - self._seen) * self._rate)
        self._seen = now
        self._tokens -= 1
        return 0.0 if self._tokens >= 0 else -self._tokens / self._rate

    async def wait(self) -> None:
        delay = self.reserve()
        if delay > 0:
            await self._sleep(delay)
