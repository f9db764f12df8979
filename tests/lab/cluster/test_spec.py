"""From options or a file to nodes and cards."""

import pytest

from fractile.errors import SetupError
from fractile.lab.cluster.spec import from_file, from_options
from fractile.model.units import MemoryUnit
from fractile.wire.files.cluster_file import CardGroup, ClusterFile, Link, NodeGroup

CARD = CardGroup(model="A", memory=100)


def file(*nodes: NodeGroup, unit: str | None = None) -> ClusterFile:
    return ClusterFile(version=1, nodes=nodes, memory_unit="GiB" if unit == "GiB" else None)


def test_the_default_is_two_nodes_with_two_cards() -> None:
    spec = from_options("fractile")
    assert [n.name for n in spec.nodes] == ["node-1", "node-2"]
    assert [(c.model, c.memory, c.index) for c in spec.nodes[0].cards] == [("Tesla-V100", 16276, i) for i in (0, 1)]
    assert spec.unit is MemoryUnit.MiB


def test_uuids_are_stable_and_differ_by_cluster_node_and_index() -> None:
    assert from_options("a") == from_options("a")
    uuids = [c.uuid for name in ("a", "b") for n in from_options(name).nodes for c in n.cards]
    assert len(set(uuids)) == 8
    assert from_options("a").nodes[0].cards[0].uuid == "GPU-e176dfca-105c-5018-8cb1-70362019da8c"


def test_adding_a_node_leaves_the_cards_of_the_others_as_they_are() -> None:
    assert from_options("a", nodes=3).nodes[:2] == from_options("a", nodes=2).nodes


def test_pci_addresses_of_a_node_differ() -> None:
    cards = from_options("a", nodes=1, cards="64x A 1MiB").nodes[0].cards
    assert cards[0].pci_bus_id == "00000000:01:00.0"
    assert len({c.pci_bus_id for c in cards}) == 64


def test_nodes_of_a_file_are_named_by_group_and_by_position() -> None:
    spec = from_file(
        "a",
        file(NodeGroup(cards=(CARD,)), NodeGroup(name="x", cards=(CARD,)), NodeGroup(name="y", count=2, cards=(CARD,))),
    )
    assert [n.name for n in spec.nodes] == ["node-1", "x", "y-1", "y-2"]


def test_given_uuids_go_to_the_copies_in_order() -> None:
    group = CardGroup(model="A", memory=1, count=2, uuids=("GPU-1", "GPU-2", "GPU-3", "GPU-4"))
    spec = from_file("a", file(NodeGroup(name="n", count=2, cards=(group,))))
    assert [[c.uuid for c in n.cards] for n in spec.nodes] == [["GPU-1", "GPU-2"], ["GPU-3", "GPU-4"]]


def test_indexes_run_through_all_groups_of_a_node_and_links_are_kept() -> None:
    link = Link(between=(0, 2), type="NV2")
    node = NodeGroup(
        cards=(CardGroup(model="A", memory=1, count=2), CardGroup(model="B", memory=2)), interconnect=(link,)
    )
    found = from_file("a", file(node)).nodes[0]
    assert [(c.index, c.model) for c in found.cards] == [(0, "A"), (1, "A"), (2, "B")]
    assert found.links == (link,)


def test_the_command_line_overrides_the_files_unit() -> None:
    assert from_file("a", file(NodeGroup(cards=(CARD,)), unit="GiB")).unit is MemoryUnit.GiB
    assert from_file("a", file(NodeGroup(cards=(CARD,)), unit="GiB"), unit=MemoryUnit.MiB).unit is MemoryUnit.MiB


@pytest.mark.parametrize(
    ("nodes", "said"),
    [
        ([NodeGroup(name="x", cards=()), NodeGroup(name="x", cards=())], "the node name x is used twice"),
        ([NodeGroup(name="node-2", cards=()), NodeGroup(cards=())], "the node name node-2 is used twice"),
        (
            [NodeGroup(cards=(CardGroup(model="A", memory=1, count=2, uuids=("GPU-a", "GPU-A")),))],
            "the card UUID gpu-a is used twice",
        ),
        ([NodeGroup(count=64, cards=()), NodeGroup(cards=())], "65 nodes are too many"),
        ([NodeGroup(cards=(CardGroup(model="A", memory="80Gi"),))], "--memory-unit GiB"),
    ],
    ids=["two names", "a name that a position has", "two uuids", "too many nodes", "too many device ids"],
)
def test_what_cannot_run_is_refused_before_anything_starts(nodes: list[NodeGroup], said: str) -> None:
    with pytest.raises(SetupError, match=said):
        from_file("a", file(*nodes))


@pytest.mark.parametrize("nodes", [0, -1, 65])
def test_an_impossible_number_of_nodes_is_refused(nodes: int) -> None:
    with pytest.raises(SetupError, match="give 1 to 64"):
        from_options("a", nodes=nodes)
