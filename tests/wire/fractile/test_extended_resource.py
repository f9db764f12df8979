"""One object of the API per card."""

import msgspec
import pytest

from fractile.errors import WireError
from fractile.model.card import Card
from fractile.model.interconnect import Interconnect
from fractile.model.properties import Properties
from fractile.model.units import CardUUID, MiB, NodeName
from fractile.wire.fractile import extended_resource
from fractile.wire.fractile.extended_resource import BoundTo, ExtendedResourceSpec, InterconnectSpec, Used
from fractile.wire.kubernetes.objects import ObjectMeta, OwnerReference
from tests.builders import card, resource
from tests.wire.golden_files import golden

UUID = CardUUID("GPU-4f2b4d9e-0000-4000-8000-000000000000")
CARD = Card(
    uuid=UUID, index=0, model="Tesla-V100", memory=MiB(16276), pci_bus_id="00000000:00:04.0", node=NodeName("n1")
)
OWNER = OwnerReference(api_version="v1", kind="Node", name="n1", uid="3b929d53-cdc4-4766-9b01-6efcd2f0d039")


def test_what_the_agent_applies_is_byte_for_byte_as_recorded() -> None:
    applied = extended_resource.from_card(CARD, NodeName("n1"), OWNER)
    assert msgspec.json.encode(applied) == golden("extended-resource-apply.json")


def test_an_object_of_the_api_server_is_read_as_recorded() -> None:
    node, found = extended_resource.to_card(extended_resource.decoder.decode(golden("extended-resource.json")))
    assert node == "n1"
    assert found == msgspec.structs.replace(CARD, healthy=False)


def test_what_an_agent_says_of_a_sick_card_is_read_as_the_api_server_keeps_it() -> None:
    kept = (
        b'{"metadata":{"name":"gpu-a"},"spec":{"nodeName":"n1","deviceID":"GPU-a","index":0,"model":"m","memory":"1Gi"},'
        b'"status":{"phase":"Unhealthy","reason":"Xid119","message":"no answer","isolation":"Enforced",'
        b'"lastTransitionTime":"2026-11-21T10:00:00Z","returnsAt":"2026-11-21T10:30:00Z"}}'
    )
    found = extended_resource.decoder.decode(kept)
    status = found.status
    assert (status.phase, status.reason, status.message) == ("Unhealthy", "Xid119", "no answer")
    assert (status.last_transition_time, status.returns_at) == ("2026-11-21T10:00:00Z", "2026-11-21T10:30:00Z")
    assert not extended_resource.to_card(found)[1].healthy


def test_an_object_without_status_is_a_healthy_card() -> None:
    written = extended_resource.decoder.decode(golden("extended-resource-apply.json"))
    assert extended_resource.to_card(written) == ("n1", CARD)


def edited(**fields: object) -> ExtendedResourceSpec:
    return msgspec.structs.replace(resource(card()).spec, **fields)


@pytest.mark.parametrize(
    ("memory", "mib"),
    [("16276Mi", 16276), ("16Gi", 16384), ("16G", 15258), ("1048575", 0), ("0", 0), ("1.5Gi", 1536)],
)
def test_memory_is_a_quantity_rounded_down_to_mib(memory: str, mib: int) -> None:
    written = msgspec.structs.replace(resource(card()), spec=edited(memory=memory))
    assert extended_resource.to_card(written)[1].memory == mib


@pytest.mark.parametrize(
    "spec",
    [
        pytest.param(edited(memory="-1"), id="negative memory"),
        pytest.param(edited(memory="a lot"), id="memory in words"),
        pytest.param(edited(memory=""), id="no memory"),
        pytest.param(edited(memory="1Ei"), id="more memory than a card can have"),
        pytest.param(edited(index=-1), id="a negative index"),
        pytest.param(edited(index=10**30), id="an index beyond 64 bits"),
        pytest.param(edited(node_name=""), id="no node"),
        pytest.param(edited(device_id=""), id="no device"),
    ],
)
def test_an_impossible_card_is_refused(spec: ExtendedResourceSpec) -> None:
    with pytest.raises(WireError):
        extended_resource.to_card(msgspec.structs.replace(resource(card()), spec=spec))


