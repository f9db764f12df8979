"""Non-GPU devices: which of them a container gets beside its cards."""

import pytest
from msgspec import structs

from fractile.model.card import Card
from fractile.model.placement import Placement
from fractile.model.properties import shared
from fractile.model.request import ContainerRequest, Role, Selector
from fractile.policy.cards.choice import choose, fits
from fractile.policy.cards.distance import distance
from fractile.policy.cards.plan import plan
from fractile.policy.cards.state import NodeState
from fractile.wire.fractile.resource_class import DEVICE_SLOT
from tests.builders import by_card, by_class, by_memory, card, card_state, cluster, device, only, request

IB = "ib"


def at(thing: Card, **places: int) -> Card:
    return structs.replace(thing, properties=shared({key: str(place) for key, place in places.items()}))


def node(*things: Card) -> NodeState:
    state = cluster({"n1": things}).node("n1")
    assert state is not None
    return state


def ib(name: str = "main", units: int = 1, role: Role = Role.APP) -> ContainerRequest:
    return by_class(IB, units, name, slot=DEVICE_SLOT, role=role)


def number(card: str) -> str:
    """Of a card KIND-NODE-NUMBER, or a device KIND-NUMBER.NODE."""
    return card.partition(".")[0].rpartition("-")[2]


def given(found: object) -> dict[str, list[str]]:
    """The devices of each container, by the ends of their ids."""
    assert isinstance(found, Placement), found
    return {c.container: [number(s.card) for s in c.slices if s.shares] for c in found.containers}


def cards_of(found: object) -> dict[str, list[str]]:
    assert isinstance(found, Placement), found
    return {c.container: sorted(number(s.card) for s in c.slices if not s.shares) for c in found.containers}


@pytest.mark.parametrize("place", ["numaNode", "interconnectGroup"])
@pytest.mark.parametrize("side", [0, 1])
def test_a_container_gets_the_device_near_its_card(place: str, side: int) -> None:
    there = node(
        at(card(index=0, memory=16000), **{place: side}),
        *(at(device(index=i), **{place: i}) for i in (0, 1)),
    )
    assert given(plan(request(by_memory(), ib()), there)) == {"main": [str(side)]}


def test_a_device_that_does_not_say_where_it_is_comes_before_one_that_is_elsewhere() -> None:
    there = node(at(card(), numaNode=1), at(device(index=0), numaNode=0), device(index=1), at(device(index=2), node=1))
    assert given(plan(request(by_memory(), ib()), there)) == {"main": ["1"]}


def test_the_numa_node_counts_more_than_the_group() -> None:
    near_group = card_state(0, 1)
    here = structs.replace(near_group, properties=shared({"numaNode": "0", "interconnectGroup": "0"}))
    numa = structs.replace(near_group, properties=shared({"numaNode": "0", "interconnectGroup": "4"}))
    group = structs.replace(near_group, properties=shared({"numaNode": "1", "interconnectGroup": "0"}))
    assert distance(here, [here]) < distance(numa, [here]) < 0 < distance(group, [here])
    assert distance(near_group, [here]) == distance(here, []) == 0


def test_a_far_device_is_better_than_none() -> None:
    there = node(at(card(), numaNode=1), at(device(index=0), numaNode=0))
    assert given(plan(request(by_memory(), ib()), there)) == {"main": ["0"]}


def test_of_several_devices_the_near_ones_come_first() -> None:
    there = node(
        *(at(card(index=i), numaNode=1) for i in (0, 1)),
        *(at(device(index=i), numaNode=i % 2) for i in range(4)),
    )
    assert given(plan(request(by_card(2), ib(units=2)), there)) == {"main": ["1", "3"]}
    assert given(plan(request(by_card(2), ib(units=3)), there)) == {"main": ["1", "3", "0"]}


@pytest.mark.parametrize("shares", [1, 2])
def test_containers_on_cards_far_from_each_other_get_devices_of_their_own(shares: int) -> None:
    there = node(
        *(at(card(index=i), numaNode=i) for i in (0, 1)),
        *(at(device(index=i, shares=shares), numaNode=1 - i) for i in (0, 1)),
    )
    asked = request(by_card(name="a"), ib("a"), by_card(name="b"), ib("b"))
    found = plan(asked, there)
    assert isinstance(found, Placement)
    cards = {c.container: c.slices[0].card.rpartition("-")[2] for c in found.containers}
    assert given(found) == {name: [str(1 - int(index))] for name, index in cards.items()}
    assert len(set(cards.values())) == 2


def test_containers_on_one_card_share_the_device_near_it() -> None:
    there = node(at(card(), numaNode=1), *(at(device(index=i, shares=2), numaNode=i) for i in (0, 1)))
    asked = request(by_memory(1024, "a"), ib("a"), by_memory(1024, "b"), ib("b"))
    assert given(plan(asked, there)) == {"a": ["1"], "b": ["1"]}


def test_of_devices_that_are_as_near_containers_share_the_one_that_holds_both() -> None:
    """Though each alone would be given the fuller one."""
    there = node(card(), device(index=0, shares=1), device(index=1, shares=2))
    assert given(plan(request(by_memory(1024, "a"), ib("a")), there)) == {"a": ["0"]}
    asked = request(by_memory(1024, "a"), ib("a"), by_memory(1024, "b"), ib("b"))
    assert given(plan(asked, there)) == {"a": ["1"], "b": ["1"]}


