"""What the quota of a namespace leaves to a pod, on worked examples."""

from collections.abc import Mapping, Sequence

import pytest
from msgspec import structs

from fractile.model.placement import Placement
from fractile.model.quota import NOWHERE, UNLIMITED, NamespaceQuota, NodePlace, Quota, QuotaLimit
from fractile.model.refusal import Code, Refusal
from fractile.model.request import ContainerRequest, PodRequest, Request, Role
from fractile.model.units import MiB, NodeName
from fractile.policy.cards.state import CardState, NodeState
from fractile.policy.quota import Allowance, CardKind, Model, allowance, cost, in_cards, matches, passed, plan_within
from tests.builders import by_card, by_memory, by_share, card_state, request

M40, P100 = "Tesla M40", "Tesla P100-PCIE-16GB"
KINDS = (CardKind("", M40, MiB(16_276)), CardKind("", P100, MiB(16_276)))


def quota(pools: Sequence[str] | None = None, limits: Mapping[str, int] | None = None) -> Quota:
    """Of the namespace that all pods of these tests are in; ``limits`` in percent of a card."""
    own = NamespaceQuota(
        None if pools is None else tuple(pools),
        None if limits is None else tuple(QuotaLimit(name, percent) for name, percent in limits.items()),
    )
    return Quota({"default": own})


def left(
    rules: Quota, *asked: ContainerRequest, held: Mapping[Model, int] | None = None, kinds: Sequence[CardKind] = KINDS
) -> Allowance | Refusal | None:
    return allowance(rules, request(*asked), kinds, held or {})


def node(*cards: CardState) -> NodeState:
    return NodeState(NodeName("n1"), cards)


def m40(index: int, free: int = 16_276) -> CardState:
    return card_state(index, free, model=M40)


def p100(index: int, free: int = 16_276) -> CardState:
    return card_state(index, free, model=P100)


def placed(
    asked: PodRequest,
    state: NodeState,
    rules: Quota,
    held: Mapping[Model, int] | None = None,
    place: NodePlace = NOWHERE,
) -> list[int] | str:
    """The cards that the pod would get, or why it gets none."""
    found = allowance(rules, asked, {CardKind(place.model, c.model, c.memory) for c in state.cards}, held or {})
    chosen = found if isinstance(found, Refusal) else plan_within(asked, state, place, found)
    if isinstance(chosen, Refusal):
        assert chosen.code is Code.QUOTA
        return chosen.message
    index = {c.uuid: c.index for c in state.cards}
    return [index[s.card] for c in chosen.containers for s in c.slices]


@pytest.mark.parametrize(
    ("name", "label", "model", "expected"),
    [
        ("M40", "", "Tesla M40", True),
        ("m40", "", "Tesla M40 24GB", True),
        ("tesla m40", "", "Tesla-M40-24GB", True),
        ("Tesla V100", "", "Tesla V100-SXM2-16GB", True),
        ("A10", "", "NVIDIA A100-SXM4-40GB", False),
        ("A10", "", "NVIDIA A10G", False),
        ("P4", "", "Tesla P40", False),
        ("L40", "", "NVIDIA L40S", False),
        ("A100 40GB", "", "NVIDIA A100-SXM4-40GB", False),
        ("RTX 4090", "", "NVIDIA GeForce RTX 4090", True),
        ("*", "", "anything", True),
        ("M40", "M40", "Graphics Device", True),
        ("M40", "P40", "Graphics Device", False),
        ("4090", "", "", False),
    ],
)
def test_a_name_names_models_that_have_its_words(name: str, label: str, model: str, expected: bool) -> None:
    assert matches(name, label, model) is expected


@pytest.mark.parametrize(
    ("memory", "cores", "expected"),
    [(8138, 0, 50), (8139, 0, 51), (1, 0, 1), (0, 30, 30), (4069, 30, 30), (8138, 30, 50), (16_276, 100, 100)],
)
def test_a_part_counts_the_larger_of_its_memory_and_its_cores_rounded_up(
    memory: int, cores: int, expected: int
) -> None:
    assert cost(memory, cores, 16_276) == expected


def test_a_device_without_memory_counts_nothing() -> None:
    assert cost(0, 0, 0) == 0


