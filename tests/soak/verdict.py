"""Whether a program leaks. Pure.

Memory: the line of Theil (1950) and Sen (1968) through all samples after the warm-up, the median of the slopes between
all pairs. Peaks do not move it as long as fewer than 29 % of the samples are off. Growth is how far the line rises over
these samples, in percent of where it begins.

Descriptors, threads, tasks and entries are small whole numbers that wave: of them the median of the last third is
compared with that of the first third. An agent has two descriptors for each directory, an arbiter one, and 16 KiB of
that container's pages mapped; so of descriptors and of memory that part is taken off first which goes up and down with
the books. The books themselves may not rise.
"""

from collections.abc import Sequence
from itertools import combinations
from statistics import median

import msgspec
import numpy as np
import numpy.typing as npt

from tests.soak.samples import Sample

GROWTH = 5.0  # percent of resident memory that a program may gain after the warm-up
WAVE = 1.5  # descriptors, threads or tasks: more than one, in the medians
_ENTRIES = 1.5  # times as many
_FOLLOWS = 0.25  # of the variance

Values = npt.NDArray[np.float64]


class Fit(msgspec.Struct, frozen=True):
    """A line: ``level`` where it begins, ``rise`` until where it ends."""

    level: float
    rise: float

    @property
    def percent(self) -> float:
        return 100 * self.rise / self.level if self.level else 0.0


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """Of one program. ``leaks``: sentences."""

    program: str
    memory: Fit
    leaks: tuple[str, ...]


def theil_sen(points: Sequence[tuple[float, float]]) -> Fit:
    """Of points by time."""
    slopes = [(y2 - y1) / (x2 - x1) for (x1, y1), (x2, y2) in combinations(points, 2) if x2 > x1]
    slope = median(slopes) if slopes else 0.0
    begin, end = points[0][0], points[-1][0]
    level = median(y - slope * (x - begin) for x, y in points)
    return Fit(level, slope * (end - begin))


def judge(samples: Sequence[Sample], *, warm_up: float) -> list[Verdict]:
    """One for each program that was seen after the warm-up (seconds), by name."""
    warm: dict[str, list[Sample]] = {}
    for one in samples:
        if one.seconds >= warm_up:
            warm.setdefault(one.program, []).append(one)
    return [_of(program, seen) for program, seen in sorted(warm.items())]


def _of(program: str, seen: list[Sample]) -> Verdict:
    memory = theil_sen([*zip([s.seconds for s in seen], _beyond_books(seen, [s.rss for s in seen]), strict=True)])
    leaks: list[str] = []
    if memory.percent > GROWTH:
        leaks.append(f"{program}: memory grows by {memory.percent:.1f} %, from {memory.level / 1024:.1f} MiB")
    for what in ("descriptors", "threads", "tasks"):
        values = [getattr(s, what) for s in seen]
        first, last = _thirds(_beyond_books(seen, values) if what == "descriptors" else values)
        if last - first > WAVE:
            leaks.append(f"{program}: {what} rise from {first:g} to {last:g}")
    first, last = _thirds([s.entries for s in seen])
    if last > max(first * _ENTRIES, first + 10):
        leaks.append(f"{program}: entries rise from {first:g} to {last:g}")
    return Verdict(program=program, memory=memory, leaks=tuple(leaks))


def _beyond_books(seen: Sequence[Sample], values: Sequence[float]) -> list[float]:
    """The values as they would be with as many entries as there are on average, where they do follow the entries:
    where these explain a quarter of how the values wave about their own line."""
    held = np.array(values, dtype=float)
    books = np.array([s.entries or 0 for s in seen], dtype=float)
    times = np.array([s.seconds for s in seen])
    wave, of_books = _about_line(held, times), _about_line(books, times)
    common = float(wave @ of_books)
    if common**2 < _FOLLOWS * float(wave @ wave) * float(of_books @ of_books) or not of_books.any():
        return held.tolist()
    return (held - common / float(of_books @ of_books) * (books - books.mean())).tolist()


def _about_line(values: Values, times: Values) -> Values:
    line = np.column_stack([np.ones(len(times)), times - times.mean()])
    return values - line @ np.linalg.lstsq(line, values, rcond=None)[0]


def _thirds(values: Sequence[float | None]) -> tuple[float, float]:
    known = [v for v in values if v is not None]
    if len(known) < 3:
        return 0.0, 0.0
    third = len(known) // 3
    return median(known[:third]), median(known[-third:])
