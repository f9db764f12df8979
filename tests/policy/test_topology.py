"""Which free cards belong together: on machines as they are sold, in every state that they can be in."""

from functools import cache
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fractile.policy import topology
from fractile.policy.bandwidth import Matrix, matrix, ring, total
from fractile.policy.cards import choose
from tests.builders import by_card, by_memory, by_share, by_slots, request
from tests.policy.machines import DGX_1, IRREGULAR_16, MACHINES, MIXED, NVSWITCH, PCIE, PCIE_16, Machine
from tests.policy.test_bandwidth import best_by_trying

Positions = tuple[int, ...]


def pairs_of(machine: Machine) -> Matrix:
    return matrix(tuple((n, machine.interconnect(n)) for n in range(len(machine.rows))))


def states(machine: Machine) -> list[Positions]:
    """Every set of free cards that is not empty."""
    cards = range(len(machine.rows))
    return [free for n in cards for free in combinations(cards, n + 1)]


@cache
def worth(machine: Machine, group: Positions) -> tuple[int, int, int]:
    """Fewest models, best ring, largest sum; smaller is better. The ring by trying all of them."""
    pairs = pairs_of(machine)
    return len({machine.kinds[a][0] for a in group}), -best_by_trying(pairs, group), -total(pairs, group)


@pytest.mark.parametrize("machine", MACHINES, ids=lambda m: m.name)
def test_link_is_the_optimum_of_all_groups_in_every_state_of_the_machine(machine: Machine) -> None:
    pairs = pairs_of(machine)
    for free in states(machine):
        for count in range(1, len(free) + 1):
            chosen = topology.closest(pairs, machine.kinds, free, count)
            assert len(chosen) == count
            assert set(chosen) <= set(free)
            assert chosen == tuple(sorted(chosen))
            best = min(worth(machine, group) for group in combinations(free, count))
            assert worth(machine, chosen) == best, (free, count, chosen)


@pytest.mark.parametrize("machine", MACHINES, ids=lambda m: m.name)
def test_among_groups_that_are_equally_good_the_whole_order_decides(machine: Machine) -> None:
    pairs = pairs_of(machine)

    def order(group: Positions, free: Positions) -> tuple[object, ...]:
        left = total(pairs, [a for a in free if a not in group])
        return *worth(machine, group), sum(machine.kinds[a][1] for a in group), -left, group

    for free in states(machine)[::3]:
        for count in (1, 2, 3, 4):
            if count <= len(free):
                best = min(combinations(free, count), key=lambda g: order(g, free))
                assert topology.closest(pairs, machine.kinds, free, count) == best


def chosen(machine: Machine, count: int, free: Positions | None = None, policy: str = "") -> list[int]:
    state = machine.state(free)
    (container,) = choose(request(by_card(count)), state, policy) or []
    return [c.index for c in state.cards if c.uuid in {s.card for s in container.slices}]


def test_link_takes_the_pair_with_two_links_and_not_the_lowest_indexes() -> None:
    assert chosen(DGX_1, 2) == [0, 3]
    assert chosen(DGX_1, 2, policy="binpack") == [0, 1]


def test_link_takes_cards_behind_one_switch() -> None:
    assert chosen(PCIE, 2, (1, 2, 4, 6, 7)) == [6, 7]
    assert chosen(PCIE, 4, (1, 2, 3, 4, 5, 6, 7)) == [4, 5, 6, 7]


def test_link_leaves_the_others_together() -> None:
    # Three of four: any pair is as good, but one leaves a pair behind one switch.
    assert chosen(PCIE, 1, (0, 2, 3), policy="link") == [0]
    assert chosen(PCIE, 1, (0, 1, 2), policy="link") == [2]


def test_link_keeps_to_one_model() -> None:
    assert chosen(MIXED, 2, (2, 4, 6, 7)) == [6, 7]
    assert chosen(MIXED, 2, (0, 1, 4, 5)) == [0, 1]


