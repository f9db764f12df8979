"""Kernels that a program tries to hide from the events by which the library knows what is in flight: work that is not
seen to be done counts as running, so the limit holds."""

import sys

from scene import Part, Terms, play, suite

LIMIT = 20  # percent
OVER = 2  # points
WINDOW = 60  # s
LONG = 3_000_000  # us


def keeps_its_limit(role: str, n: int = 1, us: int = LONG) -> None:
    part = Part("evil", role, f"us={us} n={n}")
    books = play({"evil": Terms(cores=LIMIT, limit=LIMIT)}, [part], WINDOW * 1000, sample=1000)
    share, not_paid_yet = books.share("evil", 0, WINDOW * 1000), 100 * LONG / (WINDOW * 1e6)
    assert LIMIT / 2 <= share <= LIMIT + OVER + not_paid_yet, share


def test_events_that_a_program_destroyed_say_nothing_when_it_records_them() -> None:
    keeps_its_limit("old_events")


def test_a_stream_beside_many_that_are_held_back_is_paid_for() -> None:
    keeps_its_limit("many_streams", n=132)


def test_a_capture_elsewhere_hides_no_kernel() -> None:
    keeps_its_limit("capture_beside")


def test_a_capture_that_ends_with_its_stream_hides_no_kernel() -> None:
    keeps_its_limit("capture_ends")


def test_a_callback_hides_no_kernel_of_a_threads_own_stream() -> None:
    keeps_its_limit("own_stream", us=12_500_000)  # the first kernel takes the whole share


if __name__ == "__main__":
    sys.exit(suite.run(globals()))
