"""Which cards of a node serve a pod."""

from fractions import Fraction

import pytest
from msgspec import structs

from fractile.model.request import ContainerRequest, Request, Role, Selector
from fractile.model.sharing import SharingRule
from fractile.policy.cards.choice import POLICIES, cards_needed, choose, fits
from fractile.policy.cards.effort import Effort
from fractile.policy.cards.state import NodeState
from tests.builders import CARD_MEMORY, by_card, by_memory, by_share, by_slots, card_state, node_state, only, request
from tests.builders import card_uuid as uuid

INIT, SIDECAR, APP = Role.INIT, Role.SIDECAR, Role.APP
FULL = CARD_MEMORY


def chosen(state: NodeState, *containers: ContainerRequest, policy: str = "binpack") -> dict[str, list[int]] | None:
    """The indices of the cards of each container; None when the node cannot serve them."""
    found = choose(request(*containers), state, policy)
    index = {c.uuid: c.index for c in state.cards}
    return None if found is None else {c.container: [index[s.card] for s in c.slices] for c in found}


# ── evidence/gpushare.md#worked-example ──────────────────────────────────────────────────────────────────────────────


def test_best_fit_takes_the_card_with_least_left_over() -> None:
    assert chosen(node_state("n", 12207, 8138, 4069, 16276), by_memory(8138)) == {"main": [1]}


def test_n2_is_refused_though_its_sum_suffices() -> None:
    assert chosen(node_state("n2", 4069, 4069), by_memory(8138)) is None


def test_n3_passes_because_one_card_holds_all_of_it() -> None:
    assert chosen(node_state("n3", 8138, 0), by_memory(8138)) == {"main": [0]}


def test_spread_takes_the_emptiest_card() -> None:
    assert chosen(node_state("n", 12207, 8138, 4069, 16276), by_memory(1), policy="spread") == {"main": [3]}


@pytest.mark.parametrize("policy", ["binpack", "spread"])
def test_of_equal_cards_the_lowest_index_is_taken(policy: str) -> None:
    assert chosen(node_state("n", 100, 500, 500, 500), by_memory(200), policy=policy) == {"main": [1]}


def test_a_slice_is_what_was_asked_for() -> None:
    (container,) = choose(request(by_memory(8138)), node_state("n", FULL)) or []
    (piece,) = container.slices
    assert (piece.card, piece.memory, piece.cores) == (uuid("n", 0), 8138, 0)


def test_an_exact_fit_fits_and_one_mib_more_does_not() -> None:
    assert chosen(node_state("n", 100), by_memory(100)) == {"main": [0]}
    assert chosen(node_state("n", 100), by_memory(101)) is None


def test_a_card_that_shrank_under_its_pods_has_room_for_nothing() -> None:
    assert chosen(node_state("n", -5), by_memory(1)) is None


def test_a_node_without_cards_serves_nobody() -> None:
    assert chosen(NodeState(node_state("n").node, ()), by_memory(1)) is None


def test_a_placement_names_each_container_with_its_role_and_its_slots() -> None:
    asked = (by_slots(1, 100, 20, "warm", role=INIT), by_memory(8, "log", role=SIDECAR), by_slots(2, 100, 20))
    found = choose(request(*asked), node_state("n", FULL, FULL)) or ()
    assert [(c.container, c.role) for c in found] == [("warm", INIT), ("log", SIDECAR), ("main", APP)]
    assert [[(s.memory, s.cores, s.slots) for s in c.slices] for c in found] == [
        [(100, 20, 1)],
        [(8, 0, 0)],
        [(100, 20, 1), (100, 20, 1)],
    ]


# ── several containers by memory ─────────────────────────────────────────────────────────────────────────────────────


def test_containers_share_one_card_when_one_has_room_for_all() -> None:
    assert chosen(node_state("n", 60, 100), by_memory(50, "a"), by_memory(50, "b")) == {"a": [1], "b": [1]}


def test_containers_use_several_cards_when_none_has_room_for_all() -> None:
    assert chosen(node_state("n", 60, 50), by_memory(50, "a"), by_memory(60, "b")) == {"a": [1], "b": [0]}


def test_a_choice_that_leads_nowhere_is_taken_back() -> None:
    # The best fit for 50 is the card of 90, but then 45 + 45 find no place.
    state = node_state("n", 100, 90)
    found = chosen(state, by_memory(50, "a"), by_memory(50, "b"), by_memory(45, "c"), by_memory(45, "d"))
    assert found == {"a": [0], "b": [0], "c": [1], "d": [1]}


