"""Whether a placement found in an annotation is one that we would have written."""

import pytest

from fractile.model.placement import Placement, Slice
from fractile.model.request import ContainerRequest, Role, Selector
from fractile.model.units import CardUUID, MiB, Percent
from fractile.policy.cards.choice import choose
from fractile.policy.cards.verify import barred, mismatch
from fractile.wire.fractile.resource_class import DEVICE_SLOT
from tests.builders import (
    CARD_MEMORY,
    by_card,
    by_class,
    by_memory,
    by_slots,
    card,
    card_uuid,
    device,
    given,
    node_state,
    only,
    piece,
    placement,
    request,
)

INIT = Role.INIT
MEMORY = by_memory(8138)
WHOLE = by_card(2)


@pytest.mark.parametrize(
    "containers",
    [
        pytest.param([MEMORY], id="memory"),
        pytest.param([WHOLE], id="whole cards"),
        pytest.param([by_memory(9, "warm", role=INIT), by_memory(5)], id="an init container"),
        pytest.param([by_memory(9, "small"), by_card(1, "large")], id="both"),
    ],
)
def test_what_we_plan_matches_its_request(containers: list[ContainerRequest]) -> None:
    state = node_state("n1", *[CARD_MEMORY] * 4)
    asked = request(*containers)
    assert mismatch(asked, placement(*(choose(asked, state) or ()))) is None


def test_what_a_percentage_comes_to_is_the_ledgers_to_say_and_cores_are_not() -> None:
    asked = request(by_slots(1, 0, 20, percent=50))
    assert mismatch(asked, placement(given("main", piece("a", 8138, 20, 1)))) is None
    assert mismatch(asked, placement(given("main", piece("a", 8138, 30)))) is not None
    assert mismatch(asked, placement(given("main", piece("a", 8138, 20)))) is not None


def test_what_annotations_can_change_is_no_mismatch_but_bars_a_choice() -> None:
    a, b = (card("n1", i, model=model) for i, model in enumerate(("NVIDIA A100-SXM4-40GB", "Tesla T4")))
    asked = request(only(Selector(models=("a100",)), by_memory(8138)))
    on_a, on_b, lost = (placement(given("main", piece(uuid))) for uuid in (a.uuid, b.uuid, "unknown"))
    assert [mismatch(asked, p) for p in (on_a, on_b, lost)] == [None] * 3
    assert [barred(asked, p, [a, b]) for p in (on_a, on_b, lost)] == [
        None,
        f"container main may not use Tesla T4 {b.uuid}",
        None,
    ]


@pytest.mark.parametrize(
    ("container", "found", "wrong"),
    [
        pytest.param(MEMORY, placement(given("other", piece("a"))), "must name the containers main", id="another name"),
        pytest.param(
            MEMORY,
            placement(given("main", piece("a")), given("more", piece("a"))),
            "must name the containers main",
            id="a container too many",
        ),
        pytest.param(
            MEMORY, placement(given("main", piece("a"), role=INIT)), "is app, the placement says init", id="role"
        ),
        pytest.param(MEMORY, placement(given("main", piece("a", 1))), "8138 MiB, the placement gives 1 MiB", id="less"),
        pytest.param(MEMORY, placement(given("main", piece("a", 9000))), "gives 9000 MiB", id="more"),
        pytest.param(
            MEMORY,
            placement(given("main", piece("a", cores=50))),
            "0 percent of a card's cores, the placement gives 50 percent",
            id="cores",
        ),
        pytest.param(
            MEMORY,
            placement(given("main", piece("a"), piece("b"))),
            "1 card(s), the placement names 2",
            id="a card too many",
        ),
        pytest.param(
            WHOLE,
            placement(given("main", piece("a", 16276, 100))),
            "2 card(s), the placement names 1",
            id="a card too few",
        ),
        pytest.param(
            WHOLE,
            placement(given("main", piece("a", 16276, 100), piece("a", 16276, 100))),
            "2 card(s)",
            id="one card twice",
        ),
        pytest.param(
            WHOLE,
            placement(given("main", piece("a", 16276, 100), piece("b", 16276, 10))),
            "100 percent of a card's cores, the placement gives 10 percent",
            id="a whole card in part",
        ),
    ],
)
def test_what_differs_is_said_in_a_sentence(container: ContainerRequest, found: Placement, wrong: str) -> None:
    sentence = mismatch(request(container), found)
    assert sentence is not None
    assert wrong in sentence


# ── by class, and other devices ──────────────────────────────────────────────────────────────────────────────────────

BY_CLASS = by_class("v100", 2)
IB = by_class("ib", slot=DEVICE_SLOT)
A, B = card_uuid("n1", 0), card_uuid("n1", 1)
HCA = device().uuid


def share(of: str = HCA, count: int = 1, memory: int = 0, cores: int = 0) -> Slice:
    return Slice(CardUUID(of), MiB(memory), Percent(cores), shares=count)


@pytest.mark.parametrize(
    "slices",
    [
        pytest.param([piece(A, 16276, 100), piece(B, 16276, 100)], id="whole cards"),
        pytest.param([piece(A, 1, 1), piece(B, 2, 0)], id="whatever parts"),
    ],
)
def test_of_a_class_the_amounts_are_believed_and_the_number_of_cards_is_not(slices: list[Slice]) -> None:
    assert mismatch(request(BY_CLASS), placement(given("main", *slices))) is None
    assert mismatch(request(BY_CLASS), placement(given("main", slices[0]))) == (
        "container main asks for 2 card(s), the placement names 1"
    )
    twice = placement(given("main", slices[0], slices[0]))
    assert mismatch(request(BY_CLASS), twice) == "container main asks for 2 card(s), the placement names 2"


def test_gpus_and_other_devices_of_a_container_are_judged_apart() -> None:
    asked = request(by_memory(8138), IB)
    assert mismatch(asked, placement(given("main", piece(A, 8138), share()))) is None
    assert mismatch(asked, placement(given("main", piece(A, 8138)))) == (
        "container main asks for 1 card(s), the placement names 0"
    )
    assert mismatch(asked, placement(given("main", piece(A, 8138), piece(B, 8138)))) is not None


@pytest.mark.parametrize("wrong", [share(count=2), share(memory=1), share(cores=1)])
def test_a_device_is_given_by_the_shares_that_were_asked_for_and_by_nothing_else(wrong: Slice) -> None:
    assert mismatch(request(IB), placement(given("main", share()))) is None
    assert mismatch(request(IB), placement(given("main", wrong))) is not None


def test_devices_that_nobody_asked_for_are_no_part_of_a_placement() -> None:
    found = mismatch(request(by_memory(8138)), placement(given("main", piece(A, 8138), share())))
    assert found == "container main asks for 1 device(s), the placement names 2"
