"""Which pods kube-scheduler takes before it could see a nomination."""

from hypothesis import given
from hypothesis import strategies as st

from fractile.control.front import Front
from fractile.model.units import PodUID
from tests.builders import Clock


def uid(number: int) -> PodUID:
    return PodUID(f"uid-{number}")


def front(clock: Clock | None = None, *, pods: int = 100) -> Front:
    made = Front(clock or Clock())
    for number in range(pods):
        made.came(uid(number))
    return made


def take(made: Front, numbers: range, *, writes: int) -> None:
    """So many nominations are written, one after the other, while these pods are taken."""
    each = len(numbers) // writes
    for write in range(writes):
        before = made.taken
        for number in numbers[write * each : (write + 1) * each]:
            made.begun(uid(number))
        made.written(before)


def test_at_first_nobody_is_left_out() -> None:
    made = front()
    assert not any(made.too_late(uid(n)) for n in range(100))


def test_nor_when_nobody_is_taken_during_a_nomination() -> None:
    made = front()
    made.begun(uid(0))
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


def test_a_pod_counts_once_and_one_that_never_came_not_at_all() -> None:
    made = front()
    for _ in range(2):
        made.begun(uid(3))
    made.begun(PodUID("stranger"))
    assert made.taken == 1


@given(st.lists(st.integers(min_value=0, max_value=99), unique=True, max_size=99), st.integers(0, 5))
def test_those_behind_one_that_is_not_too_late_are_not_too_late_either(taken: list[int], writes: int) -> None:
    made = front()
    for number in taken:
        before = made.taken
        made.begun(uid(number))
        made.came(uid(number))  # an event that comes late
        for _ in range(writes):
            made.written(before)
    late = [made.too_late(uid(n)) for n in range(100) if n not in taken]
    assert late == sorted(late, reverse=True)
