"""What an agent says of its node, in both shapes."""

from pathlib import Path

import msgspec
import pytest

from fractile.errors import WireError
from fractile.metrics.gpu_manager import gpu_manager_usage
from fractile.wire.foreign import gpu_manager_usage as gpu_manager_wire
from fractile.wire.output import node_usage
from fractile.wire.output.node_usage import NodeUsage
from tests.metrics.test_node import NODE
from tests.wire.golden_files import golden


def formatted(data: bytes) -> bytes:
    return msgspec.json.format(data) + b"\n"


def test_the_usage_of_a_node_is_written_and_read_as_recorded() -> None:
    assert formatted(node_usage.encode(NODE)) == golden("node-usage.json")
    assert node_usage.decode(golden("node-usage.json")) == NODE


def test_gpu_managers_shape_is_as_recorded() -> None:
    assert formatted(gpu_manager_wire.encode(gpu_manager_usage(NODE))) == golden("gpu-manager-usage.json")


def test_fields_of_later_programs_are_accepted() -> None:
    fields = msgspec.json.decode(node_usage.encode(NODE)) | {"moon": "full"}
    assert node_usage.decode(msgspec.json.encode(fields)) == NODE


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "is invalid"),
        (b"<html>", "is invalid"),
        (b'{"node":3,"time":1}', "is invalid"),
        (b"\xcb\xff", "is invalid"),
        (b'{"node":' * 5_000, "is invalid"),
        (node_usage.encode(NodeUsage(node="n", time=1.0, version=2)), "version 2"),
    ],
)
def test_anything_else_is_refused_with_a_sentence(data: bytes, reason: str) -> None:
    with pytest.raises(WireError, match=reason):
        node_usage.decode(data)


def test_the_documentation_names_every_field() -> None:
    page = (Path(__file__).parents[3] / "docs" / "reference" / "cli.md").read_text()
    structs = (
        node_usage.ClusterUsage,
        node_usage.Unanswered,
        node_usage.NodeUsage,
        node_usage.CardUsage,
        node_usage.ContainerUsage,
        node_usage.SliceUsage,
        node_usage.Outside,
        node_usage.DepartedUsage,
    )
    fields = {field.encode_name for struct in structs for field in msgspec.structs.fields(struct)}

    assert {name for name in fields if f"`{name}`" not in page} == set()
