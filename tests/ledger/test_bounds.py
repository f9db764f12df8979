"""Which nodes and cards the quota leaves to a pod, as masks over the arrays."""

import numpy as np
import pytest
from msgspec import structs

from fractile.ledger.arrays import CardLayer
from fractile.ledger.layers import KeptLayer
from fractile.ledger.ledger import Ledger
from fractile.model.quota import NOWHERE, NodePlace
from fractile.model.request import ContainerRequest, PodRequest, Selector
from fractile.model.units import CardUUID, NodeName
from fractile.policy.quota import Allowance, Model
from tests.builders import by_card, by_class, by_memory, by_slots, card, card_uuid, cluster, in_use, only, request

T4, A10 = ("", "T4"), ("", "A10")
ANY_NODE = Allowance("team")


@pytest.fixture
def ledger() -> Ledger:
    """Node n1 with two T4, n2 with a T4 and an A10, n3 with two A10."""
    models = {"n1": ("T4", "T4"), "n2": ("T4", "A10"), "n3": ("A10", "A10")}
    return cluster({n: [card(n, i, model=m) for i, m in enumerate(of)] for n, of in models.items()})


def nodes(ledger: Ledger, *pools: str) -> set[str]:
    found = ledger.bounds.nodes(Allowance("team", frozenset(pools)))
    assert found is not None
    names = (ledger.arrays.names[column] for column in found.nonzero()[0].tolist())
    return {name or "no node" for name in names}


def open_cards(ledger: Ledger, left: Allowance, asked: ContainerRequest | None = None) -> set[str]:
    """What is left to a container's selector of all cards."""
    (container,) = ledger.bounds.narrowed(request(asked or by_card()), left).containers
    members = container.request.selector.members
    assert isinstance(members, CardLayer)
    assert members.mask.shape == ledger.arrays.memory.shape
    assert members.mask.sum() >= sum(uuid in members for uuid in ledger.arrays.cells)
    return {uuid for uuid in ledger.arrays.cells if uuid in members}


def uuids(*cards: tuple[str, int]) -> set[str]:
    return {card_uuid(node, index) for node, index in cards}


# ── nodes ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_without_pools_every_node_is_open(ledger: Ledger) -> None:
    assert ledger.bounds.nodes(ANY_NODE) is None


def test_nodes_in_one_of_the_pools_are_open(ledger: Ledger) -> None:
    for name, pool in (("n1", "red"), ("n2", "blue")):
        ledger.usage.put_place(NodeName(name), NodePlace(pool))
    assert nodes(ledger, "red") == {"n1"}
    assert nodes(ledger, "red", "blue") == {"n1", "n2"}
    assert nodes(ledger, "green") == set()
    assert nodes(ledger, "red") == {"n1"}


def test_a_node_is_in_the_pool_that_its_labels_name_now(ledger: Ledger) -> None:
    ledger.usage.put_place(NodeName("n1"), NodePlace("red"))
    assert nodes(ledger, "red") == {"n1"}
    ledger.usage.put_place(NodeName("n1"), NodePlace("blue"))
    ledger.usage.put_place(NodeName("n3"), NodePlace("red"))
    assert nodes(ledger, "red") == {"n3"}
    ledger.usage.put_place(NodeName("n4"), NodePlace("red"))
    assert nodes(ledger, "red") == {"n3"}, "it has no cards"
    ledger.put_card(NodeName("n4"), card("n4"))
    assert nodes(ledger, "red") == {"n3", "n4"}


def test_masks_grow_with_the_arrays(ledger: Ledger) -> None:
    ledger.usage.put_place(NodeName("m99"), NodePlace("red"))
    assert nodes(ledger, "red") == set()
    assert open_cards(ledger, Allowance("team", closed={A10: ""})) == uuids(("n1", 0), ("n1", 1), ("n2", 0))
    for i in range(100):
        ledger.put_card(NodeName(f"m{i}"), card(f"m{i}", model="A10"))
    assert nodes(ledger, "red") == {"m99"}
    assert open_cards(ledger, Allowance("team", closed={A10: ""})) == uuids(("n1", 0), ("n1", 1), ("n2", 0))


