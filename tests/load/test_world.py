import msgspec
import pytest

from fractile.watch.event_handlers import CardHandlers, PodHandlers
from fractile.watch.waiting_pods import WaitingPods
from fractile.wire.fractile.extended_resource import ExtendedResource
from fractile.wire.kubernetes.objects import Node, Pod
from tests.builders import cluster
from tests.load.scenarios import BY_NAME, ON_REQUEST, SIZES, TABLE
from tests.load.world import CARD, CARDS, UNIT, Stored, cells, node_name, objects

NODES, RUNNING = 5, 36


@pytest.fixture(scope="module")
def stored() -> list[Stored]:
    return list(objects(NODES, RUNNING))


def test_every_object_has_a_place_of_its_own(stored: list[Stored]):
    assert len({one.key for one in stored}) == len(stored) == NODES * (1 + CARDS) + RUNNING


def test_the_cluster_is_the_same_whenever_it_is_made(stored: list[Stored]):
    assert list(objects(NODES, RUNNING)) == stored


def test_the_control_plane_believes_all_cards_and_all_placements(stored: list[Stored]):
    ledger = cluster({})
    doubted: list[str] = []
    cards = CardHandlers(ledger, freed=lambda node: None)
    pods = PodHandlers(
        ledger=ledger,
        waiting=WaitingPods(),
        unit=UNIT,
        warn=lambda pod, reason, message: doubted.append(message),
        freed=lambda node: None,
        needs_repair=lambda pod: None,
    )
    for one in stored:
        if "/extendedresources/" in one.key:
            cards.changed(msgspec.json.decode(one.value, type=ExtendedResource))
    for one in stored:
        if "/pods/" in one.key:
            pods.changed(msgspec.json.decode(one.value, type=Pod))
    assert doubted == []
    assert ledger.audit() == []
    assert (ledger.statistics().cards, ledger.statistics().bound) == (NODES * CARDS, RUNNING)


def test_nodes_are_ready_and_show_what_their_cards_are_worth(stored: list[Stored]):
    raw = next(one.value for one in stored if one.key == f"/registry/minions/{node_name(0)}")
    node = msgspec.json.decode(raw, type=Node)
    assert (node.status.allocatable or {})["aliyun.com/gpu-mem"] == "128"
    assert {"type": "Ready", "status": "True"}.items() <= msgspec.json.decode(raw)["status"]["conditions"][-1].items()


def test_more_pods_than_there_is_room_for_are_refused():
    with pytest.raises(ValueError, match="give more nodes"):
        list(cells(1, 1000))


def test_pods_may_fill_half_of_the_cards_and_no_card_twice():
    most = NODES * CARDS * CARD // 2 * len(SIZES) // sum(SIZES)
    filled: dict[tuple[int, int], int] = {}
    for node, slot, gib in cells(NODES, most):
        filled[node, slot] = filled.get((node, slot), 0) + gib
    assert len(filled) > NODES * CARDS // 2
    assert max(filled.values()) <= CARD


def test_rows_are_told_apart_and_compared_with_rows_that_there_are():
    assert len(BY_NAME) == len(TABLE) + len(ON_REQUEST)
    assert all(row.against in BY_NAME for row in BY_NAME.values() if row.against)
