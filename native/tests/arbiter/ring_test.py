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


if __name__ == "__main__":
    sys.exit(suite.run(globals()))
