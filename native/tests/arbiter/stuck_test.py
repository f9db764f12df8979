"""Kernels that take much longer than a turn: limits and guarantees hold over a long time, whatever the length of the
kernels, and however many processes and containers launch them."""

import sys

from scene import Books, Part, Terms, play, suite

EVIL, HONEST = Terms(cores=20, limit=20), Terms(cores=80)
OVER = 2  # points
WINDOW = 400  # s
SECOND = 1_000_000  # us


def alone(part: Part) -> Books:
    return play({"evil": EVIL}, [part], WINDOW * 1000, sample=1000)


def beside_an_honest_one(part: Part) -> Books:
    return play(
        {"evil": EVIL, "honest": HONEST}, [part, Part("honest", "work", "us=20000")], WINDOW * 1000, sample=1000
    )


def share(books: Books, container: str) -> float:
    return books.share(container, 0, WINDOW * 1000)


def not_paid_yet(us: int, processes: int = 1) -> float:
    """Percent of the window that may not be paid yet: for each process one kernel that was running at its end."""
    return 100 * us * processes / (WINDOW * SECOND)


def keeps_its_limit(books: Books, us: int, processes: int = 1) -> None:
    assert 10 <= share(books, "evil") <= 20 + OVER + not_paid_yet(us, processes), share(books, "evil")


def has_its_share(books: Books, us: int, processes: int = 1) -> None:
    assert share(books, "honest") >= 80 - OVER - not_paid_yet(us, processes), share(books, "honest")


def test_kernels_of_any_length_keep_the_limit_of_a_container_alone() -> None:
    for us in (SECOND, 5 * SECOND, 7 * SECOND, 9 * SECOND):
        for role in ("work", "fresh"):
            keeps_its_limit(alone(Part("evil", role, f"us={us}")), us)


def test_kernels_of_any_length_leave_a_neighbour_its_share() -> None:
    for us, role in ((7 * SECOND, "work"), (9 * SECOND, "fresh")):
        books = beside_an_honest_one(Part("evil", role, f"us={us}"))
        keeps_its_limit(books, us)
        has_its_share(books, us)


def test_several_streams_give_no_more() -> None:
    for us in (3 * SECOND, 9 * SECOND):
        keeps_its_limit(alone(Part("evil", "fresh", f"us={us} n=8")), us, 8)


def test_several_processes_give_no_more() -> None:
    for us, processes in ((SECOND // 2, 10), (3 * SECOND, 8)):
        keeps_its_limit(alone(Part("evil", "fresh", f"us={us}", processes=processes)), us, processes)


def test_several_processes_that_are_late_leave_a_neighbour_its_share() -> None:
    us, processes = SECOND // 2, 10
    books = beside_an_honest_one(Part("evil", "work", f"us={us}", processes=processes))
    keeps_its_limit(books, us, processes)
    has_its_share(books, us, processes)


def test_several_containers_that_are_late_leave_a_neighbour_its_share() -> None:
    evil = {f"evil{i}": Terms(cores=10, limit=10) for i in range(3)}
    parts = [Part(name, "work", f"us={SECOND}", processes=4) for name in evil]
    honest = Part("honest", "work", "us=20000")
    books = play({**evil, "honest": Terms(cores=70)}, [*parts, honest], WINDOW * 1000, sample=1000)
    assert share(books, "honest") >= 70 - OVER - not_paid_yet(SECOND, 12), share(books, "honest")


if __name__ == "__main__":
    sys.exit(suite.run(globals()))