def test_containers_of_one_class_share_the_device_of_it_that_holds_both() -> None:
    """Though each alone would be given the fuller one."""
    there = node(card(), *(device(index=i, shares=shares) for i, shares in enumerate((1, 2, 2))))
    of_class = Selector(models=("ConnectX",), not_cards=(device(index=1).uuid,))
    asked = request(by_memory(1024, "a"), only(of_class, ib("a")), by_memory(1024, "b"), only(of_class, ib("b")))
    assert given(plan(asked, there)) == {"a": ["2"], "b": ["2"]}


def test_where_no_near_device_is_free_a_card_near_a_free_one_is_taken() -> None:
    there = node(
        *(at(card(index=i), numaNode=i) for i in (0, 1)),
        at(device(index=0), numaNode=1),
    )
    assert cards_of(plan(request(by_memory()), there)) == {"main": ["0"]}
    asked = request(by_memory(), ib())
    found = plan(asked, there)
    assert (cards_of(found), given(found)) == ({"main": ["1"]}, {"main": ["0"]})
    # Cards elsewhere are taken where the near ones do not suffice.
    found = plan(request(by_card(2), ib()), there)
    assert (cards_of(found), given(found)) == ({"main": ["0", "1"]}, {"main": ["0"]})


@pytest.mark.parametrize("asked", [by_memory(), by_card(2), by_card(3)])
def test_no_node_is_refused_for_what_is_far(asked: ContainerRequest) -> None:
    there = node(
        *(at(card(index=i), numaNode=i % 2) for i in range(3)),
        *(at(device(index=i), numaNode=2) for i in range(2)),
    )
    assert fits(request(asked, ib(units=2)), there)
    assert given(plan(request(asked, ib(units=2)), there)) == {"main": ["0", "1"]}


def test_where_nothing_is_known_the_fullest_device_is_filled() -> None:
    ledger = cluster({"n1": [card(), device(index=0, shares=4), device(index=1, shares=2)]})
    state = ledger.node("n1")
    assert state is not None
    assert given(plan(request(by_memory(), ib()), state)) == {"main": ["1"]}
    assert given(plan(request(ib()), state)) == {"main": ["1"]}


@pytest.mark.parametrize(
    ("asked", "whose"),
    [
        pytest.param((by_memory(99_999), ib()), "card", id="no card"),
        pytest.param((by_memory(), ib(units=2)), "devices", id="more devices than there are"),
        pytest.param((by_memory(), ib(), ib("b")), "shares", id="more shares than there are"),
        pytest.param((by_memory(99_999), ib(units=2)), "both", id="neither"),
    ],
)
def test_what_has_no_room_beside_the_other_is_not_placed(asked: tuple[ContainerRequest, ...], whose: str) -> None:
    there = node(card(), device())
    assert choose(request(*asked), there) is None, whose
    assert not fits(request(*asked), there)


def test_a_device_whose_shares_are_all_held_is_given_to_no_pod() -> None:
    ledger = cluster({"n1": [card(), device()]})
    asked = request(by_memory(), ib())
    state = ledger.node("n1")
    assert state is not None
    placed = choose(asked, state)
    assert placed is not None
    assert ledger.assume(asked.uid, Placement(state.node, placed)) is None
    state = ledger.node("n1")
    assert state is not None
    assert choose(asked, state) is None


@pytest.mark.parametrize(("policy", "index"), [("binpack", "0"), ("spread", "1")])
def test_cards_beside_devices_are_chosen_by_the_policy_of_the_cluster(policy: str, index: str) -> None:
    there = node(card(index=0, memory=9000), card(index=1, memory=16000), device())
    found = choose(request(by_memory(), ib()), there, policy)
    assert found is not None
    assert [number(s.card) for s in found[0].slices if not s.shares] == [index]


@pytest.mark.parametrize("place", ["numaNode", "interconnectGroup"])
@pytest.mark.parametrize(("policy", "index"), [("binpack", "1"), ("spread", "2")])
def test_cards_near_a_free_device_are_chosen_by_the_policy_of_the_cluster(place: str, policy: str, index: str) -> None:
    """Card 0 is the fullest and card 3 the emptiest, both elsewhere."""
    sizes = {0: (8500, 0), 1: (9000, 1), 2: (16_000, 1), 3: (20_000, 0)}
    there = node(
        *(at(card(index=i, memory=memory), **{place: where}) for i, (memory, where) in sizes.items()),
        at(device(), **{place: 1}),
    )
    found = choose(request(by_memory(), ib()), there, policy)
    assert found is not None
    assert [number(s.card) for s in found[0].slices if not s.shares] == [index]


def test_a_card_that_does_not_say_where_it_is_stays_the_choice() -> None:
    there = node(card(index=0, memory=9000), at(card(index=1), numaNode=1), at(device(), numaNode=1))
    assert cards_of(plan(request(by_memory(), ib()), there)) == {"main": ["0"]}