# ── cards ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_request_stays_the_same_when_no_model_is_closed(ledger: Ledger) -> None:
    asked = request(by_card())
    assert ledger.bounds.narrowed(asked, ANY_NODE) is asked


@pytest.mark.parametrize(
    ("closed", "wanted"),
    [
        pytest.param(T4, uuids(("n2", 0), ("n2", 1), ("n3", 0), ("n3", 1)), id="of nodes without a label"),
        pytest.param(
            ("Tesla", "T4"), uuids(("n1", 0), ("n1", 1), ("n2", 1), ("n3", 0), ("n3", 1)), id="of nodes with a label"
        ),
        pytest.param(
            ("Tesla", "A10"), uuids(("n1", 0), ("n1", 1), ("n2", 0), ("n3", 0), ("n3", 1)), id="another model of them"
        ),
        pytest.param(("Tesla", "A100"), uuids(*((n, i) for n in ("n1", "n2", "n3") for i in range(2))), id="of none"),
    ],
)
def test_cards_of_closed_models_are_not_open(ledger: Ledger, closed: Model, wanted: set[str]) -> None:
    ledger.usage.put_place(NodeName("n2"), NodePlace("", "Tesla"))
    assert open_cards(ledger, Allowance("team", closed={closed: "why"})) == wanted


def test_a_node_that_has_no_other_model_is_not_open_where_one_node_cannot_give_enough(ledger: Ledger) -> None:
    assert open_cards(ledger, Allowance("team", alone=frozenset({T4}))) == uuids(
        ("n2", 0), ("n2", 1), ("n3", 0), ("n3", 1)
    )
    assert open_cards(ledger, Allowance("team", closed={A10: "why"}, alone=frozenset({T4}))) == uuids(("n2", 0))


def test_a_label_and_a_model_together_say_where_one_node_cannot_give_enough(ledger: Ledger) -> None:
    everything = set(ledger.arrays.cells)
    ledger.put_card(NodeName("n4"), card("n4", 0, model="A10"))
    ledger.put_card(NodeName("n4"), card("n4", 1, model="A10"))
    ledger.usage.put_place(NodeName("n4"), NodePlace("", "Ampere"))
    assert open_cards(ledger, Allowance("team", alone=frozenset({("Ampere", "A10")}))) == everything
    assert open_cards(ledger, Allowance("team", alone=frozenset({("Ampere", "T4")}))) == set(ledger.arrays.cells)
    assert open_cards(ledger, Allowance("team", alone=frozenset({A10}))) == set(ledger.arrays.cells) - uuids(
        ("n3", 0), ("n3", 1)
    )


def test_a_node_of_one_model_is_known_wherever_that_model_is_in_the_list_of_models(ledger: Ledger) -> None:
    assert open_cards(ledger, Allowance("team", alone=frozenset({A10}))) == uuids(
        ("n1", 0), ("n1", 1), ("n2", 0), ("n2", 1)
    )


def test_a_node_that_loses_its_other_model_has_only_one(ledger: Ledger) -> None:
    left = Allowance("team", alone=frozenset({T4}))
    assert uuids(("n2", 0)) <= open_cards(ledger, left)
    ledger.drop_card(card_uuid("n2", 1))
    assert open_cards(ledger, left) == uuids(("n3", 0), ("n3", 1))


def test_what_a_container_asks_for_is_narrowed_further(ledger: Ledger) -> None:
    left = Allowance("team", closed={A10: "why"})
    members = KeptLayer(ledger.arrays)
    for uuid in (card_uuid("n1", 1), card_uuid("n3", 0)):
        members.mark(uuid)
    assert open_cards(ledger, left, only(members.selector, by_card())) == uuids(("n1", 1))
    few = frozenset({card_uuid("n2", 0), card_uuid("n2", 1)})
    assert open_cards(ledger, left, only(Selector(members=few), by_card())) == uuids(("n2", 0))
    assert members.mask.sum() == 2, "the class itself stays as it was"
    assert open_cards(ledger, left) == uuids(("n1", 0), ("n1", 1), ("n2", 0))


