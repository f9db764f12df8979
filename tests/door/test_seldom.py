"""A line at most every ten seconds, with the number of what it speaks of."""

from fractile.door.seldom import Seldom


def test_what_was_not_said_is_counted_in_the_next_line() -> None:
    now = [0.0]
    seldom = Seldom(lambda: now[0])
    said: list[int] = []
    for moment in (0.0, 1.0, 9.9, 10.0, 30.0):
        now[0] = moment
        said.append(seldom.happened())
    assert said == [1, 0, 0, 3, 1]
    assert seldom.total == 5