JOINED = Interconnect("X NV12 SYS", nvlink=3, pcie=4, lanes=16, numa=0)


def test_how_a_card_is_joined_comes_back_as_it_was_published() -> None:
    joined = msgspec.structs.replace(CARD, interconnect=JOINED)
    text = msgspec.json.encode(extended_resource.from_card(joined, NodeName("n1"), OWNER))
    assert b'"peers":"X NV12 SYS"' in text
    assert extended_resource.to_card(extended_resource.decoder.decode(text)) == ("n1", joined)


def test_cards_of_nodes_of_one_kind_share_what_they_know() -> None:
    texts = [msgspec.json.encode(extended_resource.from_card(c, NodeName("n1"))) for c in (card(), card(index=1))]
    joined = [t.replace(b'"memory"', b'"interconnect":{"peers":"X NV12"},"memory"', 1) for t in texts]
    first, second = (extended_resource.to_card(extended_resource.decoder.decode(t))[1].interconnect for t in joined)
    assert first is not None
    assert first is second


@pytest.mark.parametrize(
    "wrong",
    [
        pytest.param({"peers": ""}, id="no row"),
        pytest.param({"peers": "X WIFI"}, id="an unknown word"),
        pytest.param({"peers": "X" + " NV1" * 400}, id="a row without end"),
        pytest.param({"peers": "X NV1\n"}, id="a line break"),
        pytest.param({"peers": "X", "pcie_lanes": 10**9}, id="too many lanes"),
        pytest.param({"peers": "X", "nvlink_generation": -1}, id="a negative generation"),
    ],
)
def test_a_card_with_a_senseless_interconnect_counts_as_far_from_all_others(wrong: dict[str, object]) -> None:
    spec = edited(interconnect=msgspec.structs.replace(InterconnectSpec(peers="X"), **wrong))
    assert extended_resource.to_card(msgspec.structs.replace(resource(card()), spec=spec))[1].interconnect is None


def test_a_row_that_the_api_server_would_refuse_does_not_take_the_card_with_it() -> None:
    long = msgspec.structs.replace(CARD, interconnect=Interconnect("X" + " NODE" * 300))
    assert extended_resource.from_card(long, NodeName("n1")).spec.interconnect is None


SAID = Properties({"architecture": "Volta", "clock": "1530MHz", "computeCapability": "7.0", "ecc": "on"})
HCA = Card(
    uuid=CardUUID("mlx5_0.n1"),
    index=3,
    model="ConnectX-7",
    memory=MiB(0),
    type="infiniband",
    shares=4,
    properties=Properties({"rate": "400Gb/s"}),
    node=NodeName("n1"),
)


def again(card: Card) -> Card:
    """The card as it is read from what its agent applies."""
    text = msgspec.json.encode(extended_resource.from_card(card, NodeName("n1")))
    return extended_resource.to_card(extended_resource.decoder.decode(text))[1]


def test_what_a_card_says_of_itself_comes_back_as_it_was_published() -> None:
    told = msgspec.structs.replace(CARD, properties=SAID)
    assert again(told) == told


def test_a_device_that_is_no_gpu_has_a_type_and_shares_and_no_memory() -> None:
    applied = extended_resource.from_card(HCA, NodeName("n1"), OWNER)
    assert msgspec.json.encode(applied) == golden("extended-resource-device.json")
    assert again(HCA) == HCA


def test_what_is_known_of_every_card_stands_among_its_properties() -> None:
    published = extended_resource.from_card(CARD, NodeName("n1")).spec.properties
    assert published == {
        "type": "gpu",
        "model": "Tesla-V100",
        "memory": "16276Mi",
        "cores": 100,
        "index": 0,
        "nodeName": "n1",
    }


def test_cards_that_say_the_same_share_one_mapping() -> None:
    told = [msgspec.structs.replace(card(index=i), properties=Properties(dict(SAID))) for i in range(2)]
    first, second = (again(c).properties for c in told)
    assert first is second


