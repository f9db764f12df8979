"""The cluster file: version 1 as its golden file has it, and what a person is told about a faulty one."""

import contextlib
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fractile.errors import WireError
from fractile.model.units import NodeName
from fractile.wire.files import device_file
from fractile.wire.files.cluster_file import CardGroup, Link, decode, matrix, parse_cards

GOLDEN = Path(__file__).parents[1] / "golden"
EXAMPLE = Path(__file__).parents[3] / "examples" / "cluster.yaml"
CARD = "{model: A, memory: 16276}"


def file(nodes: str) -> str:
    return f"version: 1\nnodes:\n{nodes}"


def test_the_example_reads_as_the_golden_file_says() -> None:
    decoded = decode(EXAMPLE.read_bytes(), source="cluster.yaml")
    golden = (GOLDEN / "cluster-file-v1.json").read_bytes()
    assert msgspec.json.format(msgspec.json.encode(decoded)) + b"\n" == golden


@pytest.mark.parametrize(
    ("text", "mib"),
    [("16276Mi", 16276), ("16Gi", 16384), ("16276", 16276), ("'1048576'", 1)],
    ids=["MiB quantity", "GiB quantity", "number of MiB", "quantity of bytes"],
)
def test_memory_is_a_quantity_or_a_number_of_mib(text: str, mib: int) -> None:
    decoded = decode(file(f"- cards: [{{model: A, memory: {text}}}]"), source="f")
    assert decoded.nodes[0].cards[0].mib == mib


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("nodes: [", "f is not YAML: line"),
        ("[]", "f: the file: expected `object`, got `array`"),
        ("version: 2\nnodes: [{cards: []}]", "f: version: invalid enum value 2"),
        ("nodes: [{cards: []}]", "f: the file: object missing required field `version`; add it"),
        ("version: 1\nnodes: []", "f: nodes: expected `array` of length >= 1"),
        (file("- {cards: [], nmae: x}"), "f: nodes[0]: object contains unknown field `nmae`; remove it"),
        (file("- {cards: [{model: A}]}"), "f: nodes[0].cards[0]: object missing required field `memory`"),
        (file("- {cards: [{model: A, memory: 1.5}]}"), "f: nodes[0].cards[0].memory: expected"),
        (
            file("- {cards: [{model: A, memory: 16276MiB}]}"),
            "f: nodes[0].cards[0].memory: '16276MiB' is not the size of a card",
        ),
        (
            file("- {cards: [{model: A, memory: 100k}]}"),
            "f: nodes[0].cards[0].memory: '100k' is not the size of a card",
        ),
        (file("- {cards: [{model: A, memory: 0}]}"), "f: nodes[0].cards[0].memory: 0 is not the size of a card"),
        (file("- {cards: [{model: A, memory: -5}]}"), "f: nodes[0].cards[0].memory: -5 is not the size of a card"),
        (file(f"- {{name: Bad_Name, cards: [{CARD}]}}"), "f: nodes[0].name: expected `str` matching regex"),
        (file(f"- {{labels: {{a b: c}}, cards: [{CARD}]}}"), "f: key in nodes[0].labels: expected `str` matching"),
        (file("- {cards: [{model: A, memory: 1, count: 65}]}"), "f: nodes[0].cards[0].count: expected `int` <= 64"),
        (file("- cards: [{model: A, memory: 1, count: 60}, {model: A, memory: 1, count: 5}]"), "65 cards are more"),
        (file("- {count: 2, cards: [{model: A, memory: 1, uuids: [GPU-a]}]}"), "1 are given for 2 cards"),
        (file("- {cards: [{model: A, memory: 1, uuids: [x]}]}"), "f: nodes[0].cards[0].uuids[0]: expected"),
        (file(f"- {{cards: [{CARD}], interconnect: [{{between: [0, 1], type: NV1}}]}}"), "must name two different"),
        (file(f"- {{cards: [{CARD}], interconnect: [{{between: [0, 0], type: NV1}}]}}"), "must name two different"),
        (file(f"- {{cards: [{CARD}], interconnect: [{{between: [0, 1], type: WIFI}}]}}"), "interconnect[0].type"),
    ],
)
def test_a_faulty_file_is_refused_with_file_field_and_remedy(text: str, said: str) -> None:
    with pytest.raises(WireError) as caught:
        decode(text, source="f")
    assert said in str(caught.value)
    assert str(caught.value).startswith("f")
    assert "\n" not in str(caught.value)


