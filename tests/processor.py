"""What a call costs a processor, in tests that hold a bar in seconds.

Other tests of the run and other programs of the machine must not decide: what is in memory before is not looked through
by the collector, as in our programs once they are ready (gc.freeze), and seconds count as those of the processor on
which the bars were set.
"""

import gc
import time
from collections.abc import Callable

LOOP = 0.0106  # seconds that `_loop` takes there, the median of 200


def spent(work: Callable[[], object], tries: int = 3) -> float:
    """Seconds of that processor, the least of some tries."""
    gc.collect()
    gc.freeze()
    try:
        return min(_once(work) for _ in range(tries))
    finally:
        gc.unfreeze()


def _once(work: Callable[[], object]) -> float:
    before = _seconds(_loop)
    taken = _seconds(work)
    slowness = (before + _seconds(_loop)) / (2 * LOOP)
    return taken / max(1.0, slowness)


def _seconds(work: Callable[[], object]) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began


def _loop() -> int:
    seen: dict[int, tuple[int, str]] = {}
    for n in range(40_000):
        seen[n % 977] = (n, str(n))
    return len(seen)