def test_a_narrowed_request_asks_for_the_rest_as_before(ledger: Ledger) -> None:
    selector = Selector(models=("T",), not_cards=(card_uuid("n1", 0),))
    asked = request(only(selector, by_memory(5, "a")), by_slots(2, 7, name="b"))
    found = ledger.bounds.narrowed(asked, Allowance("team", closed={A10: "why"}))
    first, second = found.containers
    assert structs.replace(first.request, selector=selector) == asked.containers[0].request
    assert first.request.selector.models == ("T",)
    assert first.request.selector.not_cards == (card_uuid("n1", 0),)
    assert structs.replace(second.request, selector=Selector()) == asked.containers[1].request
    assert (found.uid, found.name, first.container, second.container) == (asked.uid, asked.name, "a", "b")


def test_containers_that_ask_alike_share_one_layer(ledger: Ledger) -> None:
    members = KeptLayer(ledger.arrays)
    asked = request(by_card(1, "a"), by_card(1, "b"), *(only(members.selector, by_card(1, n)) for n in "cd"))
    found = [
        c.request.selector.members for c in ledger.bounds.narrowed(asked, Allowance("t", closed={A10: ""})).containers
    ]
    assert found[0] is found[1]
    assert found[2] is found[3]
    assert found[0] is not found[2]


def test_other_devices_are_not_narrowed(ledger: Ledger) -> None:
    asked = by_class("ib")
    device = structs.replace(asked, request=structs.replace(asked.request, shares=1))
    found = ledger.bounds.narrowed(request(by_card(1, "a"), device), Allowance("team", closed={A10: "why"}))
    assert found.containers[0].request.selector.members is not None
    assert found.containers[1] is device


def test_the_same_bounds_again_are_the_same_layer_until_cards_come(ledger: Ledger) -> None:
    def layer(left: Allowance) -> object:
        (container,) = ledger.bounds.narrowed(request(by_card()), left).containers
        return container.request.selector.members

    closed = Allowance("team", closed={A10: "why"})
    first = layer(closed)
    assert layer(Allowance("other", closed={A10: "another reason"})) is first
    assert layer(Allowance("team", closed={T4: "why"})) is not first
    assert layer(Allowance("team", closed={A10: "why"}, alone=frozenset({T4}))) is not first
    assert layer(closed) is first
    ledger.put_card(NodeName("n4"), card("n4"))
    assert layer(closed) is not first


def test_sixty_four_layers_are_kept(ledger: Ledger) -> None:
    def layer(number: int) -> object:
        left = Allowance("team", closed={("", f"model {number}"): "why"})
        (container,) = ledger.bounds.narrowed(request(by_card()), left).containers
        return container.request.selector.members

    kept = [layer(number) for number in range(64)]
    assert [layer(number) for number in range(64)] == kept
    layer(64)
    assert layer(0) is not kept[0]


# ── room ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def somewhere(ledger: Ledger, left: Allowance | None, *containers: ContainerRequest) -> bool:
    asked: PodRequest = request(*containers)
    return ledger.bounds.somewhere(asked, left)


def test_a_pod_has_room_somewhere_when_one_node_meets_its_need(ledger: Ledger) -> None:
    assert somewhere(ledger, None, by_card(2))
    assert not somewhere(ledger, None, by_card(3))
    in_use(ledger, "n1", 1, 1)
    in_use(ledger, "n2", 1)
    assert somewhere(ledger, None, by_card(2))
    in_use(ledger, "n3", 1)
    assert not somewhere(ledger, None, by_card(2))


def test_room_on_closed_cards_is_none(ledger: Ledger) -> None:
    in_use(ledger, "n1", 1, 1)
    in_use(ledger, "n2", 1)
    closed = Allowance("team", closed={A10: "why"})
    assert not somewhere(ledger, closed, by_card(1))
    assert somewhere(ledger, Allowance("team", closed={T4: "why"}), by_card(1))
    assert somewhere(ledger, closed, by_memory(8))


def test_room_on_nodes_of_other_pools_is_none(ledger: Ledger) -> None:
    ledger.usage.put_place(NodeName("n1"), NodePlace("red"))
    red = Allowance("team", frozenset({"red"}))
    assert somewhere(ledger, red, by_card(2))
    in_use(ledger, "n1", 1)
    assert not somewhere(ledger, red, by_card(2))
    assert somewhere(ledger, None, by_card(2))


