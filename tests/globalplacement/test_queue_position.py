"""Which pods kube-scheduler takes before it could see a nomination."""

import heapq
from collections import deque
from itertools import count

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fractile.globalplacement.queue_position import QueuePositions
from fractile.model.units import PodUID
from tests.builders import Clock


def uid(number: int) -> PodUID:
    return PodUID(f"uid-{number}")


def front(clock: Clock | None = None, *, pods: int = 100) -> QueuePositions:
    made = QueuePositions(clock or Clock())
    for number in range(pods):
        made.came(uid(number))
    return made


class Race(msgspec.Struct):
    """A burst, kube-scheduler and those who write nominations, in played time: seconds. A nomination is seen
    ``latency`` after it was begun; a pod takes kube-scheduler ``normal`` or, nominated in time, ``quick``."""

    arrival: float
    latency: float = 0.4
    normal: float = 0.045
    quick: float = 0.008
    writers: int = 16
    pods: int = 1000
    written: int = 0
    in_time: int = 0
    seconds: float = 0.0

    def run(self, *, skipping: bool = True) -> "Race":
        clock = Clock()
        clock.now = 0.0
        made, order = QueuePositions(clock), count()
        events = [(n * self.arrival, next(order), "come", n, 0) for n in range(self.pods)]
        waiting, to_write = deque[int](), deque[int]()
        seen, taken, busy, writing = set[int](), set[int](), False, 0
        while events:
            clock.now, _, what, pod, before = heapq.heappop(events)
            match what:
                case "come":
                    made.came(uid(pod))
                    waiting.append(pod)
                    to_write.append(pod)
                case "seen":
                    seen.add(pod)
                    made.written(before)
                    writing -= 1
                case _:
                    made.took(uid(pod))
                    taken.add(pod)
                    busy, self.seconds = False, clock.now
            while to_write and writing < self.writers:
                pod = to_write.popleft()
                if pod not in taken and not (skipping and made.too_late(uid(pod))):
                    writing, self.written = writing + 1, self.written + 1
                    heapq.heappush(events, (clock.now + self.latency, next(order), "seen", pod, made.taken))
            if waiting and not busy:
                pod, busy = waiting.popleft(), True
                self.in_time += pod in seen
                until = clock.now + (self.quick if pod in seen else self.normal)
                heapq.heappush(events, (until, next(order), "taken", pod, 0))
        return self


def take(made: QueuePositions, numbers: range, *, writes: int) -> None:
    """So many nominations are written, one after the other, while these pods are taken."""
    each = len(numbers) // writes
    for write in range(writes):
        before = made.taken
        for number in numbers[write * each : (write + 1) * each]:
            made.took(uid(number))
        made.written(before)


def test_at_first_nobody_is_left_out() -> None:
    made = front()
    assert not any(made.too_late(uid(n)) for n in range(100))


def test_nor_when_nobody_is_taken_during_a_nomination() -> None:
    made = front()
    made.took(uid(0))
    for _ in range(10):
        made.written(made.taken)
    assert made.reach == 0
    assert not made.too_late(uid(1))


def test_twice_as_many_are_left_out_as_are_taken_during_a_nomination() -> None:
    made = front()
    take(made, range(80), writes=20)
    assert made.reach == 2 * 4 + 1
    assert [n for n in range(80, 100) if made.too_late(uid(n))] == list(range(80, 80 + made.reach))


def test_a_pod_that_is_not_among_them_is_not_too_late() -> None:
    made = front()
    take(made, range(80), writes=20)
    made.forget(uid(81))
    assert not made.too_late(uid(81))
    assert not made.too_late(PodUID("stranger"))


def test_what_was_long_ago_is_forgotten() -> None:
    clock = Clock()
    made = front(clock)
    take(made, range(80), writes=20)
    assert made.too_late(uid(80))
    clock.now += 60
    assert not made.too_late(uid(80))


def test_a_pod_in_its_hands_is_too_late_until_it_is_forgotten() -> None:
    made = front()
    made.took(uid(5))
    made.came(uid(5))
    assert made.reach == 0
    assert made.too_late(uid(5))
    made.forget(uid(5))
    assert not made.too_late(uid(5))


def test_a_pod_counts_once_and_one_that_never_came_not_at_all() -> None:
    made = front()
    for _ in range(2):
        made.took(uid(3))
    made.took(PodUID("stranger"))
    assert made.taken == 1


@pytest.mark.parametrize("writers", [8, 16])
def test_a_burst_is_placed_sooner_than_when_all_are_nominated_in_turn(writers: int) -> None:
    skipping = Race(arrival=0.01, writers=writers).run()
    all_in_turn = Race(arrival=0.01, writers=writers).run(skipping=False)
    assert skipping.in_time > 1.2 * all_in_turn.in_time
    assert skipping.in_time > 0.85 * skipping.written > 300
    assert skipping.seconds < 0.9 * all_in_turn.seconds


def test_where_kube_scheduler_has_no_backlog_nobody_is_nominated_in_vain() -> None:
    assert Race(arrival=0.05).run(skipping=False).written > 900
    assert Race(arrival=0.05).run().written < 100


def test_where_nominations_are_quick_nearly_all_come_in_time() -> None:
    race = Race(arrival=0.008, latency=0.05, normal=0.03, quick=0.004).run()
    assert race.in_time > 800


@given(st.lists(st.integers(min_value=0, max_value=99), unique=True, max_size=99), st.integers(0, 5))
def test_those_behind_one_that_is_not_too_late_are_not_too_late_either(taken: list[int], writes: int) -> None:
    made = front()
    for number in taken:
        before = made.taken
        made.took(uid(number))
        made.came(uid(number))  # an event that comes late
        for _ in range(writes):
            made.written(before)
    late = [made.too_late(uid(n)) for n in range(100) if n not in taken]
    assert late == sorted(late, reverse=True)
