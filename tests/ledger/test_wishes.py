"""What a pod's request comes to for scores of nodes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from fractile.ledger.arrays import CardArrays, CardLayer
from fractile.ledger.layers import KeptLayer
from fractile.ledger.ledger import Ledger
from fractile.ledger.wishes import models_of, wish_of
from fractile.model.pod_demand import PartOfCard, PodDemand
from fractile.model.request import ContainerRequest, Role, Selector
from fractile.policy.nodes.asked import asked
from fractile.wire.fractile.placement import MAX_SLICES
from fractile.wire.kubernetes.pod_totals import PodTotals
from tests.builders import by_card, by_class, by_memory, by_share, by_slots, card, card_uuid, cluster, only, request

TOTALS = PodTotals(500, 100)
NOTHING = PodDemand(500, 100)
INIT = Role.INIT


@pytest.fixture
def ledger() -> Ledger:
    """A node with a T4, an A10 and an A100."""
    models = ("T4", "NVIDIA A10", "NVIDIA A100")
    return cluster({"n1": [card("n1", i, model=model) for i, model in enumerate(models)]})


def wish(*containers: ContainerRequest, arrays: CardArrays | None = None) -> PodDemand:
    return wish_of(request(*containers), TOTALS, CardArrays() if arrays is None else arrays)


def test_a_pod_without_devices_asks_for_cpu_and_memory_only() -> None:
    assert wish_of(None, TOTALS, CardArrays()) == NOTHING


def test_devices_that_are_no_gpus_do_not_count() -> None:
    asked = by_class("ib")
    device = structs.replace(asked, request=structs.replace(asked.request, shares=1))
    assert wish(device) == NOTHING
    assert wish(by_card(2), device) == structs.replace(NOTHING, whole=2)


@pytest.mark.parametrize(
    ("containers", "whole", "parts"),
    [
        pytest.param([by_memory(8)], 0, [PartOfCard(8)], id="memory"),
        pytest.param([by_card(3)], 3, [], id="whole cards"),
        pytest.param([by_share(8, 30)], 0, [PartOfCard(8, cores=30)], id="memory and cores"),
        pytest.param([by_slots(2, 0, 30, percent=25)], 0, [PartOfCard(0, 25, 30)] * 2, id="percent of two cards"),
        pytest.param([by_memory(8, "a"), by_card(2, "b")], 2, [PartOfCard(8)], id="both"),
        pytest.param([by_memory(9, "a", role=INIT), by_memory(5, "b")], 0, [PartOfCard(9)], id="an init container"),
        pytest.param([by_share(8, 100)], 0, [PartOfCard(8, cores=100)], id="all cores"),
        pytest.param(
            [by_slots(1, 0, 0, "a", percent=20, role=INIT), by_slots(1, 0, 0, "b", percent=30)],
            0,
            [PartOfCard(0, 30)],
            id="the larger percentage",
        ),
    ],
)
def test_a_request_is_whole_cards_and_parts(
    containers: list[ContainerRequest], whole: int, parts: list[PartOfCard]
) -> None:
    assert wish(*containers) == PodDemand(500, 100, whole=whole, parts=tuple(parts))


@given(st.lists(st.tuples(st.integers(0, 300), st.integers(0, 130), st.integers(0, 120)), min_size=1, max_size=20))
def test_of_many_parts_the_largest_are_kept_and_cards_of_any_size_hear_the_same(
    parts: list[tuple[int, int, int]],
) -> None:
    found = wish(*(_part(n, *part) for n, part in enumerate(parts)))
    assert len(found.parts) <= 8
    all_of_them = tuple(wish(_part(0, *part)).parts[0] for part in parts)
    assert found.shared == len(parts)
    for size in (1, 7, 100, 101, 299, 80_000):
        assert asked(found, size) == asked(PodDemand(500, 100, parts=all_of_them), size)


def _part(n: int, memory: int, percent: int, cores: int) -> ContainerRequest:
    """By its percent, where that is at most 100, or by MiB."""
    return by_slots(1, 0 if percent <= 100 else memory, cores, f"c{n}", percent=percent if percent <= 100 else 0)


@pytest.mark.parametrize(
    ("parts", "largest"),
    [
        pytest.param([(n, 0, 0) for n in range(1, 251)], PartOfCard(250), id="by MiB"),
        pytest.param([(n, 0, n % 31) for n in range(1, 251)], PartOfCard(250, cores=30), id="by MiB, with cores"),
        pytest.param([(0, 1 + n % 60, 0) for n in range(250)], PartOfCard(0, 60), id="by percent"),
        pytest.param([(0, 1 + n % 60, n % 31) for n in range(250)], PartOfCard(0, 60, 30), id="by percent, with cores"),
    ],
)
def test_a_pod_of_hundreds_of_parts_takes_no_more_room_than_one_of_a_few(
    parts: list[tuple[int, int, int]], largest: PartOfCard
) -> None:
    asked = [by_slots(1, mib, cores, f"c{n}", percent=percent) for n, (mib, percent, cores) in enumerate(parts)]
    assert wish(*asked) == structs.replace(NOTHING, parts=(largest,), more=249)


def test_hostile_amounts_are_cut() -> None:
    assert wish(by_memory(2**80)).parts == (PartOfCard(2**40),)
    assert wish(by_share(1, 2**80)).parts == (PartOfCard(1, cores=100),)
    assert wish(by_slots(1, 0, percent=2**80)).parts == (PartOfCard(memory_percent=100),)


def test_more_cards_than_a_pod_can_hold_are_asked_for_in_vain() -> None:
    assert wish(by_card(MAX_SLICES)).whole == MAX_SLICES
    assert wish(by_card(MAX_SLICES + 1)) == NOTHING
    assert wish(by_card(1, "a"), by_card(MAX_SLICES + 1, "b")) == NOTHING


def models(ledger: Ledger, *selectors: Selector) -> tuple[str, ...]:
    asked = [only(selector, by_card(1, f"c{i}")) for i, selector in enumerate(selectors)]
    found = wish(*asked, arrays=ledger.arrays)
    assert found.whole == len(selectors)
    assert models_of(tuple(asked), ledger.arrays) == found.models
    return found.models


A10 = Selector(models=("A10",), not_models=("A100",))
NEW = Selector(models=("NVIDIA",))
OLD = Selector(models=("T4",))


def test_models_that_will_do_are_named_in_their_order(ledger: Ledger) -> None:
    assert models(ledger, NEW) == ("NVIDIA A10", "NVIDIA A100")
    assert models(ledger, A10) == ("NVIDIA A10",)


def test_a_model_must_suit_every_container(ledger: Ledger) -> None:
    assert models(ledger, NEW, A10) == ("NVIDIA A10",)
    assert models(ledger, NEW, OLD) == ("",), "no model will do"


def test_containers_to_which_every_model_is_right_do_not_count(ledger: Ledger) -> None:
    assert models(ledger, Selector(), OLD) == ("T4",)
    assert models(ledger, Selector(), Selector()) == ()
    assert models_of((by_card(),), ledger.arrays) == ()


def test_no_model_is_named_when_all_will_do(ledger: Ledger) -> None:
    assert models(ledger, Selector(not_models=("H100",))) == ()


def test_a_class_has_the_models_of_its_members(ledger: Ledger) -> None:
    members = KeptLayer(ledger.arrays)
    members.mark(card_uuid("n1", 1))
    assert models(ledger, members.selector) == ("NVIDIA A10",)
    assert models(ledger, structs.replace(members.selector, not_models=("A10",))) == ("",)


def test_a_layer_has_the_models_of_its_cards(ledger: Ledger) -> None:
    layer = CardLayer(ledger.arrays)
    assert models(ledger, Selector(members=layer)) == ("",)
    layer.mask[ledger.arrays.cells[card_uuid("n1", 2)]] = True
    assert models(ledger, Selector(members=layer)) == ("NVIDIA A100",)
    assert models(ledger, Selector(members=layer, not_models=("A100",))) == ("",)


def test_members_that_are_no_layer_may_be_of_any_model(ledger: Ledger) -> None:
    assert models(ledger, Selector(models=("T4",), members=frozenset({card_uuid("n1", 1)}))) == ("T4",)
