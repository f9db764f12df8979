"""Which free cards belong together: on machines as they are sold, in every state that they can be in."""

import random
import time
from collections.abc import Sequence
from functools import cache, partial
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fractile.model.interconnect import Interconnect
from fractile.policy.cards import groups, topology, wide
from fractile.policy.cards.bandwidth import Matrix, at_least, bits, matrix, ring, total
from fractile.policy.cards.choice import choose
from fractile.policy.cards.topology import Kinds
from tests.builders import by_card, by_memory, by_share, by_slots, request
from tests.policy.cards.machines import (
    DGX_1,
    IRREGULAR_16,
    MACHINES,
    MIXED,
    NVSWITCH,
    PCIE,
    PCIE_16,
    V100,
    Machine,
    irregular,
)
from tests.policy.cards.test_bandwidth import best_by_trying
from tests.processor import spent

pytestmark = pytest.mark.slow

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


def test_one_card_is_taken_from_the_branch_that_is_most_broken_up() -> None:
    free = (0, 1, 5, 7)
    assert chosen(PCIE, 1, free) == chosen(PCIE, 1, free, policy="fragment") == [0]
    assert chosen(PCIE, 1, free, policy="link") == [5]


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


def test_parts_of_several_cards_are_found_where_just_as_many_have_room() -> None:
    state = DGX_1.state((1, 2))
    (found,) = choose(request(by_slots(2)), state, "link") or []
    assert sorted(s.card for s in found.slices) == ["GPU-n-1", "GPU-n-2"]


def test_each_container_gets_cards_that_are_joined_best() -> None:
    found = choose(request(by_card(2, "a"), by_card(2, "b")), DGX_1.state(), "link") or ()
    assert [[s.card for s in c.slices] for c in found] == [["GPU-n-0", "GPU-n-3"], ["GPU-n-1", "GPU-n-2"]]


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


class Held:
    """Rings by Held and Karp (1962): where can a way through all of a set end that starts at its lowest card?"""

    def __init__(self, pairs: Matrix, rate: int) -> None:
        self.near = at_least(pairs, rate)
        self.known: dict[int, int] = {}

    def ends(self, mine: int) -> int:
        if mine not in self.known:
            start = mine & -mine
            others = mine ^ start
            if others.bit_count() == 1:
                self.known[mine] = others & self.near[start.bit_length() - 1]
            else:
                reached = (a for a in bits(others) if self.near[a] & self.ends(mine ^ 1 << a) & ~start)
                self.known[mine] = sum(1 << a for a in reached)
        return self.known[mine]

    def through(self, group: Positions) -> bool:
        mine = sum(1 << a for a in group)
        return bool(self.ends(mine) & self.near[group[0]])


def by_all_groups(pairs: Matrix, kinds: Kinds, free: Positions, count: int) -> Positions:
    """The first of all groups, one by one, in the order that the module names; three cards or more."""

    def models(group: Positions) -> int:
        return len({kinds[a][0] for a in group})

    def order(group: Positions) -> tuple[object, ...]:
        left = total(pairs, [a for a in free if a not in group])
        return -total(pairs, group), sum(kinds[a][1] for a in group), -left, group

    every = list(combinations(free, count))
    fewest = min(map(models, every))
    every = sorted((g for g in every if models(g) == fewest), key=order)
    for rate in sorted({pairs[a][b] for a, b in combinations(free, 2)}, reverse=True):
        rings = Held(pairs, rate)
        found = next((g for g in every if rings.through(g)), None)
        if found is not None:
            return found
    raise AssertionError("at the slowest rate every group has a ring")


KINDS = (("A", 1), ("A", 2), ("B", 1))


@st.composite
def machines(draw: st.DrawFn) -> tuple[Matrix, Kinds]:
    """Cards of a few kinds, each pair with one of a few rates: many groups are equally good, and many have no ring."""
    size = draw(st.integers(9, 11))
    rates = draw(st.lists(st.integers(0, 9), min_size=2, max_size=4))
    rows = [[0] * size for _ in range(size)]
    for a, b in combinations(range(size), 2):
        rows[a][b] = rows[b][a] = draw(st.sampled_from(rates))
    kinds = tuple(draw(st.sampled_from(KINDS[: draw(st.integers(1, 3))])) for _ in range(size))
    return tuple(map(tuple, rows)), kinds


@settings(deadline=None, max_examples=60)
@given(machines(), st.integers(3, 9), st.integers(0, 2))
def test_groups_that_are_compared_all_at_once_come_in_the_same_order(
    machine: tuple[Matrix, Kinds], count: int, taken: int
) -> None:
    pairs, kinds = machine
    free = tuple(range(taken, len(pairs)))
    count = min(count, len(free) - 1)
    wanted = by_all_groups(pairs, kinds, free, count)
    assert groups.best(pairs, kinds, free, count) == wanted
    assert topology.closest(pairs, kinds, free, count) == wanted


@pytest.mark.parametrize("count", [7, 8, 13])
def test_large_groups_of_sixteen_cards_are_those_that_all_groups_one_by_one_give(count: int) -> None:
    pairs, free = pairs_of(IRREGULAR_16), tuple(range(16))
    wanted = by_all_groups(pairs, IRREGULAR_16.kinds, free, count)
    assert topology.closest(pairs, IRREGULAR_16.kinds, free, count) == wanted


