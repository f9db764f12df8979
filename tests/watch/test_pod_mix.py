"""The mix that is learned: who counts, how long, and when there should be another."""

import tracemalloc
from collections import Counter

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fractile.model.pod_demand import PartOfCard, PodDemand
from fractile.model.units import PodUID
from fractile.policy.nodes.view import TaskDemand
from fractile.watch.pod_mix import MixWindow, SeenPods
from tests.builders import Clock

CARD = 16_000
HALF = PodDemand(4000, 1024, parts=(PartOfCard(memory=8000),))
WHOLE = PodDemand(8000, 1024, whole=1)
NONE = PodDemand(8000, 1024)


def uid(n: int) -> PodUID:
    return PodUID(f"pod-{n}")


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def seen(clock: Clock) -> SeenPods:
    return SeenPods(clock, MixWindow(seconds=100, most=3))


def counts(seen: SeenPods) -> dict[TaskDemand, int]:
    mix = seen.mix(CARD)
    return dict(zip(mix.asks, mix.counts, strict=True))


def test_a_pod_counts_once_however_often_it_is_seen(seen: SeenPods) -> None:
    for _ in range(3):
        seen.put(uid(1), HALF)
    seen.put(uid(2), WHOLE)
    assert counts(seen) == {TaskDemand(4000, 0, 1, 500): 1, TaskDemand(8000, 0, 1, 1000): 1}


def test_who_is_gone_counts_for_a_while_and_only_the_last_ones(seen: SeenPods, clock: Clock) -> None:
    for n in range(10):
        seen.put(uid(n), HALF)
    for n in range(8):
        seen.gone(uid(n))
        seen.gone(uid(n))
    assert counts(seen) == {TaskDemand(4000, 0, 1, 500): 2 + 3}
    clock.now += 101
    assert counts(seen) == {TaskDemand(4000, 0, 1, 500): 2}
    assert len(seen) == 2


def test_many_that_are_gone_take_no_room_each(clock: Clock) -> None:
    seen = SeenPods(clock, MixWindow(seconds=10_000, most=20_000))
    tracemalloc.start()
    try:
        for n in range(10_000):
            clock.now += 0.1
            seen.put(uid(n), PodDemand(4000, 1024, parts=(PartOfCard(memory=8000),)))
            seen.gone(uid(n))
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(seen) == 10_000
    assert held < 10_000 * 20


def test_those_that_went_later_are_forgotten_later(clock: Clock) -> None:
    seen = SeenPods(clock, MixWindow(seconds=200, most=100))
    for n in range(6):
        seen.put(uid(n), HALF)
        seen.gone(uid(n))
        clock.now += 50
    assert list(counts(seen).values()) == [4]
    clock.now += 100
    assert list(counts(seen).values()) == [2]
    clock.now += 1000
    assert counts(seen) == {}
    assert len(seen) == 0


def test_pods_without_a_gpu_do_not_count(seen: SeenPods) -> None:
    seen.put(uid(1), NONE)
    seen.gone(uid(1))
    assert counts(seen) == {}


def test_what_a_class_gives_is_learned_when_the_pods_node_is_sought(seen: SeenPods) -> None:
    seen.better(uid(1), WHOLE)  # of whom no watch will say that he is gone
    assert counts(seen) == {}
    seen.put(uid(1), NONE)
    seen.better(uid(1), WHOLE)
    seen.put(uid(1), NONE)
    assert counts(seen) == {TaskDemand(8000, 0, 1, 1000): 1}


def test_a_part_that_no_card_could_hold_is_left_out(seen: SeenPods) -> None:
    seen.put(uid(1), PodDemand(0, 0, parts=(PartOfCard(memory=CARD + 1),)))
    assert counts(seen) == {}


def test_a_mix_is_out_of_date_when_a_sixteenth_of_the_pods_are_others(seen: SeenPods) -> None:
    assert not seen.outdated
    for n in range(160):
        seen.put(uid(n), HALF)
    assert seen.outdated
    seen.mix(CARD)
    for n in range(200, 210):
        assert not seen.outdated
        seen.put(uid(n), HALF)
    seen.put(uid(300), HALF)
    assert seen.outdated


def test_the_commonest_classes_are_kept() -> None:
    seen = SeenPods(Clock())
    for n in range(1000):
        seen.put(uid(n), PodDemand(1000 * (n % 100), 0, whole=1) if n < 900 else HALF)
    mix = seen.mix(CARD)
    assert len(mix.asks) == 48
    assert (mix.asks[0], mix.counts[0]) == (TaskDemand(4000, 0, 1, 500), 100)


STEPS = st.lists(st.tuples(st.integers(0, 8), st.sampled_from([HALF, WHOLE, NONE, None])), max_size=60)
ASKS = {TaskDemand(4000, 0, 1, 500): HALF, TaskDemand(8000, 0, 1, 1000): WHOLE}


def follow(
    steps: list[tuple[int, PodDemand | None]], *, apart: float
) -> tuple[Counter[TaskDemand], Counter[PodDemand], list[PodDemand]]:
    """What is counted of the steps, ``apart`` seconds from one to the next, the pods that are there, and those gone."""
    clock = Clock()
    seen = SeenPods(clock, MixWindow(seconds=1e6, most=3))
    there: dict[int, PodDemand] = {}
    gone: list[PodDemand] = []
    for n, wish in steps:
        clock.now += apart
        if wish is None:
            seen.gone(uid(n))
            before = there.pop(n, NONE)
            gone += [before] if before.asks else []
        else:
            seen.put(uid(n), wish)
            if wish.asks or n not in there:
                there[n] = wish
    return Counter(counts(seen)), Counter(there.values()), gone


@given(STEPS)
def test_counts_are_always_those_of_the_pods_that_are_there_and_the_last_that_are_gone(
    steps: list[tuple[int, PodDemand | None]],
) -> None:
    counted, there, gone = follow(steps, apart=60)
    expected = there + Counter(gone[-3:])
    assert counted == Counter({ask: expected[wish] for ask, wish in ASKS.items() if expected[wish]})


@given(STEPS)
@example([(0, HALF), (0, None), (0, WHOLE), (0, None)] + 3 * [(0, HALF), (0, None)])
def test_of_pods_that_went_in_the_same_minute_as_many_count_in_whatever_order(
    steps: list[tuple[int, PodDemand | None]],
) -> None:
    counted, there, gone = follow(steps, apart=0)
    of_gone = Counter({ask: counted[ask] - there[wish] for ask, wish in ASKS.items()})
    assert of_gone.total() == min(3, len(gone))
    assert all(0 <= of_gone[ask] <= gone.count(wish) for ask, wish in ASKS.items())