def test_one_card_comes_from_the_most_broken_up_branch() -> None:
    assert chosen(PCIE, 1, (0, 1, 2, 3, 5, 6, 7)) == [5]
    assert chosen(PCIE, 1, (0, 1, 2, 4, 5, 6, 7)) == [2]
    assert chosen(PCIE, 1) == [0]


def test_a_branch_that_is_whole_stays_whole_while_another_is_broken_up() -> None:
    words = [["X" if a == b else "PIX" if (a < 4) == (b < 4) else "SYS" for b in range(6)] for a in range(6)]
    uneven = Machine("4+2 cards", tuple(map(" ".join, words)), (("A", 1),) * 6)
    pairs = pairs_of(uneven)
    assert topology.fragment(pairs, uneven.kinds, (0, 1, 3, 4, 5), 1) == (0,)
    assert topology.fragment(pairs, uneven.kinds, (0, 1, 2, 3, 4, 5), 1) == (4,)
    assert topology.fragment(pairs, uneven.kinds, (0, 1, 3, 5), 1) == (5,)


def test_one_card_of_a_mixed_machine_is_a_small_one() -> None:
    assert chosen(MIXED, 1) == [6]
    assert chosen(MIXED, 1, (0, 1, 2, 4)) == [4]


def test_several_cards_by_fragment_are_the_closest_of_the_most_broken_up_branch() -> None:
    assert chosen(PCIE, 2, (0, 1, 2, 3, 4, 6, 7), policy="fragment") == [6, 7]
    assert chosen(PCIE, 3, (0, 1, 2, 3, 4, 6, 7), policy="fragment") == [4, 6, 7]


def test_a_part_of_a_card_is_best_fit_whatever_the_interconnect() -> None:
    state = DGX_1.state((2, 5))
    for policy in ("", "topology", "share", "link", "fragment"):
        (container,) = choose(request(by_share()), state, policy) or []
        assert [s.card for s in container.slices] == ["GPU-n-2"], policy


def test_parts_of_several_cards_are_near_each_other_where_link_is_asked_for() -> None:
    state = DGX_1.state()
    (near,) = choose(request(by_slots(2)), state, "link") or []
    (packed,) = choose(request(by_slots(2)), state) or []
    assert [s.card for s in near.slices] == ["GPU-n-0", "GPU-n-3"]
    assert [s.card for s in packed.slices] == ["GPU-n-0", "GPU-n-1"]
    assert choose(request(by_slots(3)), DGX_1.state((1, 2)), "link") is None


def test_two_containers_get_a_group_each_beside_a_part_for_a_third() -> None:
    state = NVSWITCH.state()
    found = choose(request(by_card(2, "a"), by_card(4, "b"), by_memory(10, "c")), state) or ()
    taken = [s.card for c in found for s in c.slices]
    assert len(taken) == len(set(taken)) == 7


@given(st.sets(st.integers(0, 15), min_size=1), st.integers(1, 16), st.sampled_from([PCIE_16, IRREGULAR_16]))
def test_sixteen_cards_are_searched_exactly(free: set[int], count: int, machine: Machine) -> None:
    pairs, cards, count = pairs_of(machine), tuple(sorted(free)), min(count, 3, len(free))
    found = topology.closest(pairs, machine.kinds, cards, count)
    best = max((ring(pairs, g), total(pairs, g)) for g in combinations(cards, count))
    assert (ring(pairs, found), total(pairs, found)) == best


def test_a_machine_that_is_too_large_to_search_still_gets_a_close_group() -> None:
    words = [["X" if a == b else "PIX" if a // 4 == b // 4 else "SYS" for b in range(40)] for a in range(40)]
    for n, row in enumerate(words):
        row[(n + 7) % 40] = "?"  # so that no two cards can change places
    large = Machine("40 cards", tuple(map(" ".join, words)), (("A", 1),) * 40)
    found = topology.closest(pairs_of(large), large.kinds, tuple(range(1, 40)), 4)
    assert ring(pairs_of(large), found) == ring(pairs_of(large), (4, 5, 6, 7))
