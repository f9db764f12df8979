"""The file of non-GPU devices."""

import contextlib
import json
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from fractile.errors import WireError
from fractile.model.card import Card
from fractile.model.offer import DeviceNode, Mount, Offer
from fractile.model.properties import Properties
from fractile.model.units import CardUUID, MiB, NodeName
from fractile.wire.files import device_file
from fractile.wire.files.device_file import DeviceFileContent

NODE = NodeName("n1")
EXAMPLE = """
version: 1
devices:
  - id: mlx5_0
    type: infiniband
    model: ConnectX-7
    shares: 4
    properties: {rate: 400Gb/s, numaNode: 1, sriov: true}
    deviceNodes: [/dev/infiniband/uverbs0, {host: /dev/infiniband/rdma_cm, permissions: rwm}]
    mounts: [{host: /etc/libibverbs.d, container: /etc/ib}]
    environment: {NCCL_IB_HCA: mlx5_0}
  - id: fpga-7
    type: fpga
    healthy: false
    reason: Overheated
    message: 102 degrees
"""
HCA = Offer(
    device=Card(
        CardUUID("mlx5_0.n1"),
        0,
        "ConnectX-7",
        MiB(0),
        type="infiniband",
        shares=4,
        properties=Properties({"rate": "400Gb/s", "numaNode": "1", "sriov": "true"}),
    ),
    nodes=(
        DeviceNode("/dev/infiniband/uverbs0", "/dev/infiniband/uverbs0", "rw"),
        DeviceNode("/dev/infiniband/rdma_cm", "/dev/infiniband/rdma_cm", "rwm"),
    ),
    mounts=(Mount("/etc/libibverbs.d", "/etc/ib", read_only=True),),
    environment=(("NCCL_IB_HCA", "mlx5_0"),),
)


def read(text: str) -> DeviceFileContent:
    return device_file.decode(text, "devices.yaml", node=NODE)


def test_the_example_is_read() -> None:
    told = read(EXAMPLE)
    assert told.offers[0] == HCA
    assert told.offers[1].device == Card(CardUUID("fpga-7.n1"), 1, "", MiB(0), type="fpga", healthy=False)
    ((uuid, verdict),) = told.sick
    assert (uuid, verdict.healthy, verdict.reason, verdict.message) == ("fpga-7.n1", False, "Overheated", "102 degrees")


def test_json_says_the_same() -> None:
    assert read(json.dumps(yaml.safe_load(EXAMPLE))) == read(EXAMPLE)


def test_a_file_without_devices_offers_none() -> None:
    assert read("version: 1") == read('{"version": 1, "devices": []}') == DeviceFileContent()


def a_file(**device: Any) -> str:
    return json.dumps({"version": 1, "devices": [{"id": "a", "type": "fpga", **device}]})


def twice(first: str, second: str) -> str:
    return json.dumps({"version": 1, "devices": [{"id": i, "type": "fpga"} for i in (first, second)]})


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "Expected `object`, got `null`"),
        ("version: 2", "version is 2; this Fractile reads version 1"),
        ("devices: []", "missing required field `version`"),
        ("version: [", "neither YAML nor JSON"),
        ('{"version": 1,', "neither YAML nor JSON"),
        (a_file(colour="red"), "devices[0]: Object contains unknown field `colour`"),
        (a_file(id="a b"), "devices[0].id"),
        (a_file(id="../x"), "devices[0].id"),
        (a_file(id="a.b"), "devices[0].id"),
        (a_file(id=""), "devices[0].id"),
        (twice("mlx5_0", "MLX5-0"), "devices[1].id is 'MLX5-0' and appears twice"),
        (a_file(type="gpu"), "devices[0].type is gpu; cards are found by their driver"),
        (a_file(type="Infini Band"), "devices[0].type"),
        (a_file(shares=0), "devices[0].shares"),
        (a_file(shares=1001), "devices[0].shares"),
        (a_file(properties={"nodeName": "n2"}), "devices[0].properties has nodeName"),
        (a_file(properties={"a b": 1}), "devices[0].properties"),
        (a_file(properties={"rate": "x" * 254}), "devices[0].properties"),
        (a_file(properties={"rate": {"Gb": 1}}), "devices[0].properties"),
        (a_file(properties={f"k{i}": 1 for i in range(57)}), "devices[0].properties"),
        (a_file(deviceNodes=["dev/x"]), "devices[0].deviceNodes[0]"),
        (a_file(deviceNodes=["/dev/../etc/shadow"]), "without '..'"),
        (a_file(deviceNodes=[{"host": "/dev/x", "permissions": "rwx"}]), "devices[0].deviceNodes[0].permissions"),
        (a_file(mounts=[{"host": "/"}]), "names the path '/'"),
        (a_file(mounts=[{"host": "/a", "container": "/b/../.."}]), "without '..'"),
        (a_file(environment={"A=B": "c"}), "devices[0].environment"),
        (a_file(healthy="no"), "devices[0].healthy"),
        (a_file(reason="too hot"), "devices[0].reason"),
        ("#" * 2**21, "larger than 1 MiB"),
        ("[" * 10_000, "devices.yaml:"),
    ],
    ids=lambda text: text[-60:] if len(text) < 2000 else text[:10],
)
def test_nonsense_is_refused_with_the_field(text: str, sentence: str) -> None:
    with pytest.raises(WireError) as refused:
        read(text)
    assert str(refused.value).startswith("devices.yaml: ")
    assert sentence in str(refused.value)


def test_an_id_that_is_too_long_beside_its_node_is_refused() -> None:
    with pytest.raises(WireError, match="too long beside the name of the node"):
        device_file.decode(a_file(id="a" * 63), "f", node=NodeName("n" * 200))


_CUT = st.sampled_from((EXAMPLE, a_file())).flatmap(lambda text: st.integers(0, len(text)).map(lambda n: text[:n]))


@given(st.text(max_size=200) | _CUT)
def test_no_text_breaks_the_reader(text: str) -> None:
    with contextlib.suppress(WireError):
        assert isinstance(read(text), DeviceFileContent)
