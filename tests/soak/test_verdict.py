"""What is called a leak, and what is not."""

from random import Random

import msgspec
import pytest

from tests.soak.samples import Sample
from tests.soak.verdict import judge, theil_sen

WARM = 600.0


def sample(seconds: float, **fields: float | str) -> Sample:
    usual = {"program": "agent", "rss": 60_000, "anonymous": 30_000, "threads": 5, "descriptors": 40, "tasks": 30}
    return msgspec.convert({"seconds": seconds, "entries": 20, **usual, **fields}, Sample)


def hour(rise: float = 0.0, **fields: float | str) -> list[Sample]:
    """One sample in ten seconds, waving by a percent, rising by so much in all of it."""
    rng = Random(4)
    base = 60_000
    return [sample(10.0 * i, rss=int(base * (1 + rise * i / 360 + rng.gauss(0, 0.01))), **fields) for i in range(361)]


def leaks(samples: list[Sample]) -> tuple[str, ...]:
    (found,) = judge(samples, warm_up=WARM)
    return found.leaks


def test_memory_that_waves_is_no_leak() -> None:
    assert leaks(hour()) == ()


def test_memory_that_rises_slowly_and_steadily_is_one() -> None:
    (sentence,) = leaks(hour(rise=0.08))
    assert sentence.startswith(("agent: memory grows by 6.", "agent: memory grows by 7."))


def test_what_rises_during_the_warm_up_only_is_none() -> None:
    early = [msgspec.structs.replace(s, rss=min(60_000, 30_000 + int(s.seconds * 50))) for s in hour()]
    assert leaks(early) == ()


def test_a_peak_does_not_move_the_line() -> None:
    high = [msgspec.structs.replace(s, rss=200_000) if 3000 < s.seconds < 3300 else s for s in hour()]
    (found,) = judge(high, warm_up=WARM)
    assert abs(found.memory.percent) < 2


@pytest.mark.parametrize("what", ["descriptors", "threads", "tasks"])
def test_one_more_of_something_in_a_thousand_seconds_is_a_leak(what: str) -> None:
    rising = [msgspec.structs.replace(s, **{what: 40 + int(s.seconds // 1000)}) for s in hour()]
    assert leaks(rising) == (f"agent: {what} rise from 41 to 43",)


def test_descriptors_that_come_and_go_are_none() -> None:
    rng = Random(5)
    waving = [msgspec.structs.replace(s, descriptors=40 + rng.randrange(10)) for s in hour()]
    assert leaks(waving) == ()


def test_descriptors_that_follow_the_books_are_none() -> None:
    rng = Random(6)
    books = [100 + int(s.seconds // 300) + rng.randrange(20) for s in hour()]
    following = [
        msgspec.structs.replace(s, entries=n, descriptors=30 + 2 * n) for s, n in zip(hour(), books, strict=True)
    ]
    assert leaks(following) == ()


def test_descriptors_that_rise_beside_books_that_wave_are_a_leak() -> None:
    rng = Random(7)
    both = [
        msgspec.structs.replace(s, entries=n, descriptors=30 + 2 * n + int(s.seconds // 900))
        for s in hour()
        for n in [100 + rng.randrange(20)]
    ]
    (sentence,) = leaks(both)
    assert sentence.startswith("agent: descriptors rise from ")


def following(rise: float) -> list[Sample]:
    """16 KiB for each of 80 to 145 entries, of an arbiter of 6 MiB."""
    rng = Random(6)
    books = [80 + rng.randrange(65) + (20 if i > 180 else 0) for i in range(361)]
    return [sample(10.0 * i, rss=int(6000 + 16 * n + rise * i / 360), entries=n) for i, n in enumerate(books)]


def test_memory_that_follows_the_books_is_none() -> None:
    assert leaks(following(rise=0)) == ()


def test_memory_that_rises_beside_books_that_wave_is_a_leak() -> None:
    (sentence,) = leaks(following(rise=1000))
    assert "memory grows by 1" in sentence


def test_books_that_fill_up_are_a_leak() -> None:
    filling = [msgspec.structs.replace(s, entries=20 + int(s.seconds // 60)) for s in hour()]
    assert leaks(filling) == ("agent: entries rise from 38 to 71",)


def test_a_program_without_event_loop_and_books_is_judged_by_the_rest() -> None:
    plain = [msgspec.structs.replace(s, tasks=None, entries=None) for s in hour()]
    assert leaks(plain) == ()


def test_the_line_of_theil_and_sen_through_exact_points() -> None:
    fit = theil_sen([(float(x), 100 + 2.0 * x) for x in range(20)])
    assert (fit.level, fit.rise) == (100, 38)
    assert fit.percent == 38
