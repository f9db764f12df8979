"""Kernels that spin until their peers on other cards have begun, like those of a collective library, under leases:
tensor parallel in one container over 2, 4 and 8 cards. No kernel waits forever, and no round is delayed for longer than
the others' turns. Runs under the virtual clock."""

import sys

from scene import Part, Terms, near, play, suite

SETTLED = 1000  # ms: until the cards are known to be used together
ROUND_US = 500


def ring(cards: int) -> str:
    return f"us={ROUND_US} cards={':'.join(map(str, range(cards)))}"


def late_rounds(latencies: list[int], bound_ms: float) -> list[int]:
    """Rounds above the bound, without the first few, in which the arbiter learns which cards are used together."""
    return [us for us in latencies[20:] if us > bound_ms * 1000]


def test_alone_the_rounds_go_on_at_full_speed() -> None:
    for cards in (2, 4, 8):
        b = play({"a": Terms(cores=50)}, [Part("a", "ring", ring(cards))], 2000, cards=cards)
        assert len(b.latencies["a"]) > 0.8 * 2000 * 1000 / ROUND_US / 1.1, len(b.latencies["a"])


def test_two_containers_over_the_same_cards_progress_at_their_shares_and_stall_for_no_more_than_a_turn() -> None:
    for cards in (2, 4, 8):
        terms = {"a": Terms(cores=50), "b": Terms(cores=50)}
        b = play(terms, [Part(c, "ring", ring(cards)) for c in "ab"], 4000, cards=cards)
        rounds = {c: len(b.latencies[c]) for c in "ab"}
        assert min(rounds.values()) > 0.35 * 4000 * 1000 / ROUND_US, (cards, rounds)
        near(b.share("a", SETTLED, 4000), 50, 6)
        for c in "ab":
            assert not late_rounds(b.latencies[c], 30), (cards, c, late_rounds(b.latencies[c], 30)[:10])


def test_beside_one_on_a_single_card_all_progress() -> None:
    for cards in (2, 4, 8):
        terms = {"a": Terms(cores=50), "b": Terms(cores=50)}
        b = play(terms, [Part("a", "ring", ring(cards)), Part("b", "work", "us=1000")], 4000, cards=cards)
        assert len(b.latencies["a"]) > 0.35 * 4000 * 1000 / ROUND_US, (cards, len(b.latencies["a"]))
        near(b.share("b", SETTLED, 4000), 48, 6)
        assert not late_rounds(b.latencies["a"], 40), (cards, late_rounds(b.latencies["a"], 40)[:10])


def ranks(container: str, number: int, cards: int) -> list[Part]:
    """One process for each card, as torchrun starts them; each computes before it meets the others."""
    words = f"us={ROUND_US} before=1000 ring={number} peers={cards}"
    return [Part(container, "ring", f"{words} cards={i}") for i in range(cards)]


def progresses(latencies: list[int], rounds: int, longest_ms: float) -> None:
    assert len(latencies) >= rounds, len(latencies)
    assert not late_rounds(latencies, longest_ms), late_rounds(latencies, longest_ms)[:10]


HALF = Terms(cores=50)


def test_rings_that_compute_before_they_meet_do_not_stall() -> None:
    for cards in (2, 4):
        words = f"{ring(cards)} before=300"
        b = play({"a": HALF, "b": HALF}, [Part(c, "ring", words) for c in "ab"], 4000, cards=cards)
        for c in "ab":
            progresses(b.latencies[c], 800, 60)


def test_rings_of_one_process_for_each_card_do_not_stall() -> None:
    for cards in (2, 4):
        b = play({"a": HALF, "b": HALF}, [*ranks("a", 1, cards), *ranks("b", 2, cards)], 4000, cards=cards)
        for c in "ab":
            progresses(b.latencies[c], 200, 60)


def test_a_ring_of_processes_beside_busy_programs_on_all_cards_does_not_stall() -> None:
    work = [Part("b", "work", f"us=1000 cards={i}") for i in (0, 1)]
    b = play({"a": HALF, "b": HALF}, [*ranks("a", 1, 2), *work], 4000)
    progresses(b.latencies["a"], 500, 60)


def test_a_ring_of_processes_beside_a_busy_program_on_one_card_does_not_stall() -> None:
    b = play({"a": HALF, "b": HALF}, [*ranks("a", 1, 2), Part("b", "work", "us=1000")], 4000)
    progresses(b.latencies["a"], 500, 60)


def test_a_ring_of_processes_keeps_its_limit_and_does_not_stall() -> None:
    b = play({"a": Terms(cores=50, limit=50)}, ranks("a", 1, 2), 4000)
    progresses(b.latencies["a"], 700, 60)
    assert b.share("a", SETTLED, 4000) < 54, b.share("a", SETTLED, 4000)


def test_processes_that_meet_on_one_card_do_not_stall_beside_a_busy_neighbour() -> None:
    words = f"us={ROUND_US} before=1000 ring=1 peers=2 room=10"
    parts = [Part("a", "ring", words), Part("a", "ring", words), Part("b", "work", "us=1000")]
    b = play({"a": HALF, "b": HALF}, parts, 4000)
    progresses(b.latencies["a"], 60, 150)  # each turn may end between two kernels that wait for each other


def test_processes_that_meet_on_one_card_keep_their_limit_and_do_not_stall() -> None:
    words = f"us={ROUND_US} before=1000 ring=1 peers=2 room=10"
    b = play({"a": Terms(cores=50, limit=50)}, [Part("a", "ring", words), Part("a", "ring", words)], 4000)
    progresses(b.latencies["a"], 150, 100)
    assert b.share("a", SETTLED, 4000) < 56, b.share("a", SETTLED, 4000)


def test_streams_that_meet_on_one_card_do_not_stall_beside_a_busy_neighbour() -> None:
    parts = [Part("a", "ring", f"us={ROUND_US} before=500 cards=0:0 room=10"), Part("b", "work", "us=1000")]
    b = play({"a": HALF, "b": HALF}, parts, 4000)
    progresses(b.latencies["a"], 600, 60)


def test_alone_on_the_card_a_kernel_that_runs_all_the_time_delays_no_other() -> None:
    b = play({"a": HALF}, [Part("a", "persistent", "us=200 peers=2 room=10")], 3000)
    progresses(b.latencies["a"], 50, 10)


if __name__ == "__main__":
    sys.exit(suite.run(globals()))
