"""What is kept about a cluster, and what it may become."""

import socket
from ipaddress import IPv4Network
from pathlib import Path

import msgspec
import pytest

from fractile.errors import SetupError
from fractile.lab.cluster import state
from fractile.lab.cluster.spec import ClusterSpec, from_options
from fractile.lab.cluster.state import ClusterState
from fractile.lab.layout import ClusterLayout, layout
from fractile.lab.machine import network
from fractile.model.properties import shared
from fractile.model.units import MemoryUnit


@pytest.fixture
def place(tmp_path: Path) -> ClusterLayout:
    return layout(tmp_path, "a")


def new(place: ClusterLayout, spec: ClusterSpec, hollow: str = "asked for") -> ClusterState:
    return state.first(place, spec, hollow=hollow, fractile=True, programs="/bin")


def test_what_is_saved_is_loaded(place: ClusterLayout) -> None:
    made = new(place, from_options("a", cards="1x A 1MiB, 2x B 2GiB"))
    assert state.load(place) is None
    state.save(place, made)
    assert state.load(place) == made


def test_what_cards_say_of_themselves_is_kept(place: ClusterLayout) -> None:
    spec = from_options("a", nodes=1, cards="1x A 1MiB")
    (node,) = spec.nodes
    said = msgspec.structs.replace(node.cards[0], properties=shared({"compute": "7.0"}))
    made = new(place, msgspec.structs.replace(spec, nodes=(msgspec.structs.replace(node, cards=(said,)),)))
    state.save(place, made)
    assert state.load(place) == made


@pytest.mark.parametrize("content", ["", "{}", "[1", '{"version": 2}'])
def test_an_unreadable_state_names_the_remedy(place: ClusterLayout, content: str) -> None:
    place.write(place.state, content)
    with pytest.raises(SetupError, match="run `fractile down --name a` and start again"):
        state.load(place)


def test_a_state_of_another_version_is_refused(place: ClusterLayout) -> None:
    made = new(place, from_options("a"))
    state.save(place, msgspec.structs.replace(made, version=2))
    with pytest.raises(SetupError, match="it has version 2, not 1"):
        state.load(place)


def test_added_nodes_get_the_next_indexes_and_leave_the_others_alone(place: ClusterLayout) -> None:
    made = new(place, from_options("a", nodes=2))
    grown = state.grown(place, made, from_options("a", nodes=4))
    assert grown.nodes[:2] == made.nodes
    assert [n.index for n in grown.nodes] == [0, 1, 2, 3]
    assert grown.ports == made.ports
    assert state.grown(place, made, from_options("a", nodes=2)) is made


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        (from_options("a", nodes=1), "it also has node-2"),
        (from_options("a", cards="1x A 1MiB"), "node-1, node-2 differ"),
        (from_options("a", unit=MemoryUnit.GiB), "its memory unit is MiB"),
    ],
    ids=["fewer nodes", "other cards", "other unit"],
)
def test_what_a_living_cluster_cannot_become_is_refused(place: ClusterLayout, wanted: ClusterSpec, said: str) -> None:
    made = new(place, from_options("a"))
    with pytest.raises(SetupError, match=said):
        state.check_same(place, made, wanted)
    state.check_same(place, made, from_options("a", nodes=3))


def test_networks_avoid_all_that_is_taken() -> None:
    taken = [IPv4Network("10.224.0.0/13"), IPv4Network("10.232.0.0/24"), IPv4Network("0.0.0.0/32")]
    chosen = network.choose_subnets("a", 50, taken=taken)
    assert len(set(chosen)) == 50
    assert not any(c.overlaps(t) for c in chosen for t in taken)


def test_two_clusters_choose_different_networks_without_knowing_of_each_other() -> None:
    assert network.choose_subnets("a", 4, taken=[]) == network.choose_subnets("a", 4, taken=[])
    assert not set(network.choose_subnets("a", 4, taken=[])) & set(network.choose_subnets("b", 4, taken=[]))


def test_no_free_network_is_a_sentence() -> None:
    with pytest.raises(SetupError, match="no 1 free networks are left"):
        network.choose_subnets("a", 1, taken=[IPv4Network("10.0.0.0/8")])


def test_networks_of_other_clusters_are_taken_even_when_they_do_not_run(tmp_path: Path) -> None:
    spec = from_options("a", nodes=3)
    first = new(layout(tmp_path, "a"), spec, hollow="")
    renamed = layout(tmp_path, "z")
    state.save(renamed, first)
    second = new(layout(tmp_path, "a"), spec, hollow="")
    assert not {n.subnet for n in first.nodes} & {n.subnet for n in second.nodes}


def test_bridge_names_fit_the_kernel_and_differ() -> None:
    names = {network.bridge_name(cluster, index) for cluster in ("a", "b", "a" * 32) for index in (0, 63)}
    assert len(names) == 6
    assert all(len(n) <= 15 for n in names)


def test_ports_are_free_and_not_those_of_another_cluster(tmp_path: Path) -> None:
    first = network.choose_ports("a", 6, taken=())
    assert len(set(first)) == 6
    with socket.socket() as busy:
        busy.bind(("127.0.0.1", first[0]))
        busy.listen()
        assert network.choose_ports("a", 5, taken=first[1:2])[:1] == first[2:3]

    made = new(layout(tmp_path, "a"), from_options("a"))
    state.save(layout(tmp_path, "other-name-for-a"), made)
    again = new(layout(tmp_path, "a"), from_options("a"))
    assert not set(msgspec.structs.astuple(made.ports)) & set(msgspec.structs.astuple(again.ports))


def test_no_outgoing_connection_can_take_a_port_of_a_cluster() -> None:
    low, _ = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()
    assert max(network.choose_ports("a", 6, taken=())) < int(low)
