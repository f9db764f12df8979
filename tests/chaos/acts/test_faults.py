"""The schedule of faults follows from the seed, and never hits one program twice at a time."""

from hypothesis import given
from hypothesis import strategies as st

from tests.chaos.acts.faults import GAP, LINK, LONGEST, PROCESS, SHORTEST, WRITES, Kind, Target, schedule, targets

ALL = targets(["n1", "n2"], ["a", "b"], ["link"])


def test_the_same_seed_gives_the_same_schedule_and_another_seed_or_round_another() -> None:
    first = schedule(7, 1, ALL, seconds=30, count=20)
    assert schedule(7, 1, ALL, seconds=30, count=20) == first
    assert schedule(8, 1, ALL, seconds=30, count=20) != first
    assert schedule(7, 2, ALL, seconds=30, count=20) != first


def test_a_schedule_that_was_once_printed_is_the_same_in_later_versions_of_python() -> None:
    found = schedule(1, 1, [Target("etcd", PROCESS)], seconds=30, count=1)
    assert [(f.at, f.kind, f.seconds) for f in found] == RECORDED


RECORDED = [(17.83, Kind.PAUSE, 7.25)]


@given(seed=st.integers(0, 2**31), turn=st.integers(1, 1000), seconds=st.floats(5, 60), count=st.integers(0, 60))
def test_faults_are_in_order_within_the_round_and_apart(seed: int, turn: int, seconds: float, count: int) -> None:
    found = schedule(seed, turn, ALL, seconds=seconds, count=count)
    assert len(found) <= count
    assert found == sorted(found, key=lambda f: (f.at, f.target))
    kinds = {t.name: t.kinds for t in ALL}
    for fault in found:
        assert fault.at >= 0
        assert fault.end <= seconds + 0.02  # both are rounded
        assert SHORTEST <= fault.seconds <= LONGEST
        assert fault.kind in kinds[fault.target]
    for one in found:
        later = [f for f in found if f.target == one.target and f is not one and f.at >= one.at]
        assert all(one.end + GAP <= f.at for f in later)


def test_every_program_is_hit_in_every_way_sooner_or_later() -> None:
    hit = {(f.target, f.kind) for turn in range(300) for f in schedule(1, turn, ALL, seconds=30, count=14)}
    assert hit == {(t.name, kind) for t in ALL for kind in t.kinds}
    assert {kind for _, kind in hit} == set(PROCESS + LINK + WRITES)
