"""What cards can pass each other."""

from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fractile.model.interconnect import Interconnect
from fractile.policy.cards.bandwidth import Matrix, Rings, matrix, ring, total
from tests.policy.cards.machines import DGX_1, MACHINES, NVSWITCH, Machine


def pairs_of(machine: Machine) -> Matrix:
    return matrix(tuple((n, machine.interconnect(n)) for n in range(len(machine.rows))))


def best_by_trying(pairs: Matrix, group: tuple[int, ...]) -> int:
    """Every ring, one after another."""
    if len(group) < 2:
        return 0
    first, rest = group[0], group[1:]
    return max(
        min(pairs[a][b] for a, b in zip((first, *way), (*way, first), strict=True)) for way in permutations(rest)
    )


@pytest.mark.parametrize(
    ("word", "nvlink", "pcie", "mb"),
    [
        pytest.param("NV4", 1, 3, 80_000, id="P100: 4 links of 20 GB/s"),
        pytest.param("NV6", 2, 3, 150_000, id="V100: 6 links of 25 GB/s"),
        pytest.param("NV12", 3, 4, 300_000, id="A100: 600 GB/s in both directions"),
        pytest.param("NV18", 4, 5, 450_000, id="H100: 900 GB/s in both directions"),
        pytest.param("NV18", 5, 6, 900_000, id="B200: 1.8 TB/s in both directions"),
        pytest.param("NV18", 9, 6, 900_000, id="a later one: at least that"),
        pytest.param("PIX", 0, 3, 11_977, id="behind one switch, PCIe 3"),
        pytest.param("SYS", 0, 3, 5_988, id="between sockets, PCIe 3"),
        pytest.param("PIX", 0, 4, 23_943, id="behind one switch, PCIe 4"),
        pytest.param("?", 0, 4, 0, id="not known"),
    ],
)
def test_a_pair_passes_what_is_published(word: str, nvlink: int, pcie: int, mb: int) -> None:
    sides = tuple(
        (n, Interconnect(f"X {word}" if n == 0 else f"{word} X", nvlink=nvlink, pcie=pcie, lanes=16)) for n in (0, 1)
    )
    assert matrix(sides) == ((0, mb), (mb, 0))


def test_of_the_levels_of_pcie_the_nearer_is_never_slower() -> None:
    def rate(word: str) -> int:
        return matrix(((0, Interconnect(f"X {word}")), (1, Interconnect(f"{word} X"))))[0][1]

    levels = [rate(word) for word in ("PIX", "PXB", "PHB", "NODE", "SYS")]
    assert levels == sorted(levels, reverse=True)
    assert len(set(levels)) == 5
    assert levels[-1] > 0


def test_the_slower_card_sets_the_pace_and_rows_that_disagree_count_for_the_less() -> None:
    fast, slow = Interconnect("X PIX", pcie=5, lanes=16), Interconnect("PIX X", pcie=3, lanes=8)
    assert matrix(((0, fast), (1, slow)))[0][1] == 985 * 8 * 76 // 100
    assert matrix(((0, Interconnect("X NV4", nvlink=3)), (1, Interconnect("SYS X"))))[0][1] == 985 * 16 * 38 // 100


def test_a_card_of_which_nothing_is_known_is_told_by_its_neighbour_or_counts_nothing() -> None:
    assert matrix(((0, Interconnect("X NV2", nvlink=2)), (1, None)))[1][0] == 50_000
    assert matrix(((0, None), (1, None))) == ((0, 0), (0, 0))
    assert matrix(((0, Interconnect("X")), (5, Interconnect("")))) == ((0, 0), (0, 0))


def test_cards_are_found_in_the_rows_by_their_index_when_others_are_lost() -> None:
    left = tuple((n, DGX_1.interconnect(n)) for n in (3, 7))
    assert matrix(left)[0][1] == 25_000


def test_all_cards_of_a_cube_mesh_have_a_ring_of_double_links() -> None:
    pairs = pairs_of(DGX_1)
    assert ring(pairs, tuple(range(8))) == 50_000
    assert ring(pairs, (0, 1, 2, 3)) == 25_000
    assert total(pairs, (0, 1, 2, 3)) == 9 * 25_000


@pytest.mark.parametrize("machine", MACHINES, ids=lambda m: m.name)
def test_the_best_ring_of_whole_machines_is_found(machine: Machine) -> None:
    pairs = pairs_of(machine)
    group = tuple(range(len(machine.rows)))
    assert ring(pairs, group) == best_by_trying(pairs, group)


@given(st.integers(1, 6).flatmap(lambda n: st.lists(st.integers(0, 3), min_size=n * n, max_size=n * n)), st.data())
def test_the_best_ring_is_what_trying_all_of_them_finds(rates: list[int], data: st.DataObject) -> None:
    n = int(len(rates) ** 0.5)
    pairs = tuple(tuple(0 if a == b else rates[min(a, b) * n + max(a, b)] for b in range(n)) for a in range(n))
    group = tuple(sorted(data.draw(st.sets(st.integers(0, n - 1), min_size=1))))
    assert ring(pairs, group) == best_by_trying(pairs, group)


def test_two_rings_side_by_side_are_none_and_neither_is_a_way_that_must_return_over_a_bridge() -> None:
    halves = tuple(tuple(int(a != b and (a < 3) == (b < 3)) for b in range(6)) for a in range(6))
    assert not Rings(halves, 1).through(range(6))
    bridged = tuple(tuple(int(has or {a, b} == {2, 3}) for b, has in enumerate(row)) for a, row in enumerate(halves))
    assert not Rings(bridged, 1).through(range(6))
    assert ring(pairs_of(NVSWITCH), (1, 4)) == 450_000
