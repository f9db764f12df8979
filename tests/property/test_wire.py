"""decode(encode(x)) == x for every format, and no bytes make a decoder raise anything but WireError."""

import contextlib
from collections.abc import Callable
from typing import Any, cast

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fractile.dialects.aliyun import COUNT, MEMORY
from fractile.dialects.table import parse_pod
from fractile.errors import WireError
from fractile.model.card import Card
from fractile.model.placement import ContainerPlacement, Placement, Slice
from fractile.model.refusal import Code, Refusal
from fractile.model.request import PodRequest, Role
from fractile.model.units import CardUUID, ContainerName, MemoryUnit, MiB, NodeName, Percent
from fractile.region import page
from fractile.wire import quantity
from fractile.wire.foreign import kubelet_checkpoint
from fractile.wire.fractile import device_ids, extended_resource, placement
from fractile.wire.kubernetes import extender
from fractile.wire.kubernetes.extender import (
    AskedPod,
    BindingArgs,
    BindingResult,
    ExtenderArgs,
    FilterResult,
    HostPriority,
)
from fractile.wire.kubernetes.objects import Container, Pod, PodSpec, ResourceRequirements
from fractile.wire.output import inspect
from tests.wire.golden_files import golden

checked = settings(max_examples=150, deadline=None)

names = st.text(st.characters(codec="utf-8"), min_size=1, max_size=20)
words = st.text(st.characters(codec="utf-8", exclude_categories=["Z", "C"]), min_size=1, max_size=20)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(codec="utf-8"), max_size=10),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)

slices = st.builds(
    Slice,
    card=names.map(CardUUID),
    memory=st.integers(0, 2**40).map(MiB),
    cores=st.integers(0, 100).map(Percent),
)
containers = st.builds(
    ContainerPlacement,
    container=names.map(ContainerName),
    role=st.sampled_from(Role),
    slices=st.lists(slices, min_size=1, max_size=3).map(tuple),
)
placements = st.builds(
    Placement,
    node=names.map(NodeName),
    containers=st.lists(containers, min_size=1, max_size=4, unique_by=lambda c: c.container).map(tuple),
)


@checked
@given(placements)
def test_a_placement_survives_the_annotation(placed: Placement) -> None:
    text = placement.encode(placed)
    assert placement.decode(text) == placed
    assert placement.encode(placement.decode(text)) == text


@checked
@given(st.lists(st.tuples(words, st.integers(0, 999_999)), max_size=30))
def test_device_ids_survive_ranges(pairs: list[tuple[str, int]]) -> None:
    ids = {device_ids.device_id(CardUUID(card), k) for card, k in pairs}
    assert device_ids.from_ranges(device_ids.to_ranges(ids)) == ids
    for card, k in pairs:
        assert device_ids.split(device_ids.device_id(CardUUID(card), k)) == (card, k)


@checked
@given(st.integers(0, 2**63 - 1))
def test_whole_numbers_survive_every_spelling(number: int) -> None:
    for spelling in (number, str(number), f"{number}.0", f"{number}e0", f"{number}000m", f"+{number}"):
        assert quantity.whole_number(spelling) == number


@checked
@given(names.filter(lambda name: "." not in name), st.integers(0, 4095), st.integers(0, 2**39), st.booleans())
def test_a_card_survives_its_object(name: str, index: int, memory: int, healthy: bool) -> None:
    card = Card(CardUUID(name), index, name, MiB(memory), healthy=healthy, node=NodeName(name))
    applied: dict[str, Any] = msgspec.to_builtins(extended_resource.from_card(card, NodeName(name)))
    applied["status"] = {"phase": "Available" if healthy else "Unhealthy"}
    read = extended_resource.decoder.decode(msgspec.json.encode(applied))
    assert extended_resource.to_card(read) == (name, card)


@checked
@given(names, st.lists(names, max_size=5))
def test_the_arguments_of_the_verbs_survive(name: str, nodes: list[str]) -> None:
    binding = BindingArgs(name, name, name, name)
    assert extender.decode_binding(msgspec.json.encode(binding)) == binding
    args = ExtenderArgs(pod=AskedPod(), node_names=nodes)
    assert extender.decode_args(msgspec.json.encode(args)) == args


@checked
@given(st.lists(names, max_size=5), st.dictionaries(names, names, max_size=3), names)
def test_the_answers_of_the_verbs_survive(nodes: list[str], failed: dict[str, str], error: str) -> None:
    answer = FilterResult(node_names=nodes, failed=failed, unresolvable=failed, error=error)
    assert msgspec.json.decode(extender.encode(answer), type=FilterResult) == answer
    scores = [HostPriority(n, i) for i, n in enumerate(nodes)]
    assert msgspec.json.decode(extender.encode(scores), type=list[HostPriority]) == scores
    refused = BindingResult(error)  # without percent signs: Go formats it
    assert msgspec.json.decode(extender.encode(refused), type=BindingResult) == refused
    assert refused.error == error.replace("%", "％")


