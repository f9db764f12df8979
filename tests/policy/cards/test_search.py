"""Which parts of a pod go to which cards: right for small pods, and bounded for pods that are made to be hard."""

import random
from collections.abc import Sequence
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fractile.model.refusal import Refusal
from fractile.model.request import ContainerRequest, PodRequest
from fractile.policy.cards.choice import choose, fits
from fractile.policy.cards.effort import CALL, SEARCH, DeadEnds, Effort
from fractile.policy.cards.plan import plan
from fractile.policy.cards.reasons import too_hard
from fractile.policy.cards.state import CardState, NodeState
from tests.builders import by_card, by_memory, by_share, by_slots, node_state, request


def brute(pod: PodRequest, state: NodeState) -> bool:
    """Every way to give each container its cards, one by one."""
    ways = [
        [w for w in product(range(len(state.cards)), repeat=c.request.count) if len(set(w)) == len(w)]
        for c in pod.containers
    ]
    return any(_bears(pod.containers, state.cards, way) for way in product(*ways))


def _bears(containers: Sequence[ContainerRequest], cards: Sequence[CardState], way: Sequence[Sequence[int]]) -> bool:
    for n, card in enumerate(cards):
        mine = [c.request for c, chosen in zip(containers, way, strict=True) if n in chosen]
        if not mine:
            continue
        memory, cores = sum(r.memory for r in mine), sum(r.cores for r in mine)
        spare = 1 if any(r.cores == 0 for r in mine) else 0
        slots = sum(r.slots for r in mine)
        if memory > card.free_memory or cores + spare > card.free_cores or slots > card.free_slots:
            return False
    return True


amounts = st.tuples(st.integers(1, 9).map(lambda n: 100 * n), st.sampled_from([0, 0, 0, 30, 60]))


@settings(deadline=None, max_examples=400)
@given(
    st.lists(amounts, min_size=2, max_size=5),
    st.lists(st.integers(-1, 12).map(lambda n: 100 * n), min_size=1, max_size=4),
)
def test_small_pods_fit_where_some_way_to_give_them_cards_fits(asked: list[tuple[int, int]], free: list[int]) -> None:
    pod = request(*(by_share(memory, cores, f"c{n}") for n, (memory, cores) in enumerate(asked)))
    state = node_state("n", *free, memory=1200)
    assert fits(pod, state) == brute(pod, state)


@settings(deadline=None, max_examples=200)
@given(
    st.lists(st.tuples(st.integers(1, 5), st.integers(1, 3)), min_size=2, max_size=3),
    st.lists(st.integers(0, 9), min_size=2, max_size=4),
)
def test_small_pods_with_several_cards_for_a_container_fit_where_some_way_fits(
    asked: list[tuple[int, int]], free: list[int]
) -> None:
    pod = request(*(by_slots(count, memory=memory, name=f"c{n}") for n, (memory, count) in enumerate(asked)))
    state = node_state("n", *free, memory=10)
    assert fits(pod, state) == brute(pod, state)


@pytest.mark.parametrize(("count", "each"), [(4, 128), (64, 8), (512, 1)], ids=["wide", "broad", "many"])
def test_a_pod_of_512_parts_gets_its_cards_on_a_node_of_128(count: int, each: int) -> None:
    pod = request(*(by_slots(each, memory=4000, name=f"c{n}") for n in range(count)))
    effort = Effort()
    found = choose(pod, node_state("n", *[16276] * 128), effort=effort)
    assert found is not None
    assert [len({s.card for s in c.slices}) for c in found] == [each] * count
    held = [s.card for c in found for s in c.slices]
    assert max(map(held.count, set(held))) <= 4


def test_a_pod_of_12800_parts_ends_in_an_answer_and_not_in_an_exception() -> None:
    pod = request(*(by_slots(128, memory=1, name=f"c{n}") for n in range(100)))
    assert isinstance(fits(pod, node_state("n", *[16276] * 128), Effort()), bool)