@given(st.text() | st.binary())
def test_any_text_gives_a_file_or_a_wire_error(text: str | bytes) -> None:
    with contextlib.suppress(WireError):
        decode(text, source="f")


def test_a_file_of_nested_brackets_is_refused_and_not_a_crash() -> None:
    with pytest.raises(WireError):
        decode("[" * 100_000, source="f")


@pytest.mark.parametrize(
    ("text", "groups"),
    [
        ("2x Tesla-V100 16276MiB", [(2, "Tesla-V100", 16276)]),
        ("Tesla-T4 15109 MiB", [(1, "Tesla-T4", 15109)]),
        ("8x NVIDIA A100-SXM4-80GB 80GiB", [(8, "NVIDIA A100-SXM4-80GB", 81920)]),
        ("1x A10 24Gi,2X T4 16Gi", [(1, "A10", 24576), (2, "T4", 16384)]),
        ("3× V100 10MiB", [(3, "V100", 10)]),
    ],
)
def test_the_short_form_of_cards(text: str, groups: list[tuple[int, str, int]]) -> None:
    assert [(g.count, g.model, g.mib) for g in parse_cards(text)] == groups


@pytest.mark.parametrize(
    "text",
    ["", "2x", "Tesla-V100", "2x Tesla 16276", "0x A 1MiB", "65x A 1MiB", "x" * 200 + " 1MiB", "A 0MiB", "A 1MiB,"],
)
def test_cards_in_another_form_are_refused(text: str) -> None:
    with pytest.raises(WireError):
        parse_cards(text)


def test_a_group_of_cards_is_frozen_and_shows_its_defaults() -> None:
    assert CardGroup(model="A", memory=1).count == 1
    assert CardGroup(model="A", memory=1).uuids == ()


def test_links_become_the_rows_of_a_matrix_and_what_none_names_is_on_one_numa_node() -> None:
    links = (Link(between=(0, 1), type="NV2"), Link(between=(2, 0), type="SYS"))
    assert matrix(3, links) == ["X NV2 SYS", "NV2 X NODE", "SYS NODE X"]


def test_devices_that_are_no_gpus_are_checked_as_the_agent_checks_them() -> None:
    text = file(f"- {{name: x, cards: [{CARD}], devices: [{{id: mlx5_0, type: infiniband, shares: 2}}]}}")
    (node,) = decode(text, source="f").nodes
    told = device_file.decode(node.device_file, "f", node=NodeName("x"))
    assert [(o.uuid, o.device.type, o.device.shares) for o in told.offers] == [("mlx5_0.x", "infiniband", 2)]
    for wrong, said in (
        ("{id: a, type: gpu}", r"f: nodes\[0\]: devices\[0\].type is gpu"),
        ("{id: a}", r"f: nodes\[0\]: devices\[0\]: .*type"),
        ("&a {id: a, type: x, mounts: [*a]}", r"f: nodes\[0\].devices: this is not a list of devices"),
    ):
        with pytest.raises(WireError, match=said):
            decode(file(f"- {{name: x, cards: [{CARD}], devices: [{wrong}]}}"), source="f")


@pytest.mark.parametrize("text", ['name: "\\ud800"', '"\\ud800": 1', 'nodes: [{count: 1, cards: ["\\udfff"]}]'])
def test_half_of_a_pair_of_surrogates_is_refused_with_a_sentence(text: str) -> None:
    with pytest.raises(WireError):
        decode(text, source="f")
    with pytest.raises(WireError):
        device_file.decode(text, "f", node=NodeName("n1"))
