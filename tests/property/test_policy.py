"""What must hold for every card choice, held against a solver that tries everything."""

import itertools
from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from fractile.model.placement import ContainerPlacement, Placement, Slice, charges
from fractile.model.refusal import Code, Refusal
from fractile.model.request import ContainerRequest, PodRequest, Role, peak_amount
from fractile.policy.cards import POLICIES, cards_needed, choose, shares_one_card
from fractile.policy.plan import plan
from fractile.policy.state import CardState, NodeState, emptied
from fractile.policy.verify import mismatch
from tests.property.strategies import node_states, pod_requests

policies = st.sampled_from(sorted(POLICIES))
checked = settings(max_examples=400, deadline=None)


def fits(cards: Sequence[CardState], containers: Sequence[ContainerPlacement], node: NodeState) -> bool:
    free = {c.uuid: c.free_memory for c in cards}
    return all(charge.memory <= free[charge.card] for charge in charges(Placement(node.node, tuple(containers))))


def feasible(request: PodRequest, node: NodeState) -> bool:
    """Whether any assignment of cards serves the pod: all of them are tried."""
    by_memory = [c for c in request.containers if not c.request.exclusive]
    needed = peak_amount(c for c in request.containers if c.request.exclusive)
    idle = [c for c in node.cards if c.idle]
    return any(
        memory_feasible(by_memory, [c for c in node.cards if c not in whole], node)
        for whole in itertools.combinations(idle, needed)
    )


def memory_feasible(containers: Sequence[ContainerRequest], cards: Sequence[CardState], node: NodeState) -> bool:
    for choice in itertools.product(cards, repeat=len(containers)):
        if shares_one_card(containers) and len({c.uuid for c in choice}) > 1:
            continue
        placed = [
            ContainerPlacement(c.container, c.role, (Slice(card.uuid, c.request.memory),))
            for c, card in zip(containers, choice, strict=True)
        ]
        if fits(cards, placed, node):
            return True
    return False


@settings(checked, max_examples=2000)
@given(pod_requests(most=4), node_states(), policies)
def test_a_pod_is_placed_whenever_any_assignment_serves_it(request: PodRequest, node: NodeState, policy: str) -> None:
    assert (choose(request, node, policy) is not None) == feasible(request, node)


@checked
@given(pod_requests(most=5), node_states(most=6), policies)
def test_no_card_is_ever_asked_for_more_than_it_has_free(request: PodRequest, node: NodeState, policy: str) -> None:
    chosen = choose(request, node, policy)
    if chosen is None:
        return
    cards = {c.uuid: c for c in node.cards}
    for charge in charges(Placement(node.node, chosen)):
        assert charge.memory <= cards[charge.card].free_memory
        assert charge.cores <= cards[charge.card].free_cores
    assert mismatch(request, Placement(node.node, chosen)) is None


@checked
@given(pod_requests(most=4), node_states(most=5), policies)
def test_the_choice_depends_on_nothing_but_its_arguments(request: PodRequest, node: NodeState, policy: str) -> None:
    for order in itertools.islice(itertools.permutations(node.cards), 6):
        assert choose(request, NodeState(node.node, order), policy) == choose(request, node, policy)


@checked
@given(pod_requests(most=5), node_states(most=6), policies)
def test_whole_cards_are_unused_whole_and_shared_with_nobody(request: PodRequest, node: NodeState, policy: str) -> None:
    chosen = choose(request, node, policy)
    if chosen is None:
        return
    cards = {c.uuid: c for c in node.cards}
    exclusive = {c.container for c in request.containers if c.request.exclusive}
    whole = {s.card for c in chosen if c.container in exclusive for s in c.slices}
    for container in chosen:
        named = [s.card for s in container.slices]
        assert len(set(named)) == len(named)
        if container.container in exclusive:
            assert all(cards[s.card].idle and s.memory == cards[s.card].memory for s in container.slices)
        else:
            assert whole.isdisjoint(named)


@checked
@given(pod_requests(most=5), node_states(most=6))
def test_kubernetes_count_of_whole_cards_is_the_number_handed_out(request: PodRequest, node: NodeState) -> None:
    by_card = [c for c in request.containers if c.request.exclusive]
    chosen = choose(request, node)
    if chosen is None or not by_card:
        return
    names = {c.container for c in by_card}
    handed_out = {s.card for c in chosen if c.container in names for s in c.slices}
    assert len(handed_out) == cards_needed(by_card) == peak_amount(by_card)


@checked
@given(pod_requests(most=5), node_states(most=6))
def test_running_containers_never_hold_the_same_whole_card(request: PodRequest, node: NodeState) -> None:
    chosen = choose(request, node)
    exclusive = {c.container for c in request.containers if c.request.exclusive}
    running: set[str] = set()
    for container in chosen or ():
        if container.container in exclusive:
            mine = {s.card for s in container.slices}
            assert running.isdisjoint(mine)
            if container.role is not Role.INIT:
                running |= mine


@checked
@given(pod_requests(most=5), node_states(most=6), policies)
def test_containers_that_share_with_an_init_container_are_on_one_card(
    request: PodRequest, node: NodeState, policy: str
) -> None:
    by_memory = [c for c in request.containers if not c.request.exclusive]
    chosen = choose(request, node, policy)
    if chosen is None or not any(c.role is Role.INIT for c in by_memory):
        return
    names = {c.container for c in by_memory}
    assert len({s.card for c in chosen if c.container in names for s in c.slices}) == 1


@checked
@given(pod_requests(most=5), node_states(most=6))
def test_memory_on_one_card_costs_what_kubernetes_counts(request: PodRequest, node: NodeState) -> None:
    by_memory = [c for c in request.containers if not c.request.exclusive]
    names = {c.container for c in by_memory}
    held = tuple(c for c in choose(request, node) or () if c.container in names)
    if len({s.card for c in held for s in c.slices}) == 1:
        (charge,) = charges(Placement(node.node, held))
        assert charge.memory == peak_amount(by_memory)
    assert sum(c.memory for c in charges(Placement(node.node, held))) <= peak_amount(by_memory)


@checked
@given(pod_requests(most=4), node_states(most=5))
def test_a_refusal_says_whether_waiting_helps(request: PodRequest, node: NodeState) -> None:
    verdict = plan(request, node)
    if isinstance(verdict, Refusal):
        assert verdict.message
        assert "\n" not in verdict.message
        if not node.cards:
            assert verdict.code is Code.NO_CARDS
        else:
            assert (verdict.code is Code.NO_ROOM) == (choose(request, emptied(node)) is not None)