# ── hard pods ────────────────────────────────────────────────────────────────────────────────────────────────────────


def tight(seed: int, count: int, total: int) -> PodRequest:
    """Containers of all sizes that fill the cards to the last."""
    rng = random.Random(seed)
    shares = [rng.randint(100, 600) for _ in range(count)]
    sizes = [max(1, s * total // sum(shares)) for s in shares]
    sizes[0] += total - sum(sizes)
    return request(*(by_slots(1, memory=size, name=f"c{n}") for n, size in enumerate(sizes)), name=f"tight{seed}")


FULL = node_state("n", *[16276] * 8)


def test_where_whole_cards_leave_no_card_there_is_room_for_no_part() -> None:
    pod = request(by_card(1, "whole"), by_memory(100, "a"), by_memory(100, "b"))
    assert choose(pod, node_state("n1", 16276)) is None
    assert choose(pod, node_state("n1", 16276, 16276)) is not None


def test_parts_that_cannot_fill_the_cards_are_refused_without_a_search_of_all_ways() -> None:
    pod = request(*(by_slots(1, memory=10 * n, name=f"c{n}") for n in [325] * 36 + [330] * 4))
    assert sum(c.request.memory for c in pod.containers) < 8 * 16276
    effort = Effort()
    assert not fits(pod, FULL, effort)
    assert effort.given_up == 0
    assert effort.spent < 1000


def test_a_search_that_is_given_up_says_so_and_is_no_refusal_for_good() -> None:
    pod = tight(1, 24, 8 * 16276 - 80)
    effort = Effort()
    refused = plan(pod, FULL, effort=effort)
    assert refused == too_hard(pod)
    assert isinstance(refused, Refusal)
    assert refused.resolvable
    assert "24 containers" in refused.message
    assert SEARCH <= effort.spent <= SEARCH + 1000


def test_a_dead_end_is_not_searched_again_until_something_is_free_there() -> None:
    ends = DeadEnds()
    pod = tight(1, 24, 8 * 16276 - 80)
    assert not fits(pod, FULL, Effort(dead_ends=ends))
    again = Effort(dead_ends=ends, easy=0)
    assert not fits(pod, FULL, again)
    assert again.given_up == 1
    assert again.spent < 200
    roomier = node_state("n", *[20000] * 8, memory=20000)
    after = Effort(dead_ends=ends, easy=0)
    assert fits(pod, roomier, after)


def test_the_same_room_in_another_order_of_cards_is_the_same_dead_end() -> None:
    ends = DeadEnds()
    pod = tight(1, 24, 8 * 16276 - 80)
    one, other = node_state("n", 16275, *[16276] * 7), node_state("m", *[16276] * 7, 16275)
    assert not fits(pod, one, Effort(dead_ends=ends, easy=0))
    again = Effort(dead_ends=ends, easy=0)
    assert not fits(pod, other, again)
    assert again.spent < 200


def test_no_more_dead_ends_are_remembered_than_there_is_place_for() -> None:
    ends = DeadEnds(most=3)
    for n in range(10):
        ends.put(bytes([n]), 5)
    assert len(ends) == 3
    assert ends.looks(bytes([9])) == 5
    assert ends.looks(bytes([0])) == 0


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 999), st.integers(2, 64), st.integers(1, 8), st.integers(0, 40), st.sampled_from([1, 8, 128]))
def test_one_call_takes_no_more_looks_than_it_has(seed: int, count: int, each: int, short: int, cards: int) -> None:
    rng = random.Random(seed)
    each = min(each, cards)
    size = max(1, (cards * 16276 - short) // (count * each))
    pod = request(*(by_slots(each, memory=max(1, size + rng.randint(-9, 9)), name=f"c{n}") for n in range(count)))
    effort = Effort()
    for n in range(20):
        plan(pod, node_state(f"n{n}", *[16276 + n] * cards, memory=16276 + n), effort=effort)
    assert effort.spent <= CALL + SEARCH