def test_a_choice_among_sixteen_cards_of_which_no_two_are_alike_takes_few_milliseconds() -> None:
    """Of processor time: 1 ms, the first of its kind 4. One by one it is 68; the bar allows for a busy machine."""
    taken: list[float] = []
    for seed in range(4):
        pairs, kinds = pairs_of(Machine("", irregular(16, seed), (V100,) * 16, nvlink=2)), (V100,) * 16
        for count in range(2, 15):
            started = time.thread_time()
            topology.closest.__wrapped__(pairs, kinds, tuple(range(16)), count)
            taken.append(1000 * (time.thread_time() - started))
    assert sorted(taken)[-5] < 20, sorted(taken)[-5:]


def test_a_machine_that_is_too_large_to_search_still_gets_a_close_group() -> None:
    words = [["X" if a == b else "PIX" if a // 4 == b // 4 else "SYS" for b in range(40)] for a in range(40)]
    for n, row in enumerate(words):
        row[(n + 7) % 40] = "?"  # so that no two cards can change places
    large = Machine("40 cards", tuple(map(" ".join, words)), (("A", 1),) * 40)
    found = topology.closest(pairs_of(large), large.kinds, tuple(range(1, 40)), 4)
    assert ring(pairs_of(large), found) == ring(pairs_of(large), (4, 5, 6, 7))


# ── many cards ───────────────────────────────────────────────────────────────────────────────────────────────────────

WORDS = ("PIX", "PXB", "PHB", "NODE", "SYS", *(f"NV{n}" for n in range(1, 19)))


def random_machine(size: int, seed: int, words: Sequence[str] = WORDS) -> tuple[Interconnect, ...]:
    """What somebody with an agent's token may write: each card says what it likes of each other."""
    rng = random.Random(seed)
    return tuple(
        Interconnect(
            " ".join("X" if a == b else rng.choice(words) for b in range(size)),
            nvlink=rng.randint(0, 5),
            pcie=rng.randint(0, 6),
            lanes=rng.randint(0, 99),
        )
        for a in range(size)
    )


def grown_one_by_one(pairs: Matrix, free: Sequence[int], count: int, seed: int) -> tuple[int, ...]:
    group = [seed]
    while len(group) < count:
        others = (a for a in free if a not in group)
        group.append(max(others, key=lambda a: (sum(pairs[a][b] for b in group), -a)))
    return tuple(sorted(group))


@pytest.mark.parametrize("words", [WORDS, ("NV1", "SYS", "?"), ("NV1", "?", "?")], ids=["all", "three", "few links"])
@pytest.mark.parametrize("count", [2, 3, 15, 16, 64, 100, 126, 127])
def test_a_choice_among_128_cards_takes_a_bounded_time_whatever_they_say(count: int, words: Sequence[str]) -> None:
    """Of processor time: 35 ms; the bar allows for a busy machine."""
    pairs = matrix(tuple(enumerate(random_machine(128, 3, words))))
    kinds, free = (("A", 1),) * 128, tuple(range(128))
    for pick in (topology.closest, topology.fragment):
        assert len(set(pick.__wrapped__(pairs, kinds, free, count))) == count
        assert spent(partial(pick.__wrapped__, pairs, kinds, free, count)) < 0.15, pick


def test_what_128_cards_say_is_read_in_a_bounded_time() -> None:
    sides = tuple(enumerate(random_machine(128, 4)))
    assert spent(partial(matrix.__wrapped__, sides)) < 0.15


@settings(deadline=None, max_examples=30)
@given(st.integers(17, 24), st.integers(2, 16), st.integers(0, 1000), st.integers(0, 3))
def test_groups_of_many_cards_are_grown_as_one_by_one(size: int, count: int, seed: int, taken: int) -> None:
    pairs = matrix(tuple(enumerate(random_machine(size, seed))))
    free = tuple(range(taken, size))
    count = min(count, len(free) - 1)  # all of them are no choice
    one_by_one = {grown_one_by_one(pairs, free, count, a) for a in free}
    assert set(wide.grown(pairs, free, count)) == one_by_one


@settings(deadline=None, max_examples=30)
@given(st.integers(17, 22), st.integers(2, 6), st.integers(0, 1000))
def test_of_the_groups_of_many_cards_the_first_in_the_order_is_taken(size: int, count: int, seed: int) -> None:
    pairs = matrix(tuple(enumerate(random_machine(size, seed, ("NV1", "NV2", "SYS")))))
    kinds = tuple(("A" if a % 3 else "B", a % 2) for a in range(size))
    free = tuple(range(size))
    some = wide.grown(pairs, free, count)
    few = min(len({kinds[a][0] for a in g}) for g in some)
    everything = total(pairs, free)

    def key(group: tuple[int, ...]) -> tuple[object, ...]:
        rest = [a for a in free if a not in group]
        inside = total(pairs, group)
        memory = sum(kinds[a][1] for a in group)
        return -ring(pairs, group), -inside, memory, -total(pairs, rest), group

    wanted = min((g for g in some if len({kinds[a][0] for a in g}) == few), key=key)
    assert everything
    assert wide.best(pairs, kinds, free, some) == wanted


@settings(deadline=None, max_examples=40)
@given(st.integers(2, 24), st.integers(0, 1000), st.sampled_from([WORDS, ("NV1", "PIX", "SYS"), ("PIX", "?")]))
def test_branches_part_only_where_the_rates_say_so(size: int, seed: int, words: Sequence[str]) -> None:
    pairs = matrix(tuple(enumerate(random_machine(size, seed, words))))
    everybody, before, parting = tuple(range(size)), None, list[int]()
    for rate in topology.rates(pairs):
        now = topology.branches(pairs, everybody, rate)
        if now != before:
            parting.append(rate)
        before = now
    assert set(parting) <= set(topology.parting(pairs)) | set(topology.rates(pairs)[:1])