@pytest.mark.parametrize(("percent", "said"), [(0, "0"), (5, "0.05"), (50, "0.5"), (100, "1"), (1250, "12.5")])
def test_percents_are_said_in_cards(percent: int, said: str) -> None:
    assert in_cards(percent) == said


def test_without_a_quota_nothing_is_bounded() -> None:
    assert left(UNLIMITED, by_memory()) is None
    assert left(Quota({"other": NamespaceQuota(pools=("x",))}), by_memory()) is None
    assert left(quota(), by_memory()) is None


def test_namespaces_that_are_not_named_may_be_given_nothing() -> None:
    refused = left(Quota(others=False), by_memory())
    assert isinstance(refused, Refusal)
    assert refused.message == "no quota gives cards to namespace default"
    assert not refused.resolvable


def test_nobody_is_given_a_card_while_nobody_knows_the_quotas() -> None:
    refused = left(Quota(problem="the quotas cannot be read"), by_memory())
    assert refused == Refusal(Code.QUOTA, "the quotas cannot be read")


def test_a_full_quota_is_said_in_numbers() -> None:
    full = left(quota(limits={"M40": 200}), by_card(), held={("", M40): 200}, kinds=KINDS[:1])
    assert full == Refusal(Code.QUOTA, "namespace default may hold 2 M40, holds 2, and this pod takes 1")
    part = left(quota(limits={"M40": 200}), by_share(4069, 30), held={("", M40): 180}, kinds=KINDS[:1])
    assert part == Refusal(Code.QUOTA, "namespace default may hold 2 M40, holds 1.8, and this pod takes 0.3")
    none = left(quota(limits={"M40": 0}), by_memory(), kinds=KINDS[:1])
    assert none == Refusal(Code.QUOTA, "namespace default may hold no M40")


def test_what_just_fits_is_given() -> None:
    assert isinstance(left(quota(limits={"M40": 200}), by_share(4069, 30), held={("", M40): 170}), Allowance)


def test_models_that_the_quota_does_not_name_are_closed() -> None:
    found = left(quota(limits={"M40": 200}), by_card())
    assert isinstance(found, Allowance)
    assert dict(found.closed) == {("", P100): f"namespace default may hold M40 only, but this card is {P100}"}
    assert not found.tight


def test_every_limit_that_names_a_model_counts() -> None:
    rules = quota(limits={"*": 300, "P100": 200})
    assert placed(request(by_card()), node(p100(0)), rules, {("", M40): 200, ("", P100): 0}) == [0]
    said = placed(request(by_card()), node(p100(0)), rules, {("", M40): 300})
    assert said == "namespace default may hold 3 cards, holds 3, and this pod takes 1"


def test_a_closed_model_leaves_the_node_s_other_cards() -> None:
    rules = quota(limits={"M40": 100, "P100": 100})
    assert placed(request(by_memory(100)), node(m40(0, 4069), p100(1)), rules, {("", M40): 100}) == [1]
    assert placed(request(by_memory(100)), node(m40(0, 4069), p100(1)), rules) == [0]  # the tighter fit


def test_several_whole_cards_come_from_as_many_models_as_the_quota_needs() -> None:
    rules = quota(limits={"M40": 100, "P100": 200})
    mixed = node(m40(0), m40(1), m40(2), p100(3), p100(4), p100(5))
    found = placed(request(by_card(3)), mixed, rules)
    assert isinstance(found, list)
    assert sorted(found)[0] in (0, 1, 2)
    assert len([i for i in found if i < 3]) == 1


def test_more_cards_than_the_quota_has_are_refused_on_every_node() -> None:
    rules = quota(limits={"M40": 200})
    said = placed(request(by_card(3)), node(m40(0), m40(1), m40(2)), rules)
    assert said == "namespace default may hold 2 M40, holds 0, and this pod takes 3"


def test_a_node_of_one_model_that_cannot_give_enough_is_known_without_a_look() -> None:
    found = left(quota(limits={"M40": 200, "P100": 400}), by_card(3))
    assert isinstance(found, Allowance)
    assert found.tight
    assert found.alone == {("", M40)}