def test_containers_that_fit_no_combination_are_refused() -> None:
    assert chosen(node_state("n", 100, 90), by_memory(60, "a"), by_memory(60, "b"), by_memory(60, "c")) is None


def test_a_sidecar_and_an_app_may_use_two_cards() -> None:
    found = chosen(node_state("n", 50, 60), by_memory(50, "log", role=SIDECAR), by_memory(60, "main"))
    assert found == {"log": [0], "main": [1]}


def test_an_init_container_shares_the_card_of_its_successors() -> None:
    found = chosen(node_state("n", 60, 100), by_memory(90, "warm", role=INIT), by_memory(50, "main"))
    assert found == {"warm": [1], "main": [1]}


def test_only_containers_that_take_over_its_devices_are_tied_to_the_card_of_an_init_container() -> None:
    state = node_state("n", 60, 60)
    assert chosen(state, by_memory(1, "warm", role=INIT), by_memory(50, "a"), by_memory(50, "b")) == {
        "warm": [0],
        "a": [0],  # it gets the one unit that is left, and 49 more
        "b": [1],
    }
    assert chosen(state, by_memory(9, "warm", role=INIT), by_memory(8, "a"), by_memory(53, "b")) is None


def test_the_peak_counts_sidecars_beside_later_init_containers() -> None:
    containers = [by_memory(20, "log", role=SIDECAR), by_memory(90, "warm", role=INIT), by_memory(30, "main")]
    assert chosen(node_state("n", 109, 110), *containers) == {"log": [1], "warm": [1], "main": [1]}
    assert chosen(node_state("n", 109, 19), *containers) is None


# ── whole cards ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_whole_cards_are_unused_ones() -> None:
    assert chosen(node_state("n", FULL - 1, FULL, FULL), by_card(2)) == {"main": [1, 2]}
    assert chosen(node_state("n", FULL - 1, FULL), by_card(2)) is None


def test_a_whole_card_is_charged_in_full() -> None:
    (container,) = choose(request(by_card()), node_state("n", FULL)) or []
    (piece,) = container.slices
    assert (piece.memory, piece.cores) == (FULL, 100)


def test_a_card_on_which_somebody_holds_nothing_but_time_is_not_unused() -> None:
    state = NodeState(node_state("n").node, (card_state(0, FULL, node="n", idle=False),))
    assert chosen(state, by_card()) is None


def test_the_smallest_unused_cards_are_taken_so_that_large_ones_stay() -> None:
    state = NodeState(
        node_state("n").node,
        tuple(card_state(i, memory, node="n", memory=memory) for i, memory in enumerate((80, 16, 16))),
    )
    assert chosen(state, by_card()) == {"main": [1]}
    assert chosen(state, by_card(3)) == {"main": [1, 2, 0]}


def test_a_whole_card_has_all_cores_though_the_request_does_not_say_so() -> None:
    asked = by_card()
    asked = structs.replace(asked, request=Request(exclusive=True))
    (container,) = choose(request(asked), node_state("n", FULL)) or []
    assert [(s.memory, s.cores) for s in container.slices] == [(FULL, 100)]


@pytest.mark.parametrize(("memory", "cards"), [(1, {"main": [0]}), (0, None)])
def test_the_smallest_card_is_a_card_and_one_without_memory_is_not(memory: int, cards: object) -> None:
    assert chosen(node_state("n", memory, memory=memory), by_card()) == cards


def test_whole_cards_of_all_running_containers_add_up() -> None:
    assert cards_needed([by_card(1, "a"), by_card(2, "b"), by_card(1, "c")]) == 4
    assert cards_needed([by_card(1, "a", role=INIT), by_card(3, "b", role=INIT), by_card(1, "c")]) == 3
    assert cards_needed([]) == 0


def test_containers_hold_different_whole_cards() -> None:
    assert chosen(node_state("n", FULL, FULL, FULL), by_card(1, "a"), by_card(2, "b")) == {"a": [0], "b": [1, 2]}


def test_cards_of_a_finished_init_container_are_used_again() -> None:
    containers = [by_card(2, "warm", role=INIT), by_card(1, "a"), by_card(2, "b")]
    assert cards_needed(containers) == 3
    assert chosen(node_state("n", FULL, FULL, FULL), *containers) == {"warm": [0, 1], "a": [0], "b": [1, 2]}


