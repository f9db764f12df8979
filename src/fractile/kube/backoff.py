"""How long to wait before a retry: exponential, with jitter, so that a thousand agents do not return together."""

import random


class Backoff:
    """Waits ``base``, ``2 base``, ``4 base`` ... up to ``cap`` seconds, each multiplied by a random 0.5 .. 1.5."""

    def __init__(self, *, base: float = 0.2, cap: float = 10.0, rng: random.Random) -> None:
        self._base = base
        self._cap = cap
        self._rng = rng
        self.failures = 0  # since the last reset

    def next(self) -> float:
        """Count one more failure and return the seconds to wait for it."""
        wait = min(self._cap, self._base * 2 ** min(self.failures, 30))
        self.failures += 1
        return wait * self._rng.uniform(0.5, 1.5)

    def reset(self) -> None:
        self.failures = 0
