"""Why a node was refused, in the words that end up in a pod's events."""

import pytest
from msgspec import structs

from fractile.model.placement import Placement
from fractile.model.refusal import Code, Refusal
from fractile.model.request import ContainerRequest, Role, Selector
from fractile.policy.cards.plan import plan
from fractile.policy.cards.state import NodeState
from tests.builders import CARD_MEMORY, by_card, by_memory, by_share, by_slots, card_state, node_state, only, request
from tests.builders import card_uuid as uuid

FULL = CARD_MEMORY


def refusal(state: NodeState, *containers: ContainerRequest) -> Refusal:
    found = plan(request(*containers), state)
    assert isinstance(found, Refusal), found
    return found


def test_what_fits_is_planned_on_the_node() -> None:
    found = plan(request(by_memory(8138)), node_state("n3", 8138, 0))
    assert isinstance(found, Placement)
    assert found.node == "n3"
    assert [c.container for c in found.containers] == ["main"]


def test_n2_is_refused_with_the_numbers_of_the_worked_example() -> None:
    assert refusal(node_state("n2", 4069, 4069), by_memory(8138)) == Refusal(
        Code.NO_ROOM,
        "8138 MiB requested on one card, the most free on one is 4069 MiB (card 0; 8138 MiB free on 2 cards together)",
    )


def test_cards_without_a_slot_are_named_as_such() -> None:
    full = [structs.replace(card_state(i, FULL), idle=False, slots=10, free_slots=0) for i in range(2)]
    state = NodeState(node_state("n").node, (*full, card_state(2, 100)))
    found = refusal(state, by_slots(1, 3000))
    assert found.code is Code.NO_ROOM
    assert found.message == "1 of a card's 10 slots requested, free on the cards with enough memory and cores: 0, 0"
    assert isinstance(plan(request(by_memory(3000)), state), Placement)  # takes none


def busy(*free: tuple[int, int]) -> NodeState:
    """A node by what is free on its cards: MiB and percent of the cores."""
    return NodeState(node_state("n").node, tuple(card_state(i, m, node="n", cores=c) for i, (m, c) in enumerate(free)))