def test_a_pod_that_asks_for_other_devices_only_has_room_as_far_as_quotas_are_concerned(ledger: Ledger) -> None:
    asked = by_class("ib")
    device = structs.replace(asked, request=structs.replace(asked.request, shares=1))
    assert somewhere(ledger, None, device)
    assert somewhere(ledger, Allowance("team", closed={T4: "", A10: ""}), device)
    assert not somewhere(ledger, None, device, by_card(3, "more"))


# ── what quotas can tell apart ───────────────────────────────────────────────────────────────────────────────────────


def test_nodes_are_alike_by_their_labels_and_the_models_of_their_cards(ledger: Ledger) -> None:
    ledger.put_card(NodeName("n4"), card("n4", 0, model="T4"))
    for index, model in enumerate(("T4", "A10", "T4")):
        ledger.put_card(NodeName("n5"), card("n5", index, model=model))
    ledger.put_card(NodeName("n6"), card("n6", 0, model="V100"))
    ledger.put_card(NodeName("n6"), card("n6", 1, model="T4"))
    for index, model in enumerate(("A10", "V100", "T4")):
        ledger.put_card(NodeName("n8"), card("n8", index, model=model))
        if model != "T4":
            ledger.put_card(NodeName("n7"), card("n7", index, model=model))
    names = [f"n{n}" for n in range(1, 9)]
    n1, n2, n3, n4, n5, n6, n7, n8 = ledger.bounds.alike(np.array([ledger.arrays.find(n) for n in names]))
    assert n1 == n4
    assert n2 == n5, "the same two models"
    assert len({str(kind) for kind in (n1, n2, n3, n6, n7, n8)}) == 6
    ledger.usage.put_place(NodeName("n4"), NodePlace("red"))
    n1, n4 = ledger.bounds.alike(np.array([ledger.arrays.find(n) for n in ("n1", "n4")]))
    assert n1 != n4
    ledger.usage.put_place(NodeName("n4"), NOWHERE)
    n1, n4 = ledger.bounds.alike(np.array([ledger.arrays.find(n) for n in ("n1", "n4")]))
    assert n1 == n4


def test_the_smallest_card_is_a_card(ledger: Ledger) -> None:
    ledger.put_card(NodeName("n4"), card("n4", 0, model="A10", memory=1))
    ledger.put_card(NodeName("n5"), card("n5", 0, model="A10", memory=1))
    ledger.put_card(NodeName("n5"), card("n5", 1, model="T4"))
    ledger.put_card(NodeName("n6"), card("n6", 0, model="A10"))
    ledger.put_card(NodeName("n6"), card("n6", 1, model="T4"))
    n3, n4, n5, n6 = ledger.bounds.alike(np.array([ledger.arrays.find(n) for n in ("n3", "n4", "n5", "n6")]))
    assert n3 == n4
    assert n5 == n6
    assert n5 != n3


def test_a_cluster_of_one_model_has_bounds_by_label_too() -> None:
    ledger = cluster({n: [card(n, model="T4")] for n in ("n1", "n2", "n3")})
    for name, label in (("n2", "Tesla"), ("n3", "Turing")):
        ledger.usage.put_place(NodeName(name), NodePlace("", label))
    assert open_cards(ledger, Allowance("team", closed={("Turing", "T4"): "why"})) == uuids(("n1", 0), ("n2", 0))
    assert open_cards(ledger, Allowance("team", alone=frozenset({("Tesla", "T4")}))) == uuids(("n1", 0), ("n3", 0))


def test_a_cluster_without_cards_has_bounds_too() -> None:
    ledger = Ledger(lambda: 0.0)
    assert nodes(ledger, "red") == set()
    (container,) = ledger.bounds.narrowed(request(by_card()), Allowance("team", closed={T4: ""})).containers
    members = container.request.selector.members
    assert members is not None
    assert CardUUID("any") not in members
    assert not somewhere(ledger, Allowance("team", closed={T4: ""}), by_card())