def test_cards_of_a_sidecar_are_not_used_again() -> None:
    containers = [by_card(1, "log", role=SIDECAR), by_card(1, "warm", role=INIT), by_card(1, "main")]
    assert cards_needed(containers) == 2
    assert chosen(node_state("n", FULL, FULL), *containers) == {"log": [0], "warm": [1], "main": [1]}


def test_a_count_beyond_all_reason_is_refused_at_once() -> None:
    assert chosen(node_state("n", FULL), by_card(2**63 - 1)) is None


# ── both kinds in one pod ────────────────────────────────────────────────────────────────────────────────────────────


def test_memory_and_whole_cards_come_from_different_cards() -> None:
    assert chosen(node_state("n", 9000, FULL), by_memory(8138, "small"), by_card(1, "large")) == {
        "small": [0],
        "large": [1],
    }


def test_memory_gives_way_when_it_would_take_the_last_unused_card() -> None:
    # Best fit for the memory is the unused card of 8 GiB; then no card would be left for the other container.
    state = NodeState(
        node_state("n").node,
        (card_state(0, 8192, node="n", memory=8192), card_state(1, 9000, node="n", memory=FULL)),
    )
    assert chosen(state, by_memory(8000, "small"), by_card(1, "large")) == {"small": [1], "large": [0]}


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_memory_gives_way_by_every_policy(policy: str) -> None:
    state = NodeState(
        node_state("n").node,
        (card_state(0, 8192, node="n", memory=8192), card_state(1, 9000, node="n", memory=FULL)),
    )
    asked = (by_memory(8000, "small"), by_card(1, "large"))
    assert chosen(state, *asked, policy=policy) == {"small": [1], "large": [0]}


def test_several_containers_give_way_when_they_would_take_the_last_unused_card() -> None:
    state = NodeState(
        node_state("n").node,
        (card_state(0, 8192, node="n", memory=8192), card_state(1, 9000, node="n", memory=FULL)),
    )
    asked = (by_memory(4000, "a"), by_memory(4000, "b"), by_card(1, "large"))
    assert chosen(state, *asked) == {"a": [1], "b": [1], "large": [0]}


def test_both_on_a_node_without_an_unused_card_is_impossible() -> None:
    assert chosen(node_state("n", 5, 5), by_memory(1, "small"), by_card(1, "large")) is None
    assert chosen(node_state("n", 5, FULL), by_memory(6, "small"), by_card(1, "large")) is None


def test_both_on_a_single_card_is_impossible() -> None:
    assert chosen(node_state("n", FULL), by_memory(1, "small"), by_card(1, "large")) is None


@pytest.mark.timeout(10)
def test_a_pod_of_very_many_containers_is_answered_soon() -> None:
    containers = [by_memory(50 + i % 7, f"c{i}") for i in range(256)]
    assert chosen(node_state("n", *[130] * 8), *containers) is None
    assert chosen(node_state("n", *[16_000] * 2), *containers) is not None


