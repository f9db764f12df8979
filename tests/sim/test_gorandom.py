"""Numbers that Go's math/rand drew, by a program of a few lines under Go 1.24; seeds are reduced modulo 2^31 - 1."""

import pytest

from fractile.sim.gorandom import GoRandom

BOUNDS = (1, 2, 7, 1000, 8152, 1 << 30, (1 << 30) + 1, 2_000_000_000)


@pytest.mark.parametrize(
    ("seed", "below", "shuffled", "permuted", "last"),
    [
        pytest.param(
            42,
            [0, 1, 4, 750, 887, 822901345, 825591176, 822582128],
            [5, 4, 8, 7, 3, 0, 2, 1, 9, 6],
            [1, 2, 3, 5, 6, 10, 4, 0, 7, 9, 8, 11],
            654018,
            id="42",
        ),
        pytest.param(
            0,
            [0, 0, 0, 506, 4899, 621654496, 413258767, 1407315077],
            [3, 4, 0, 7, 9, 5, 6, 2, 1, 8],
            [8, 7, 9, 6, 3, 1, 4, 11, 2, 5, 10, 0],
            928867,
            id="0, for which another number stands",
        ),
        pytest.param(
            5_000_000_000,
            [0, 1, 6, 182, 2973, 840691320, 104525676, 1509677087],
            [7, 6, 1, 8, 9, 5, 2, 4, 3, 0],
            [9, 1, 11, 5, 0, 7, 8, 3, 2, 10, 4, 6],
            848197,
            id="more than 31 bits",
        ),
    ],
)
def test_the_same_seed_draws_what_a_program_in_go_draws(
    seed: int, below: list[int], shuffled: list[int], permuted: list[int], last: int
) -> None:
    random = GoRandom(seed)
    items = list(range(10))

    assert [random.randrange(n) for n in BOUNDS] == below
    random.shuffle(items)
    assert items == shuffled
    assert random.permutation(12) == permuted
    random.skip(1000)  # more than the words that are held
    assert random.randrange(1_000_000) == last


def test_every_number_below_the_bound_is_drawn_equally_often() -> None:
    random = GoRandom(7)
    drawn = [random.randrange(6) for _ in range(6_000)]

    assert all(870 < drawn.count(n) < 1130 for n in range(6))  # four and a half deviations
