"""What is counted of placement over all nodes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fractile.globalplacement.counts import BOUNDS, Decision, DecisionTally, Ended, QueueDepths, Remover


def test_everything_is_shown_also_what_never_happened() -> None:
    found = DecisionTally().figures(QueueDepths(1, 2, 3))
    assert found.pods == {"undecided": 1, "no-room": 2, "reserved": 3}
    assert found.decisions == dict.fromkeys(map(str, Decision), 0)
    assert found.ended == dict.fromkeys(map(str, Ended), 0)
    assert found.gates == dict.fromkeys(map(str, Remover), 0)
    assert set(found.seconds.counts) == {0}


def test_each_thing_counts_once_under_its_own_name() -> None:
    tally = DecisionTally()
    tally.decided(Decision.LEFT)
    tally.nominated(0.01)
    tally.ended(Ended.EXPIRED)
    tally.ended(Ended.EXPIRED)
    tally.gate_removed(Remover.SWEEPER)
    found = tally.figures(QueueDepths())
    assert (found.decisions["left"], found.decisions["nominated"], found.decisions["no-room"]) == (1, 1, 0)
    assert (found.ended["expired"], found.ended["taken"]) == (2, 0)
    assert (found.gates["sweeper"], found.gates["leader"]) == (1, 0)


@given(st.lists(st.floats(min_value=0, max_value=200) | st.sampled_from(BOUNDS)))
def test_a_bucket_holds_whatever_is_at_most_its_bound(times: list[float]) -> None:
    tally = DecisionTally()
    for one in times:
        tally.nominated(one)
    found = tally.figures(QueueDepths()).seconds
    assert found.counts == (*(sum(t <= bound for t in times) for bound in BOUNDS), len(times))
    assert found.total == pytest.approx(sum(times))