def test_a_model_of_two_sizes_gives_enough_if_one_of_its_sizes_does() -> None:
    kinds = [CardKind("", "B", MiB(8)), CardKind("", "B", MiB(12))]
    two = structs.replace(by_memory(3), request=Request(count=2, memory=MiB(3)))
    found = left(quota(limits={"B": 75}), two, kinds=kinds)
    assert isinstance(found, Allowance)
    assert found.tight
    assert not found.alone, "two cards of 8 MiB would cost 76 %, one of each 63 %"


def test_containers_of_one_pod_are_counted_together() -> None:
    two = request(by_memory(9000, "a"), by_memory(9000, "b"))
    rules = quota(limits={"M40": 100})
    said = placed(two, node(m40(0), m40(1)), rules)
    assert said == "namespace default may hold 1 M40, holds 0, and this pod takes 1.12"
    assert placed(two, node(m40(0), m40(1)), quota(limits={"M40": 112})) == [0, 1]


def test_an_init_container_that_is_done_counts_no_more_than_what_follows_it() -> None:
    asked = request(by_memory(8138, "init", role=Role.INIT), by_memory(8138, "main"))
    assert placed(asked, node(m40(0)), quota(limits={"M40": 50})) == [0, 0]


def test_where_the_cards_are_full_the_quota_is_not_the_reason() -> None:
    rules = quota(limits={"M40": 100, "P100": 100})
    asked = request(by_memory(9000))
    found = allowance(rules, asked, KINDS, {("", M40): 100})
    chosen = plan_within(asked, node(m40(0, 500)), NOWHERE, found if isinstance(found, Allowance) else None)
    assert isinstance(chosen, Refusal)
    assert chosen.code is Code.NO_ROOM
    assert chosen.resolvable


def test_a_node_in_no_pool_of_the_namespace_is_refused() -> None:
    rules = quota(pools=["public", "burst"])
    asked = request(by_memory())
    assert placed(asked, node(m40(0)), rules, place=NodePlace("burst")) == [0]
    said = "namespace default may use nodes of pool burst or public only, and this one is in"
    assert placed(asked, node(m40(0)), rules, place=NodePlace("wx")) == f"{said} pool wx"
    assert placed(asked, node(m40(0)), rules) == f"{said} no pool"


def test_the_label_of_a_node_names_its_cards() -> None:
    rules = quota(limits={"M40": 100})
    odd = node(card_state(0, 16_276, model="Graphics Device"))
    assert placed(request(by_card()), odd, rules, place=NodePlace(model="M40")) == [0]
    assert (
        placed(request(by_card()), odd, rules)
        == "namespace default may hold M40 only, but this card is Graphics Device"
    )


def test_a_part_of_a_larger_card_of_the_same_name_counts_less() -> None:
    small, large = m40(0), structs.replace(m40(1), memory=MiB(32_552), free_memory=MiB(32_552))
    rules = quota(limits={"M40": 30})
    assert placed(request(by_memory(8138)), node(small, large), rules) == [1]
    said = placed(request(by_memory(8138)), node(small), quota(limits={"M40": 30}))
    assert said == "namespace default may hold 0.3 M40, holds 0, and this pod takes 0.5"


def test_other_devices_are_no_matter_of_the_quota() -> None:
    other = by_card()
    other = structs.replace(other, request=structs.replace(other.request, shares=1))
    assert left(quota(limits={"M40": 0}), other) is None


def test_the_last_look_knows_amounts_only() -> None:
    rules = quota(limits={"M40": 200})
    assert passed(rules, "default", {("", M40): 100}, {("", M40): 100}) is None
    refused = passed(rules, "default", {("", M40): 100}, {("", M40): 101})
    assert refused is not None
    assert refused.message == "namespace default may hold 2 M40, holds 1, and this pod takes 1.01"
    assert passed(rules, "default", {}, {("", P100): 1}) is not None
    assert passed(rules, "default", {("", M40): 300}, {}) is None
    assert passed(Quota(others=False), "default", {}, {("", M40): 1}) is not None
    assert passed(UNLIMITED, "default", {}, {("", M40): 1}) is None


def test_a_plan_without_a_quota_is_the_plan() -> None:
    assert isinstance(plan_within(request(by_memory()), node(m40(0)), NOWHERE, None), Placement)