# ── cores ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def cores_free(*free: int, coreless: bool = False) -> NodeState:
    """A node whose cards have half their memory and so many percent of their cores free."""
    cards = (card_state(i, FULL // 2, node="n", cores=c, coreless=coreless) for i, c in enumerate(free))
    return NodeState(node_state("n").node, tuple(cards))


def test_a_card_needs_both_memory_and_cores() -> None:
    assert chosen(cores_free(20, 60), by_share(100, 30)) == {"main": [1]}
    assert chosen(cores_free(20, 60), by_share(FULL, 30)) is None
    assert chosen(cores_free(20, 60), by_share(100, 61)) is None


def test_a_card_whose_cores_are_all_promised_takes_nobody_without_a_share() -> None:
    assert chosen(cores_free(0, 1), by_memory(100)) == {"main": [1]}
    assert chosen(cores_free(0, 0), by_memory(100)) is None


def test_not_all_cores_are_promised_where_somebody_has_no_share() -> None:
    assert chosen(cores_free(50, coreless=True), by_share(100, 49)) == {"main": [0]}
    assert chosen(cores_free(50, coreless=True), by_share(100, 50)) is None
    assert chosen(cores_free(50), by_share(100, 50)) == {"main": [0]}
    assert chosen(cores_free(50), by_share(100, 50, "a"), by_memory(100, "b")) is None


def test_an_init_container_without_a_share_does_not_starve_after_its_end() -> None:
    state = NodeState(node_state("n").node, (card_state(0, FULL, node="n"),))
    assert chosen(state, by_memory(100, "warm", role=INIT), by_share(100, 99), by_share(100, 1, "b")) is not None


def test_of_equal_memory_the_card_with_fewer_cores_left_is_taken() -> None:
    assert chosen(cores_free(100, 40, 60), by_share(100, 30)) == {"main": [1]}


# ── several cards with a part of each ────────────────────────────────────────────────────────────────────────────────


def test_a_container_may_have_a_part_of_each_of_several_cards() -> None:
    assert chosen(node_state("n", 5000, 100, 6000), by_slots(2, 4096)) == {"main": [0, 2]}
    assert chosen(node_state("n", 5000, 100, 4000), by_slots(2, 4096)) is None
    assert chosen(node_state("n", 9000), by_slots(2, 4096)) is None


def test_containers_with_several_cards_may_share_them() -> None:
    found = chosen(node_state("n", 9000, 9000), by_slots(2, 4096, name="a"), by_slots(2, 4096, name="b"))
    assert found is not None
    assert {name: sorted(cards) for name, cards in found.items()} == {"a": [0, 1], "b": [0, 1]}
    assert chosen(node_state("n", 9000, 8000), by_slots(2, 4096, name="a"), by_slots(2, 4096, name="b")) is None


def test_a_percentage_is_of_the_card_that_is_chosen_rounded_down() -> None:
    state = NodeState(
        node_state("n").node, tuple(card_state(i, m, node="n", memory=m) for i, m in enumerate((999, 2001)))
    )
    (container,) = choose(request(by_slots(2, 0, percent=50)), state) or []
    assert {s.card: s.memory for s in container.slices} == {uuid("n", 0): 499, uuid("n", 1): 1000}


def test_containers_share_a_card_by_percent_when_it_has_room_for_both() -> None:
    two = [by_slots(1, 0, percent=50, name=name) for name in "ab"]
    assert chosen(node_state("n", FULL, FULL), *two) == {"a": [0], "b": [0]}
    assert chosen(node_state("n", FULL - 1, FULL - 1), *two) == {"a": [0], "b": [1]}
    assert chosen(node_state("n", FULL - 1), *two) is None


def test_a_successor_gets_the_first_of_the_cards_that_an_init_container_had() -> None:
    found = chosen(node_state("n", 5000, 5000, 5000), by_slots(2, 4000, name="warm", role=INIT), by_slots(3, 4000))
    assert found is not None
    assert set(found["warm"]) < set(found["main"])


# ── selectors ────────────────────────────────────────────────────────────────────────────────────────────────────────

MIXED = NodeState(
    node_state("n").node,
    tuple(card_state(i, FULL, node="n", model=m) for i, m in enumerate(("Tesla T4", "NVIDIA A100-SXM4", "NVIDIA A10"))),
)


@pytest.mark.parametrize(
    ("selector", "cards"),
    [
        pytest.param(Selector(), [0], id="any"),
        pytest.param(Selector(models=("a100",)), [1], id="a model"),
        pytest.param(Selector(models=("A10",), not_models=("A100",)), [2], id="part of a name"),
        pytest.param(Selector(not_models=("tesla",)), [1], id="not a model"),
        pytest.param(Selector(cards=(uuid("n", 2),)), [2], id="a card"),
        pytest.param(Selector(not_cards=(uuid("n", 0), uuid("n", 1))), [2], id="not these cards"),
        pytest.param(Selector(models=("T4",), not_cards=(uuid("n", 0),)), None, id="none"),
    ],
)
def test_only_admitted_cards_are_chosen(selector: Selector, cards: list[int] | None) -> None:
    wanted = None if cards is None else {"main": cards}
    assert chosen(MIXED, only(selector, by_memory(100))) == wanted
    assert chosen(MIXED, only(selector, by_card())) == wanted


def test_containers_with_selectors_share_one_card_when_one_has_room_for_all() -> None:
    asked = [only(Selector(models=("V100",)), by_memory(50, name)) for name in "ab"]
    assert chosen(node_state("n", 60, 100), *asked) == {"a": [1], "b": [1]}


def test_a_card_is_shared_only_by_containers_to_which_it_is_right() -> None:
    first, other = only(Selector(models=("T4",)), by_memory(50, "a")), by_memory(50, "b")
    assert chosen(MIXED, first, other) == {"a": [0], "b": [0]}
    assert chosen(MIXED, only(Selector(models=("A100",)), by_memory(50, "a")), other) == {"a": [1], "b": [1]}


def test_each_container_that_takes_over_whole_cards_gets_one_that_is_right_for_it() -> None:
    state = structs.replace(MIXED, cards=(*MIXED.cards, card_state(3, FULL, node="n", model="NVIDIA A10")))
    a10 = Selector(models=("A10",), not_models=("A100",))
    found = chosen(state, by_card(2, "warm", role=INIT), by_card(1, "a"), only(a10, by_card(1, "b")))
    assert found == {"warm": [2, 3], "a": [2], "b": [3]}


def test_containers_share_a_card_only_in_sizes_that_its_rule_allows() -> None:
    halves = SharingRule(fractions=(Fraction(1, 2),))
    state = NodeState(
        node_state("n").node,
        (structs.replace(card_state(0, FULL, node="n"), rule=halves), card_state(1, FULL, node="n")),
    )
    assert chosen(state, by_memory(FULL // 2, "a"), by_memory(FULL // 2, "b")) == {"a": [0], "b": [0]}
    assert chosen(state, by_memory(4000, "a"), by_memory(4000, "b")) == {"a": [1], "b": [1]}


def test_the_policy_of_the_pod_wins_over_that_of_the_cluster_and_an_unknown_one_is_the_default() -> None:
    state = node_state("n", 5000, 9000)
    for own, cluster, card in (("spread", "binpack", 1), ("", "spread", 1), ("", "", 0), ("nonsense", "spread", 0)):
        asked = by_memory(100)
        asked = structs.replace(asked, request=structs.replace(asked.request, policy=own))
        assert chosen(state, asked, policy=cluster) == {"main": [card]}


# ── whether it fits ──────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("containers", "fitting"),
    [
        pytest.param([by_memory(6000)], True, id="memory"),
        pytest.param([by_memory(6001)], False, id="more memory"),
        pytest.param([by_slots(2, 5000)], True, id="a part of every card"),
        pytest.param([by_slots(3, 1)], False, id="more cards than there are"),
        pytest.param([by_card(1)], False, id="a whole card"),
        pytest.param([by_memory(6000, "a"), by_memory(5000, "b")], True, id="two containers"),
        pytest.param([by_memory(6000, "a"), by_memory(5001, "b")], False, id="more for two"),
        pytest.param([by_memory(1, "a"), by_memory(1, "b"), by_slots(2, 4000, name="c")], True, id="three containers"),
        pytest.param([by_memory(1, "a"), by_card(2**63 - 1, "b")], False, id="beyond all reason for the second"),
        pytest.param([by_card(2**63 - 1)], False, id="beyond all reason"),
    ],
)
def test_a_pod_fits_when_cards_are_found_for_it(containers: list[ContainerRequest], *, fitting: bool) -> None:
    state = node_state("n", 5000, 6000)
    assert fits(request(*containers), state) is fitting
    assert (choose(request(*containers), state) is not None) is fitting


# ── what a choice costs ──────────────────────────────────────────────────────────────────────────────────────────────


def cost(state: NodeState, *containers: ContainerRequest) -> int:
    """Looks, of a choice that finds cards."""
    effort = Effort()
    assert choose(request(*containers), state, effort=effort) is not None
    return effort.spent


@pytest.mark.parametrize("sizes", [1, 5])
def test_each_choice_for_several_containers_costs_something_so_that_a_call_over_many_nodes_has_an_end(
    sizes: int,
) -> None:
    memories = [FULL + n % sizes for n in range(8)]
    state = NodeState(node_state("n").node, tuple(card_state(i, m, node="n", memory=m) for i, m in enumerate(memories)))
    assert cost(state, by_memory(50, "a"), by_memory(50, "b")) > 0


def test_containers_that_are_compared_with_each_card_cost_more() -> None:
    state, two = node_state("n", *[FULL] * 8), [by_memory(50, name) for name in "ab"]
    assert cost(state, *(only(Selector(models=("V100",)), one) for one in two)) > cost(state, *two)


def test_where_a_call_has_nothing_left_several_containers_are_given_up_on_any_node() -> None:
    over = Effort(0)
    assert not fits(request(by_memory(50, "a"), by_memory(50, "b")), node_state("n", FULL), over)
    assert over.given_up
