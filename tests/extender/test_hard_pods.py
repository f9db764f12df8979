"""Pods for which it is hard to tell whether they fit: they cost each call of kube-scheduler a bounded time, on however
many nodes, and nothing of it falls on other pods."""

import random
import time
from collections.abc import Callable

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fractile.extender.filter import filter_nodes
from fractile.ledger.ledger import Ledger
from fractile.model.request import PodRequest
from fractile.model.units import PodUID
from fractile.policy.cards import reasons
from fractile.policy.cards.effort import CALL, SEARCH, Effort
from fractile.policy.cards.reasons import too_hard
from fractile.wire.fractile.resource_class import DEVICE_SLOT
from tests.builders import by_class, by_memory, by_slots, card, cluster, device, in_use, on_card, request

pytestmark = pytest.mark.slow

SIZE = 16276
STALL = 0.5  # seconds of processor time; measured 0.1. The bar allows for a machine that does other things too


def nodes(count: int, cards: int = 8, *, alike: bool = False) -> Ledger:
    """No two of them have cards of the same size, so that nothing is learned from one about the next."""
    return cluster(
        {f"n{n}": [card(f"n{n}", i, memory=SIZE if alike else SIZE + n) for i in range(cards)] for n in range(count)}
    )


def names(count: int) -> list[str]:
    return [f"n{n}" for n in range(count)]


def tight(seed: int, count: int, total: int) -> PodRequest:
    rng = random.Random(seed)
    shares = [rng.randint(100, 600) for _ in range(count)]
    sizes = [max(1, s * total // sum(shares)) for s in shares]
    sizes[0] += total - sum(sizes)
    return request(*(by_slots(1, memory=size, name=f"c{n}") for n, size in enumerate(sizes)), name=f"tight{seed}")


def no_multiples(seed: int) -> PodRequest:
    """The sum leaves 8 MiB of eight cards, but amounts in tens cannot use the last 6 of each."""
    ten = tight(seed, 40, 13020)
    return request(*(by_slots(1, memory=10 * c.request.memory, name=str(c.container)) for c in ten.containers))


def wide(seed: int) -> PodRequest:
    """More parts of cards than the node has slots."""
    return request(*(by_slots(8, memory=1, name=f"c{n}") for n in range(200 + seed % 50)))


def near_thirds(seed: int) -> PodRequest:
    return request(*(by_slots(8, memory=SIZE // 3 + 1 + (n + seed) % 3, name=f"c{n}") for n in range(64)))


HOSTILE: list[Callable[[int], PodRequest]] = [
    lambda seed: tight(seed, 24 + seed % 9, 8 * SIZE - seed % 90),
    no_multiples,
    wide,
    near_thirds,
]


@settings(deadline=None, max_examples=25)
@given(st.sampled_from(HOSTILE), st.integers(0, 400), st.integers(1, 200), st.booleans())
def test_a_filter_takes_a_bounded_time_for_a_hostile_pod(
    hostile: Callable[[int], PodRequest], seed: int, count: int, alike: bool
) -> None:
    ledger, pod = nodes(count, alike=alike), hostile(seed)

    def takes() -> float:
        effort, began = Effort(), time.thread_time()
        filter_nodes(pod, names(count), ledger, effort=effort)
        assert effort.spent <= CALL + SEARCH
        return time.thread_time() - began

    assert any(takes() < STALL for _ in range(8))  # the collector may run meanwhile, and other work slows a core


def test_an_honest_pod_is_judged_at_all_nodes_beside_a_hostile_one() -> None:
    ledger = nodes(200)
    filter_nodes(tight(1, 24, 8 * SIZE - 80), names(200), ledger)
    honest = request(by_memory(8000, "a"), by_memory(9000, "b"), by_memory(100, "c"))
    assert len(filter_nodes(honest, names(200), ledger).node_names or []) >= 100


def test_nodes_that_are_not_looked_at_are_refused_for_now_and_say_why() -> None:
    ledger, pod, effort = nodes(90), tight(1, 24, 8 * SIZE - 80), Effort()
    result = filter_nodes(pod, names(90), ledger, effort=effort)
    assert not result.node_names
    assert result.failed == dict.fromkeys(names(90), too_hard(pod).message)
    assert not result.unresolvable
    assert effort.unfinished


def test_calls_go_on_where_the_one_before_stopped_until_all_nodes_have_been_looked_at() -> None:
    """The last node has a card that takes all of it; sums do not tell it from the others."""
    ledger = nodes(60)
    ledger.put_card("n59", card("n59", 8, memory=9 * SIZE))  # pyright: ignore[reportArgumentType]
    pod = tight(1, 24, 8 * SIZE - 80)
    calls = 0
    while True:
        effort = Effort(dead_ends=ledger.dead_ends)
        calls += 1
        result = filter_nodes(pod, names(60), ledger, effort=effort)
        if result.node_names:
            break
        assert effort.unfinished
    assert result.node_names == ["n59"]
    assert 1 < calls < 30


def test_when_all_nodes_have_been_looked_at_nobody_asks_again() -> None:
    ledger, pod = nodes(30), tight(1, 24, 8 * SIZE - 80)
    unfinished: list[bool] = []
    for _ in range(30):
        effort = Effort(dead_ends=ledger.dead_ends)
        filter_nodes(pod, names(30), ledger, effort=effort)
        unfinished.append(effort.unfinished)
        if not effort.unfinished:
            break
    assert unfinished[0]
    assert not unfinished[-1]


def test_equal_nodes_are_searched_once() -> None:
    ledger, effort = nodes(40, alike=True), Effort()
    filter_nodes(tight(1, 24, 8 * SIZE - 80), names(40), ledger, effort=effort)
    assert effort.spent < SEARCH + 40 * 300
    assert len(effort.dead_ends) == 1


@pytest.mark.parametrize("count", [2, 3])
def test_pods_of_a_few_containers_are_judged_at_a_thousand_nodes_in_one_call(count: int) -> None:
    """On each node the sums suffice, and the cards do not."""
    ledger = cluster({f"n{n}": [card(f"n{n}", i) for i in range(8)] for n in range(1000)})
    for n in range(1000):
        in_use(ledger, f"n{n}", *[9000 + 8 * n % 100] * 8)
    pod = request(*(by_memory(7200 + n, f"c{n}") for n in range(count)), by_memory(7276, "last"))
    effort = Effort(dead_ends=ledger.dead_ends)
    result = filter_nodes(pod, names(1000), ledger, effort=effort)
    fitting = [n for n in range(1000) if SIZE - 9000 - 8 * n % 100 >= 7276]
    assert set(result.node_names or []) <= {f"n{n}" for n in fitting}
    assert effort.given_up == 0


def test_a_hold_of_the_pod_itself_needs_no_search() -> None:
    ledger = nodes(2, alike=True)
    assert ledger.assume(PodUID("uid-tight1"), on_card(0, 5, node="n1")) is None
    assert filter_nodes(tight(1, 24, 8 * SIZE - 80), names(2), ledger).node_names == ["n1"]


def test_a_search_for_cards_that_was_given_up_is_no_reason_for_good() -> None:
    """The cards are idle, and the adapter that the pod asks for as well is not: only its own search was given up."""
    ledger = cluster({"n0": [*(card("n0", i, memory=SIZE) for i in range(8)), device("n0")]})
    asked = tight(3, 24, 8 * SIZE - 5)
    both = msgspec.structs.replace(asked, containers=(*asked.containers, by_class("ib", 1, "c0", slot=DEVICE_SLOT)))
    state = ledger.node("n0")
    assert state is not None
    assert reasons.explain(both, state, Effort(search=20)) == too_hard(both)
