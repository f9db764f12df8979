"""Graphs with host nodes. One that waits for what the program launches later goes on beside a busy neighbour, and a
program that puts host nodes into its graphs keeps its limit."""

import sys

from scene import Books, Part, Terms, play, suite

SHARED, EVIL, HONEST = Terms(cores=20), Terms(cores=20, limit=20), Terms(cores=80)
OVER = 2  # points
WINDOW = 30  # s
SECOND = 1_000_000  # us
BUSY = Part("honest", "work", "us=5000")


def played(part: Part, terms: Terms, beside: bool) -> Books:
    containers = {part.container: terms} | ({"honest": HONEST} if beside else {})
    return play(containers, [part, BUSY] if beside else [part], WINDOW * 1000, sample=1000)


def share(books: Books, container: str) -> float:
    return books.share(container, 0, WINDOW * 1000)


def rounds(words: str, terms: Terms, beside: bool) -> float:
    """A round is one graph of three pieces of work, and 20 kernels of 5 ms on which it depends."""
    books = played(Part("waits", "graph_waits", f"n=20 us=5000 {words}"), terms, beside)
    return books.kernels("waits", 0, WINDOW * 1000) / 22


def test_a_graph_that_waits_for_later_launches_goes_on_beside_a_busy_neighbour() -> None:
    for words in ("sync=1", "sync=0"):
        done = rounds(words, SHARED, beside=True)
        assert done >= WINDOW / 10, (words, done)


def test_a_graph_that_waits_goes_on_under_a_limit() -> None:
    for words in ("sync=1", "sync=0"):
        done = rounds(words, EVIL, beside=False)
        assert done >= WINDOW / 5, (words, done)


def test_graphs_with_host_nodes_keep_the_limit_of_a_container_alone() -> None:
    for us, n in ((2_000, 1), (60_000, 4), (3 * SECOND, 1)):
        books = played(Part("evil", "host_nodes", f"us={us} n={n}"), EVIL, beside=False)
        not_paid_yet = 100 * us * n / (WINDOW * SECOND)
        assert share(books, "evil") <= 20 + OVER + not_paid_yet, (us, share(books, "evil"))


def test_graphs_with_host_nodes_leave_a_neighbour_its_share() -> None:
    for us, n in ((2_000, 1), (60_000, 4)):
        books = played(Part("evil", "host_nodes", f"us={us} n={n}"), EVIL, beside=True)
        assert share(books, "evil") <= 20 + OVER, (us, share(books, "evil"))
        assert share(books, "honest") >= 80 - 3 * OVER, (us, share(books, "honest"))


def test_a_host_node_that_never_ends_gives_no_more_than_the_limit() -> None:
    for words in ("us=5000", "us=60000", "us=5000 before=1", "us=60000 before=1"):
        for beside in (False, True):
            books = played(Part("evil", "graph_never", f"n=20 {words}"), EVIL, beside)
            assert share(books, "evil") <= 20 + OVER, (words, beside, share(books, "evil"))


def test_processes_that_all_hold_a_waiting_graph_have_one_limit_together() -> None:
    seconds = 10
    evil = Part("evil", "graph_never", "n=20 us=5000", processes=10)
    books = play({"evil": EVIL}, [evil], seconds * 1000, sample=1000)
    got = books.share("evil", 0, seconds * 1000)
    assert got <= 20 + 2 * OVER, got


if __name__ == "__main__":
    sys.exit(suite.run(globals()))
