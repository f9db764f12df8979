"""Times of calls that are taken in turn, so that whatever else the machine does falls on all of them alike."""

import gc
from collections.abc import Callable
from time import perf_counter

import msgspec


class Times(msgspec.Struct, frozen=True):
    """Seconds."""

    median: float
    p99: float


def in_turn(calls: dict[str, Callable[[], object]], *, rounds: int = 400) -> dict[str, Times]:
    """Each call ``rounds`` times, one after another in every round, after a few rounds to warm up."""
    gc.collect()
    gc.freeze()
    taken: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(rounds + 20):
        for name, call in calls.items():
            started = perf_counter()
            call()
            seconds = perf_counter() - started
            if turn >= 20:
                taken[name].append(seconds)
    gc.unfreeze()
    return {name: _times(sorted(seconds)) for name, seconds in taken.items()}


def _times(seconds: list[float]) -> Times:
    return Times(seconds[len(seconds) // 2], seconds[len(seconds) * 99 // 100])
