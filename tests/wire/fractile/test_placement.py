"""The annotation that is the truth about a pod's cards."""

from typing import Any

import msgspec
import pytest

from fractile.errors import WireError
from fractile.model.placement import Slice
from fractile.model.request import Role
from fractile.model.units import CardUUID, MiB
from fractile.wire.fractile import placement as wire
from tests.builders import given, piece, placement
from tests.wire.golden_files import golden

A, B, C = (f"GPU-4f2b4d9e-0000-4000-8000-00000000000{i}" for i in range(3))
VERSION_1 = placement(
    given("warm", piece(A, 1024), role=Role.INIT),
    given("log", piece(A, 256, 5), role=Role.SIDECAR),
    given("main", piece(A, 8138)),
    given("train", piece(B, 16276, 100), piece(C, 16276, 100)),
)


def test_version_1_is_written_byte_for_byte_as_recorded() -> None:
    assert wire.encode(VERSION_1).encode() == golden("placement-v1.json")


def test_version_1_is_read_as_recorded() -> None:
    assert wire.decode(golden("placement-v1.json").decode()) == VERSION_1


def test_slots_are_written_only_where_there_are_any() -> None:
    without, having = placement(given("main", piece(A, 1))), placement(given("main", piece(A, 1, 0, 1)))
    assert '"slots"' not in wire.encode(without)
    assert '{"card":"' + A + '","memoryMiB":1,"cores":0,"slots":1}' in wire.encode(having)
    assert [wire.decode(wire.encode(p)) for p in (without, having)] == [without, having]


def test_fields_of_a_later_writer_are_skipped_within_a_version() -> None:
    text = golden("placement-v1.json").decode().replace('"node":"n1"', '"node":"n1","pool":"blue"')
    assert wire.decode(text) == VERSION_1


def changed(**fields: object) -> str:
    good = msgspec.json.decode(golden("placement-v1.json"), type=dict[str, object])
    return msgspec.json.encode({**good, **fields}).decode()


def slices(**fields: object) -> str:
    one = {"card": A, "memoryMiB": 1, "cores": 0, **fields}
    return changed(containers={"main": {"role": "app", "slices": [one]}})


ONE = {"role": "app", "slices": [{"card": A, "memoryMiB": 1, "cores": 0}]}


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("", id="nothing"),
        pytest.param("null", id="null"),
        pytest.param("[]", id="a list"),
        pytest.param("{}", id="no version"),
        pytest.param("\ud800", id="a lone surrogate"),
        pytest.param('{"version": 1}', id="only a version"),
        pytest.param(changed(version="1"), id="a version in words"),
        pytest.param(changed(version=1.5), id="half a version"),
        pytest.param('{"version": ' + "1" * 5000 + "}", id="a version of 5000 digits"),
        pytest.param(changed(node=""), id="no node"),
        pytest.param(changed(node=7), id="a number as node"),
        pytest.param(changed(containers={}), id="no containers"),
        pytest.param(changed(containers={"main": {"role": "app", "slices": []}}), id="no slices"),
        pytest.param(changed(containers={"main": {"role": "boss", "slices": [{"card": A}]}}), id="an unknown role"),
        pytest.param(changed(containers=dict.fromkeys(map(str, range(300)), ONE)), id="too many containers"),
        pytest.param(slices(memoryMiB=-1), id="negative memory"),
        pytest.param(slices(memoryMiB=1.5), id="a fraction of a MiB"),
        pytest.param(slices(memoryMiB=2**41), id="more memory than exists"),
        pytest.param(slices(memoryMiB=True), id="memory true"),
        pytest.param(slices(cores=101), id="more than a card's cores"),
        pytest.param(slices(cores=-1), id="negative cores"),
        pytest.param(slices(slots=-1), id="negative slots"),
        pytest.param(slices(slots=1025), id="more slots than a card may have"),
        pytest.param(slices(slots=None), id="null slots"),
        pytest.param(slices(card=""), id="no card"),
        pytest.param(slices(card="x" * 254), id="a card name of 254 characters"),
        pytest.param("[" * 200_000, id="deeply nested"),
        pytest.param(" " * wire.MAX_LENGTH + "{}", id="longer than annotations may be"),
    ],
)
def test_what_is_no_placement_is_refused(text: str) -> None:
    with pytest.raises(WireError, match=r"fractile\.dev/placement"):
        wire.decode(text)


@pytest.mark.parametrize("version", [0, 2, -1, 99])
def test_another_version_is_refused_with_both_numbers(version: int) -> None:
    with pytest.raises(WireError, match=f"has version {version}; this Fractile reads version 1"):
        wire.decode(changed(version=version))


def test_a_slice_of_a_device_that_is_no_gpu_has_shares_and_one_of_a_gpu_says_nothing_of_them() -> None:
    both = placement(given("main", piece("GPU-a", 8138), Slice(CardUUID("mlx5-0.n1"), MiB(0), shares=1)))
    assert msgspec.json.decode(wire.encode(both), type=dict[str, Any])["containers"]["main"]["slices"] == [
        {"card": "GPU-a", "memoryMiB": 8138, "cores": 0},
        {"card": "mlx5-0.n1", "memoryMiB": 0, "cores": 0, "shares": 1},
    ]
    assert wire.decode(wire.encode(both)) == both


def test_of_another_version_nothing_else_is_looked_at() -> None:
    with pytest.raises(WireError, match="has version 2; this Fractile reads version 1"):
        wire.decode('{"version": 2, "node": 7, "containers": []}')
    with pytest.raises(WireError, match="malformed"):
        wire.decode('{"version": 1, "node": 7, "containers": []}')
