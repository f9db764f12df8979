"""Objects of kind ResourceClass."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fractile.model.device_class import DeviceClass, Operator, PropertyRequirement
from fractile.model.units import MiB, Percent
from fractile.wire.fractile import resource_class
from fractile.wire.fractile.resource_class import (
    DeviceCounts,
    Invalid,
    ResourceClass,
    ResourceClassStatus,
    UnitCounts,
    class_of,
    decode,
    resource_name,
)
from tests.wire.golden_files import golden

K80 = b'{"metadata":{"name":"nvidia.tesla.k80"},"spec":{"selector":{"matchLabels":{"model":"NVIDIA Tesla K80"}}}}'
HIGH_MEM = (
    b'{"metadata":{"name":"nvidia.high.mem"},"spec":{"selector":{"matchExpressions":'
    b'[{"key":"memory","operator":"Gt","values":["10GiB"]}]}}}'
)


def read(text: bytes) -> DeviceClass | Invalid:
    return decode(resource_class.decoder.decode(text))


def classed(name: str = "c", **spec: Any) -> DeviceClass | Invalid:
    return read(msgspec.json.encode({"metadata": {"name": name}, "spec": spec}))


def chosen(key: str, operator: str, *values: object) -> DeviceClass | Invalid:
    expression = {"key": key, "operator": operator, "values": list(values)}
    return classed(selector={"matchExpressions": [expression]})


def test_the_two_examples_of_the_design_it_continues() -> None:
    k80 = DeviceClass(
        "nvidia.tesla.k80", requirements=(PropertyRequirement("model", Operator.IN, ("NVIDIA Tesla K80",)),)
    )
    high = DeviceClass("nvidia.high.mem", requirements=(PropertyRequirement("memory", Operator.GT, ("10GiB",)),))
    assert read(K80) == k80
    assert read(HIGH_MEM) == high


def test_an_object_of_the_api_server_is_read_as_recorded() -> None:
    found = resource_class.decoder.decode(golden("resource-class.json"))
    assert decode(found) == DeviceClass(
        name="v100-slice",
        requirements=(
            PropertyRequirement("computeCapability", Operator.IN, ("7.0",)),
            PropertyRequirement("model", Operator.IN, ("Tesla V100",)),
            PropertyRequirement("memory", Operator.GE, ("16Gi",)),
            PropertyRequirement("driver", Operator.EXISTS),
        ),
        memory=MiB(4096),
        cores=Percent(25),
        count=2,
    )
    assert found.metadata.generation == 3
    assert found.status == ResourceClassStatus(
        devices=DeviceCounts(total=8, free=3, unhealthy=1),
        units=UnitCounts(total=28, free=12),
        reason="SomeUnhealthy",
        message="1 of 8 devices is unhealthy",
        observed_generation=3,
        last_transition_time="2026-11-21T10:00:00Z",
    )


def test_a_status_is_written_as_it_is_read() -> None:
    found = resource_class.decoder.decode(golden("resource-class.json"))
    written: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(found))
    recorded: dict[str, Any] = msgspec.json.decode(golden("resource-class.json"))
    assert written["status"] == recorded["status"]
    assert written["spec"] == recorded["spec"]


def test_a_part_or_the_whole_of_a_card() -> None:
    kinds: tuple[tuple[dict[str, Any], bool], ...] = (
        ({}, False),
        ({"memory": "4Gi"}, True),
        ({"cores": 30}, True),
        ({"count": 4}, False),
    )
    for spec, shared in kinds:
        found = classed(**spec)
        assert isinstance(found, DeviceClass)
        assert found.shared is shared


@pytest.mark.parametrize(
    ("memory", "mib"), [("4Gi", 4096), ("4GiB", 4096), ("4GB", 3815), ("1Mi", 1), (2**30, 1024), ("1.5gib", 1536)]
)
def test_memory_is_rounded_up_to_mib(memory: str | int, mib: int) -> None:
    found = classed(memory=memory)
    assert isinstance(found, DeviceClass)
    assert found.memory == mib


@pytest.mark.parametrize(
    ("found", "sentence"),
    [
        (
            chosen("memory", "Greater", "1Gi"),
            "the operator 'Greater' of memory is unknown; there are In, NotIn, Exists",
        ),
        (chosen("memory", "gt", "1Gi"), "unknown"),
        (chosen("memory", "", "1Gi"), "unknown"),
        (chosen("memory", "Gt"), "Gt of memory takes one value, not 0"),
        (chosen("memory", "Gt", "1Gi", "2Gi"), "Gt of memory takes one value, not 2"),
        (chosen("memory", "Gt", "ten"), "needs a quantity such as 10GiB or 1.5GHz, not 'ten'"),
        (chosen("memory", "Le", "10XiB"), "needs a quantity"),
        (chosen("memory", "Ge", "99999999999Ti"), "needs a quantity"),
        (chosen("memory", "Ge", "1e999"), "needs a quantity"),
        (chosen("memory", "Gt", ""), "a value of memory must have 1 to 253 characters"),
        (chosen("model", "In"), "In of model takes 1 to 64 values, not 0"),
        (chosen("model", "NotIn"), "NotIn of model takes 1 to 64 values"),
        (chosen("model", "In", ""), "must have 1 to 253 characters"),
        (chosen("model", "In", "x" * 254), "must have 1 to 253 characters"),
        (chosen("model", "In", *map(str, range(65))), "not 65"),
        (chosen("model", "Exists", "x"), "Exists of model takes no values"),
        (chosen("", "Exists"), "a key of spec.selector is ''"),
        (chosen("a b", "Exists"), "a key of spec.selector is 'a b'"),
        (classed(selector={"matchLabels": {"": "x"}}), "a key"),
        (classed(selector={"matchLabels": {"model": ""}}), "a value of model"),
        (classed(selector={"matchLabels": {f"k{i}": "x" for i in range(33)}}), "more than 32"),
        (classed(memory="lots"), "spec.memory must be a quantity of at least 1Mi, such as 4Gi, not 'lots'"),
        (classed(memory="4096"), "at least 1Mi"),
        (classed(memory="-4Gi"), "at least 1Mi"),
        (classed(memory="2GHz"), "at least 1Mi"),
        (classed(memory="9999999999Ti"), "spec.memory"),
        (classed(memory=10**40), "memory"),
        (classed(cores=-1), "spec.cores must be 0 to 100"),
        (classed(cores=101), "spec.cores must be 0 to 100"),
        (classed(count=0), "spec.count must be 1 to 64"),
        (classed(count=65), "spec.count must be 1 to 64"),
        (classed(deviceType="infiniband", memory="1Gi"), "spec.memory is only for deviceType gpu"),
        (classed(deviceType="infiniband", cores=10), "spec.cores is only for deviceType gpu"),
        (classed(deviceType=""), "spec.deviceType is ''"),
        (classed(deviceType="Infini Band"), "spec.deviceType"),
        (classed("x" * 64), "the name is"),
        (classed("-x"), "the name is"),
        (classed(""), "the name is ''"),
    ],
    ids=lambda value: value.message[:60] if isinstance(value, Invalid) else "",
)
def test_nonsense_is_refused_with_a_sentence(found: DeviceClass | Invalid, sentence: str) -> None:
    assert isinstance(found, Invalid)
    assert sentence in found.message
    assert not found.message.endswith(".")
    assert len(found.message) < 400


def test_the_name_of_a_resource_names_its_class() -> None:
    assert resource_name("nvidia.tesla.k80") == "class.fractile.dev/nvidia.tesla.k80"
    assert class_of("class.fractile.dev/nvidia.tesla.k80") == "nvidia.tesla.k80"
    assert class_of("nvidia.com/gpu") is None


_TEXTS = st.text(max_size=12) | st.sampled_from(("In", "Gt", "Le", "Exists", "memory", "10GiB", "1e99", "gpu"))
_VALUES = st.lists(_TEXTS | st.integers(), max_size=3)


@given(
    name=_TEXTS,
    device_type=_TEXTS,
    labels=st.dictionaries(_TEXTS, _TEXTS | st.integers(-(2**63), 2**63), max_size=3),
    expressions=st.lists(st.tuples(_TEXTS, _TEXTS, _VALUES), max_size=3),
    memory=_TEXTS | st.integers(),
    cores=st.integers(-(2**63), 2**63 - 1),
    count=st.integers(-(2**63), 2**63 - 1),
)
def test_every_object_is_a_class_or_refused(
    name: str,
    device_type: str,
    labels: dict[str, str | int],
    expressions: list[tuple[str, str, list[str | int]]],
    memory: str | int,
    cores: int,
    count: int,
) -> None:
    selector = resource_class.DeviceSelector(
        match_labels=labels,
        match_expressions=[resource_class.MatchExpression(key=k, operator=o, values=v) for k, o, v in expressions],
    )
    spec = resource_class.ResourceClassSpec(
        device_type=device_type, selector=selector, memory=memory, cores=cores, count=count
    )
    found = decode(ResourceClass(metadata=resource_class.ClassMeta(name=name), spec=spec))
    assert isinstance(found, DeviceClass | Invalid)