def _card(body: bytes) -> object:
    with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError):  # the client's to handle
        return extended_resource.to_card(extended_resource.decoder.decode(body))
    return None


def _args(body: bytes) -> object:
    return extender.names_of(extender.decode_args(body))


def text(decode: Callable[[str], object]) -> Callable[[bytes], object]:
    return lambda body: decode(body.decode("utf-8", "surrogateescape"))


DECODERS = [
    pytest.param(text(placement.decode), "placement-v1.json", id="placement"),
    pytest.param(text(device_ids.from_ranges), "device-ranges.txt", id="ranges"),
    pytest.param(text(device_ids.split), "device-ranges.txt", id="device id"),
    pytest.param(text(quantity.whole_number), "quantities.json", id="quantity"),
    pytest.param(_args, "extender-args.json", id="args"),
    pytest.param(_args, "extender-args-nodes.json", id="args with nodes"),
    pytest.param(extender.decode_binding, "extender-bind.json", id="binding"),
    pytest.param(_card, "extended-resource.json", id="card"),
    pytest.param(page.decode, "limits-v2.bin", id="limits"),
    pytest.param(kubelet_checkpoint.decode, "kubelet-checkpoint-1.36.json", id="checkpoint"),
    pytest.param(kubelet_checkpoint.registered, "kubelet-checkpoint-1.36.json", id="registered"),
    pytest.param(inspect.decode, "inspection.json", id="inspection"),
]


@pytest.mark.parametrize(("decode", "file"), DECODERS)
@checked
@given(body=st.binary(max_size=60))
def test_arbitrary_bytes_are_refused_in_one_way(decode: Callable[[bytes], object], file: str, body: bytes) -> None:
    with contextlib.suppress(WireError):
        decode(body)


@pytest.mark.parametrize(("decode", "file"), DECODERS)
@checked
@given(data=st.data())
def test_a_damaged_message_is_refused_in_one_way(
    decode: Callable[[bytes], object], file: str, data: st.DataObject
) -> None:
    whole = golden(file)
    start = data.draw(st.integers(0, len(whole)))
    end = data.draw(st.integers(start, min(len(whole), start + 8)))
    with contextlib.suppress(WireError):
        decode(whole[:start] + data.draw(st.binary(max_size=4)) + whole[end:])


def _fields(value: object) -> dict[str, object]:
    """What a JSON object or list holds; nothing for other values."""
    if isinstance(value, list):
        return {str(i): held for i, held in enumerate(cast(list[object], value))}
    return cast(dict[str, object], value) if isinstance(value, dict) else {}


def _replace(at: object, key: str, value: object) -> None:
    if isinstance(at, list):
        cast(list[object], at)[int(key)] = value
    else:
        cast(dict[str, object], at)[key] = value


@pytest.mark.parametrize("file", ["placement-v1.json", "extender-args.json", "extender-bind.json"])
@checked
@given(data=st.data())
def test_a_message_with_a_value_of_another_kind_is_refused_in_one_way(file: str, data: st.DataObject) -> None:
    """Some value anywhere in a well-formed message becomes another JSON value."""
    whole: object = msgspec.json.decode(golden(file))
    at = whole
    while True:
        fields = _fields(at)
        key = data.draw(st.sampled_from(sorted(fields)))
        if not _fields(fields[key]) or data.draw(st.booleans()):
            _replace(at, key, data.draw(json_values))
            break
        at = fields[key]
    body = msgspec.json.encode(whole)
    for decode in (text(placement.decode), _args, extender.decode_binding):
        with contextlib.suppress(WireError):
            decode(body)


_ODD: list[object] = ["-1", "0.5", "1e999999", "1e30", "", " ", "٣", "1Ei", "8Ei", 10**30, -1, True, None, [], {}]
amounts = json_values | st.sampled_from(_ODD)
resource_names = st.sampled_from([MEMORY, COUNT, "nvidia.com/gpu", "tencent.com/vcuda-core", "cpu", ""])
resource_lists = st.none() | st.dictionaries(resource_names, amounts, max_size=3)
hostile = st.builds(
    Container,
    name=st.text(max_size=3),
    resources=st.none() | st.builds(ResourceRequirements, limits=resource_lists, requests=resource_lists),
    restart_policy=st.none() | st.sampled_from(["Always", "Never", "x"]),
)
specs = st.builds(
    PodSpec,
    containers=st.none() | st.lists(hostile, max_size=3),
    init_containers=st.none() | st.lists(hostile, max_size=2),
)


@settings(checked, max_examples=500)
@given(specs, st.sampled_from(MemoryUnit))
def test_no_pod_makes_the_dialects_raise(spec: PodSpec, unit: MemoryUnit) -> None:
    found = parse_pod(Pod(spec=spec), unit)
    if isinstance(found, Refusal):
        assert found.code is Code.MALFORMED
        assert found.message
        assert len(found.message) < 300
    elif isinstance(found, PodRequest):
        assert found.containers
        assert all(c.amount > 0 and c.request.count > 0 and c.request.memory >= 0 for c in found.containers)