def test_a_card_that_says_too_much_is_published_without_the_rest() -> None:
    wordy = Properties({f"key-{i:03}": "x" for i in range(100)} | {"long": "x" * 254, "nodeName": "another"})
    published = extended_resource.from_card(msgspec.structs.replace(CARD, properties=wordy), NodeName("n1"))
    assert published.spec.properties is not None
    assert len(published.spec.properties) == 64
    assert published.spec.properties["nodeName"] == "n1"
    assert "long" not in published.spec.properties


@pytest.mark.parametrize(
    ("phase", "healthy"),
    [
        ("Available", True), ("PartlyBound", True), ("Bound", True),
        ("Pending", False), ("Unhealthy", False), ("Lost", False), ("Something", False),
    ],
)  # fmt: skip
def test_only_phases_of_a_card_that_works_count_as_healthy(phase: str, healthy: bool) -> None:
    assert extended_resource.to_card(resource(card(), phase=phase))[1].healthy is healthy


def test_whom_a_card_is_bound_to_is_read_as_the_api_server_keeps_it() -> None:
    kept = (
        b'{"metadata":{"name":"a"},"spec":{"nodeName":"n1","deviceID":"a","index":0,"model":"m","memory":"1Gi"},'
        b'"status":{"phase":"PartlyBound","used":{"memory":"512Mi","cores":20,"slices":1},"boundTo":'
        b'[{"namespace":"team","pod":"p","container":"main","memory":"512Mi","cores":20}]}}'
    )
    status = extended_resource.decoder.decode(kept).status
    assert status.used == Used(memory="512Mi", cores=20, slices=1)
    assert status.bound_to == [BoundTo(namespace="team", pod="p", container="main", memory="512Mi", cores=20)]


@pytest.mark.parametrize(
    "spec",
    [
        pytest.param(edited(type="Not A Type"), id="no type"),
        pytest.param(edited(shares=0), id="no shares"),
        pytest.param(edited(shares=10**6), id="too many shares"),
    ],
)
def test_an_impossible_device_is_refused(spec: ExtendedResourceSpec) -> None:
    with pytest.raises(WireError):
        extended_resource.to_card(msgspec.structs.replace(resource(card()), spec=spec))


@pytest.mark.parametrize(
    ("name", "spec"),
    [
        pytest.param("gpu-mine", edited(), id="another name"),
        pytest.param("gpu-n1-00", edited(), id="a longer name"),
        pytest.param("gpu-n1-0", edited(device_id="GPU-n2-0"), id="the id of another card"),
        pytest.param("hca-0.n1", edited(device_id="hca-0.n1"), id="a GPU with the id of another device"),
        pytest.param("hca-0.n2", edited(device_id="hca-0.n2", type="hca"), id="a device of another node"),
        pytest.param("hca-0", edited(device_id="hca-0", type="hca"), id="a device of no node"),
        pytest.param(".n1", edited(device_id=".n1", type="hca"), id="a device without an id of its own"),
        pytest.param("hca-0.x.n1", edited(device_id="hca-0.x.n1", type="hca"), id="one that node x.n1 may have"),
    ],
)
def test_an_object_whose_name_id_and_node_do_not_agree_is_refused(name: str, spec: ExtendedResourceSpec) -> None:
    found = msgspec.structs.replace(resource(card()), metadata=ObjectMeta(name=name), spec=spec)
    with pytest.raises(WireError, match=name):
        extended_resource.to_card(found)


@pytest.mark.parametrize(
    ("name", "spec"),
    [
        pytest.param("gpu-n1-0", edited(device_id="GPU_n1_0"), id="letters that names do not have"),
        pytest.param("mlx5-0.n1", edited(device_id="mlx5_0.n1", type="hca"), id="another device"),
        pytest.param("a.b.c", edited(device_id="a.b.c", type="hca", node_name="b.c"), id="a node with a domain"),
    ],
)
def test_one_whose_name_id_and_node_agree_is_taken(name: str, spec: ExtendedResourceSpec) -> None:
    found = msgspec.structs.replace(resource(card()), metadata=ObjectMeta(name=name), spec=spec)
    assert extended_resource.to_card(found)[1].uuid == spec.device_id
