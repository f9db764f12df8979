"""The token bucket and the backoff, under a clock of the test's own."""

import random

from hypothesis import given
from hypothesis import strategies as st

from fractile.kube.backoff import Backoff
from fractile.kube.pacing import Pacer


@given(st.lists(st.floats(0, 3), max_size=60), st.floats(0.5, 50), st.integers(1, 10))
def test_no_window_of_time_sees_more_than_burst_plus_rate(gaps: list[float], rate: float, burst: int) -> None:
    now = 0.0
    pacer = Pacer(rate, burst, clock=lambda: now)
    sent: list[float] = []
    for gap in gaps:
        now += gap
        sent.append(now + pacer.reserve())
    assert sent == sorted(sent)
    for i, first in enumerate(sent):
        for j in range(i, len(sent)):
            assert j - i + 1 <= burst + (sent[j] - first) * rate + 1e-6


def test_an_idle_pacer_lets_a_burst_through_at_once() -> None:
    now = 0.0
    pacer = Pacer(2, 3, clock=lambda: now)
    assert [pacer.reserve() for _ in range(4)] == [0, 0, 0, 0.5]
    now += 100
    assert [pacer.reserve() for _ in range(4)] == [0, 0, 0, 0.5]


def test_the_backoff_doubles_up_to_its_cap_and_starts_again() -> None:
    backoff = Backoff(base=1, cap=8, rng=random.Random(1))
    waits = [backoff.next() for _ in range(200)]
    for i, wait in enumerate(waits):
        nominal = min(8, 2 ** min(i, 10))
        assert 0.5 * nominal <= wait <= 1.5 * nominal
    assert len(set(waits)) == len(waits)
    backoff.reset()
    assert backoff.next() <= 1.5
