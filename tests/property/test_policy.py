"""What must hold for every card choice, held against a solver that tries everything."""

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from fractile.dialects.aliyun import MEMORY
from fractile.model.placement import Charge, ContainerPlacement, Placement, Slice, charges
from fractile.model.refusal import Code, Refusal
from fractile.model.request import PodRequest, Role, peak_amount
from fractile.model.units import WHOLE
from fractile.policy.cards import choice
from fractile.policy.cards.choice import POLICIES, cards_needed, choose
from fractile.policy.cards.parts import Numbers, card_numbers
from fractile.policy.cards.plan import plan
from fractile.policy.cards.state import CardState, NodeState, emptied
from fractile.policy.cards.verify import mismatch
from tests.property.strategies import node_states, pod_requests

policies = st.sampled_from(sorted(POLICIES))
checked = settings(max_examples=400, deadline=None)


def fits(charge: Charge, card: CardState) -> bool:
    return card.holds(charge.memory, charge.cores, coreless=charge.coreless)


def feasible(request: PodRequest, node: NodeState) -> bool:
    """Whether any assignment of cards serves the pod: all of them are tried, number by number."""
    numbers = card_numbers(request.containers)
    exclusive = {n for c, mine in zip(request.containers, numbers, strict=True) if c.request.exclusive for n in mine}
    count = 1 + max(n for mine in numbers for n in mine)
    selector = request.containers[0].request.selector

    def try_from(number: int, cards: dict[int, CardState]) -> bool:
        if not bearable(request, numbers, cards, node):
            return False
        if number == count:
            return True
        for card in node.cards:
            others = [n for n, used in cards.items() if used.uuid == card.uuid]
            if not selector.admits(card.uuid, card.model) or (number in exclusive and not (card.idle and card.memory)):
                continue
            if any(n in exclusive or number in exclusive for n in others):
                continue
            if any(number in mine and n in mine for n in others for mine in numbers):
                continue
            if try_from(number + 1, {**cards, number: card}):
                return True
        return False

    return try_from(0, {})


def bearable(request: PodRequest, numbers: Numbers, cards: dict[int, CardState], node: NodeState) -> bool:
    """Whether the cards bear the numbers assigned so far: all of them on one card at their common peak, or else each
    number at its own."""
    given = {
        c.container: tuple(
            Slice(
                cards[n].uuid, c.request.memory_on(cards[n].memory), WHOLE if c.request.exclusive else c.request.cores
            )
            for n in mine
            if n in cards
        )
        for c, mine in zip(request.containers, numbers, strict=True)
    }
    placed = tuple(ContainerPlacement(c.container, c.role, given[c.container]) for c in request.containers)
    by_uuid = {c.uuid: c for c in node.cards}
    return all(fits(charge, by_uuid[charge.card]) for charge in charges(Placement(node.node, placed)))


@checked
@given(pod_requests(most=3), node_states(), policies)
def test_whether_a_pod_fits_is_what_choosing_says(request: PodRequest, node: NodeState, policy: str) -> None:
    assert choice.fits(request, node) == (choose(request, node) is not None)
    if len(request.containers) == 1:
        assert choice.fits(request, node) == (choose(request, node, policy) is not None)


@settings(checked, max_examples=600)
@given(pod_requests(most=3), node_states(), policies)
def test_a_pod_is_placed_whenever_any_assignment_serves_it(request: PodRequest, node: NodeState, policy: str) -> None:
    placed = choose(request, node, policy) is not None
    possible = feasible(request, node)
    if len({c.resource for c in request.containers}) > 1 and any(c.role is Role.INIT for c in request.containers):
        assert possible or not placed  # init containers of several families may be refused a little early
    else:
        assert placed == possible


@checked
@given(pod_requests(most=5), node_states(most=6), policies)
def test_no_card_is_ever_asked_for_more_than_it_has_free(request: PodRequest, node: NodeState, policy: str) -> None:
    chosen = choose(request, node, policy)
    if chosen is None:
        return
    cards = {c.uuid: c for c in node.cards}
    for charge in charges(Placement(node.node, chosen)):
        assert fits(charge, cards[charge.card])
        assert request.containers[0].request.selector.admits(charge.card, cards[charge.card].model)
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
def test_a_container_that_takes_over_ids_is_on_the_card_of_those_who_left_them(
    request: PodRequest, node: NodeState, policy: str
) -> None:
    chosen = choose(request, node, policy)
    if chosen is None:
        return
    left: dict[str, dict[str, int]] = {}  # by resource: ids that kubelet hands on, by card
    for asked, placed in zip(request.containers, chosen, strict=True):
        pool = left.setdefault(asked.resource, {})
        each = asked.amount // asked.request.count
        mine = {s.card for s in placed.slices}
        if len(pool) <= asked.request.count:  # all that is left is handed to this one
            assert pool.keys() <= mine
        for card in mine:
            pool[card] = max(pool.get(card, 0), each) if asked.role is Role.INIT else pool.get(card, 0) - each
        left[asked.resource] = {card: ids for card, ids in pool.items() if ids > 0}


@checked
@given(pod_requests(most=5), node_states(most=6))
def test_memory_on_one_card_costs_what_kubernetes_counts(request: PodRequest, node: NodeState) -> None:
    by_memory = [c for c in request.containers if c.resource == MEMORY]
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
        selector = request.containers[0].request.selector
        if not node.cards:
            assert verdict.code is Code.NO_CARDS
        elif not any(selector.admits(c.uuid, c.model) for c in node.cards):
            assert verdict.code is Code.NO_SUCH_CARD
        else:
            assert (verdict.code is Code.NO_ROOM) == (choose(request, emptied(node)) is not None)