CASES = [
    pytest.param(
        node_state("n", 1, 7020),
        [by_memory(8138)],
        Code.NO_ROOM,
        "8138 MiB requested on one card, the most free on one is 7020 MiB (card 1; 7021 MiB free on 2 cards together)",
        id="memory",
    ),
    pytest.param(
        node_state("n", 5),
        [by_memory(8138)],
        Code.NO_ROOM,
        "8138 MiB requested on one card, the most free on one is 5 MiB (card 0; 5 MiB free on 1 card together)",
        id="one card",
    ),
    pytest.param(
        node_state("n", -100, 7),
        [by_memory(10)],
        Code.NO_ROOM,
        "10 MiB requested on one card, the most free on one is 7 MiB (card 1; 7 MiB free on 2 cards together)",
        id="a card that shrank counts as full, not as a debt",
    ),
    pytest.param(
        node_state("n", FULL, FULL),
        [by_memory(16277)],
        Code.TOO_LARGE,
        "16277 MiB requested on one card, the largest card here has 16276 MiB",
        id="memory that no card has",
    ),
    pytest.param(
        node_state("n", 50, 60, memory=100),
        [by_memory(90, "warm", role=Role.INIT), by_memory(40, "main")],
        Code.NO_ROOM,
        "90 MiB requested on one card, the most free on one is 60 MiB (card 1; 110 MiB free on 2 cards together)",
        id="the peak of containers that share a card",
    ),
    pytest.param(
        node_state("n", 50, 60, memory=100),
        [by_memory(55, "a"), by_memory(70, "b")],
        Code.NO_ROOM,
        "55 + 70 MiB requested, free per card: 50, 60 MiB",
        id="containers on different cards",
    ),
    pytest.param(
        node_state("n", 100, 60, memory=100),
        [by_memory(99, "a"), by_memory(98, "b"), by_memory(97, "c")],
        Code.TOO_LARGE,
        "99 + 98 + 97 MiB requested, the cards here have 100, 100 MiB",
        id="containers that the node can never hold",
    ),
    pytest.param(
        node_state("n", FULL, 5, FULL),
        [by_card(3)],
        Code.NO_ROOM,
        "3 whole cards requested, 2 of 3 are unused",
        id="whole cards",
    ),
    pytest.param(
        node_state("n", FULL, 5),
        [by_card(2)],
        Code.NO_ROOM,
        "2 whole cards requested, 1 of 2 is unused",
        id="one unused",
    ),
    pytest.param(
        node_state("n", FULL, FULL),
        [by_card(3)],
        Code.TOO_LARGE,
        "3 whole cards requested, the node has 2",
        id="more cards than the node has",
    ),
    pytest.param(
        node_state("n", 5, FULL),
        [by_memory(10, "small"), by_card(1, "large")],
        Code.NO_ROOM,
        "10 MiB requested on one card, the most free on one is 16276 MiB (card 1; 16281 MiB free on 2 cards together) "
        "and 1 whole card requested besides, 1 of 2 is unused",
        id="memory and a whole card",
    ),
    pytest.param(
        node_state("n", FULL),
        [by_memory(10, "small"), by_card(1, "large")],
        Code.TOO_LARGE,
        "10 MiB requested on one card, the largest card here has 16276 MiB and 1 whole card requested besides, the "
        "node has 1",
        id="memory and a whole card on one card",
    ),
    pytest.param(
        busy((9000, 20), (9000, 0)),
        [by_share(100, 30)],
        Code.NO_ROOM,
        "cores: 30 percent requested, free per card: 20, 0 percent",
        id="cores",
    ),
    pytest.param(
        busy((9000, 0), (9000, 0)),
        [by_memory(100)],
        Code.NO_ROOM,
        "cores: those of every card are promised to others",
        id="no share, and all cores promised",
    ),
    pytest.param(
        busy((9000, 0), (50, 50)),
        [by_memory(100)],
        Code.NO_ROOM,
        "100 MiB requested on one card, but where that much is free, all cores are promised to others",
        id="no share, and all cores promised where there is room",
    ),
    pytest.param(
        busy((9000, 20), (50, 90)),
        [by_share(100, 30)],
        Code.NO_ROOM,
        "100 MiB and 30 percent of the cores requested on one card, free per card: 9000 MiB and 20 percent, "
        "50 MiB and 90 percent",
        id="memory here and cores there",
    ),
    pytest.param(
        busy((60, 20), (50, 10)),
        [by_share(100, 30)],
        Code.NO_ROOM,
        "100 MiB requested on one card, the most free on one is 60 MiB (card 0; 110 MiB free on 2 cards together) "
        "and cores: 30 percent requested, free per card: 20, 10 percent",
        id="neither memory nor cores",
    ),
    pytest.param(
        node_state("n", FULL),
        [by_share(100, 60, "warm", role=Role.INIT), by_share(100, 70, "a"), by_share(100, 40, "b")],
        Code.TOO_LARGE,
        "100 + 100 + 100 MiB requested, the cards here have 16276 MiB, and 60 + 70 + 40 percent of the cores, the "
        "cards here have 100 percent",
        id="more cores than there are",
    ),
    pytest.param(
        busy((9000, 100), (50, 100), (9000, 100)),
        [by_slots(3, 4096)],
        Code.NO_ROOM,
        "3 cards with 4096 MiB each requested, 2 of 3 have that much free",
        id="several cards",
    ),
    pytest.param(
        node_state("n", FULL),
        [by_slots(2, 4096)],
        Code.TOO_LARGE,
        "2 cards requested, the node has 1",
        id="too many cards",
    ),
    pytest.param(
        busy((6000, 100)),
        [by_slots(1, 0, percent=50)],
        Code.NO_ROOM,
        "50 percent of the memory requested on one card, the most free on one is 6000 MiB "
        "(card 0; 6000 MiB free on 1 card together)",
        id="a percentage",
    ),
    pytest.param(
        node_state("n", 5, FULL),
        [only(Selector(cards=(uuid("n", 0),)), by_memory(100))],
        Code.NO_ROOM,
        "100 MiB requested on one card, the most free on one is 5 MiB (card 0; 5 MiB free on 1 card together) "
        "(the pod may use 1 of the node's 2 cards)",
        id="an admitted card that is full",
    ),
    pytest.param(
        node_state("n", FULL),
        [only(Selector(models=("A100", "H100"), not_cards=(uuid("n", 0),)), by_memory(100))],
        Code.NO_SUCH_CARD,
        "the pod asks for a card of model A100 or H100 and not the card GPU-n-0, the node has Tesla-V100",
        id="no such card",
    ),
]


@pytest.mark.parametrize(("state", "containers", "code", "message"), CASES)
def test_a_refusal_says_what_was_asked_and_what_there_is(
    state: NodeState, containers: list[ContainerRequest], code: Code, message: str
) -> None:
    assert refusal(state, *containers) == Refusal(code, message)


def test_a_node_whose_agent_reported_nothing_says_so() -> None:
    assert refusal(node_state("n"), by_memory(1)) == Refusal(
        Code.NO_CARDS, "no usable cards reported by the node's fractile agent"
    )


def test_no_more_than_eight_cards_are_listed() -> None:
    message = refusal(node_state("n", *range(10, 20), memory=50), by_memory(30, "a"), by_memory(40, "b")).message
    assert message == "30 + 40 MiB requested, free per card: 10, 11, 12, 13, 14, 15, 16, 17 and 2 more MiB"


def test_a_sentence_depends_on_numbers_only_so_that_kube_scheduler_can_count_it() -> None:
    one, two = (refusal(node_state(name, 4069, 4069), by_memory(8138)) for name in ("n1", "n2"))
    assert one == two


def test_a_whole_card_that_is_held_for_its_time_only_is_a_matter_of_waiting() -> None:
    state = NodeState(node_state("n").node, (card_state(0, FULL, node="n", idle=False),))
    assert refusal(state, by_card()).code is Code.NO_ROOM
