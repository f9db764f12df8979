"""Time that several containers have on a card together: a limit holds, whatever the neighbours do with their turns, and
in however many contexts a container launches."""

import sys

from scene import Books, Part, Terms, near, play, suite

LIMIT, OVER = 20, 3  # points
WINDOW = 60  # s
LIMITED, OTHER = Terms(cores=LIMIT, limit=LIMIT), Terms(cores=80)
CONTEXTS = 30


def scene(*parts: Part, seconds: int = WINDOW, real: bool = False) -> Books:
    return play({"evil": LIMITED, "other": OTHER}, list(parts), seconds * 1000, sample=1000, real=real)


def keeps_its_limit(books: Books) -> None:
    share = books.share("evil", 0, WINDOW * 1000)
    assert LIMIT / 2 <= share <= LIMIT + OVER, share


def test_a_neighbour_that_never_gives_its_turn_back_lifts_no_limit() -> None:
    for processes in (1, 10):
        for us in (1000, 20000, 500000):
            still = Part("other", "late", processes=processes)
            keeps_its_limit(scene(still, Part("evil", "work", f"us={us}")))


def test_a_neighbour_that_is_stopped_lifts_no_limit() -> None:
    """In real time: the virtual clock would wait for processes that are stopped."""
    for processes in (1, 10):
        still = Part("other", "stops", "us=1000", processes=processes)
        books = scene(still, Part("evil", "work", "us=1000"), seconds=15, real=True)
        share = books.share("evil", 0, 15000)
        assert 2 <= share <= LIMIT + 6, share  # the tolerance is 3 points of this window; a busy machine takes some


def test_a_neighbour_whose_graphs_sleep_lifts_no_limit() -> None:
    seconds = 10
    sleeper = Part("other", "graph_sleeps", "us=1000 before=300", processes=10)
    share = scene(sleeper, Part("evil", "work", "us=1000"), seconds=seconds).share("evil", 0, seconds * 1000)
    assert LIMIT / 4 <= share <= LIMIT + 2 * OVER, share  # the tolerance is 5 points of this window


def test_ten_neighbours_that_never_give_their_turns_back_lift_no_limit() -> None:
    still = [Part(f"still{i}", "late") for i in range(10)]
    terms = {"evil": LIMITED, **{p.container: Terms(cores=8) for p in still}}
    books = play(terms, [*still, Part("evil", "work", "us=1000")], WINDOW * 1000, sample=1000)
    keeps_its_limit(books)


def test_many_contexts_keep_the_limit_alone_and_beside_a_neighbour() -> None:
    seconds = 400  # of 30 kernels of half a second one may run and the others wait in the driver, not paid for yet
    for us in (20_000, 100_000, 500_000):
        evil = Part("evil", "contexts", f"us={us} n={CONTEXTS}")
        for others in ([], [Part("other", "work", "us=1000")], [Part("other", "work", "us=500000")]):
            share = scene(evil, *others, seconds=seconds).share("evil", 0, seconds * 1000)
            assert share <= LIMIT + OVER, (us, others, share)


def test_a_tenant_with_a_limit_has_its_share_beside_long_kernels() -> None:
    """Kernels that are known to be long are not late, so their time is charged once."""
    for us in (20_000, 500_000, 1_500_000):
        books = scene(Part("evil", "work", "us=1000"), Part("other", "work", f"us={us}"))
        near(books.share("evil", 0, WINDOW * 1000), LIMIT, 3)


if __name__ == "__main__":
    sys.exit(suite.run(globals()))
