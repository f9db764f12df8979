"""The formats of ``fractile classes -o json`` and ``fractile devices -o json``."""

import re
from pathlib import Path

import msgspec
import pytest

from fractile.errors import WireError
from fractile.wire.output import class_report as wire
from tests.wire.golden_files import golden

CLASSES = wire.ClassReport(
    classes=(
        wire.ClassEntry(
            name="v100.slice",
            resource="class.fractile.dev/v100.slice",
            device_type="gpu",
            selector=("model = Tesla V100", "memory > 10GiB"),
            memory_mib=4096,
            cores_percent=20,
            count=1,
            shared=True,
            devices=wire.DeviceSums(total=3, free=1, unhealthy=1),
            units=wire.UnitSums(total=8, free=7),
            nodes=(wire.NodeShare("n1", wire.DeviceSums(3, 1, 1), wire.UnitSums(8, 7)),),
            reason="",
            message="",
        ),
    )
)
DEVICES = wire.DeviceReport(
    devices=(
        wire.DeviceEntry(
            name="gpu-8c5a2f4e",
            id="GPU-8c5a2f4e",
            type="gpu",
            node="n1",
            index=0,
            model="Tesla V100",
            phase="PartlyBound",
            reason="",
            message="",
            healthy=True,
            memory_mib=16384,
            held_memory_mib=4096,
            held_cores_percent=20,
            shares=1,
            held_shares=0,
            properties={"model": "Tesla V100", "type": "gpu"},
            classes=("v100.slice",),
            holders=(
                wire.DeviceHolder(
                    namespace="default", pod="p", container="main", memory_mib=4096, cores_percent=20, shares=0
                ),
            ),
        ),
    )
)


def test_the_golden_files_are_what_is_written() -> None:
    assert wire.encode(CLASSES) == golden("class-report.json").decode().rstrip("\n")
    assert wire.encode(DEVICES) == golden("device-report.json").decode().rstrip("\n")


def test_the_golden_files_are_read() -> None:
    assert wire.decode_classes(golden("class-report.json")) == CLASSES
    assert wire.decode_devices(golden("device-report.json")) == DEVICES


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(b"{}", id="no fields"),
        pytest.param(b'{"kind":"ClassReport","classes":[{}]}', id="half a class"),
        pytest.param(b"[" * 100_000, id="depth"),
        pytest.param(b'"\xff"', id="no text"),
        pytest.param(msgspec.json.encode({"kind": "DeviceReport", "classes": []}), id="another kind"),
        pytest.param(msgspec.json.encode({"apiVersion": "fractile.dev/v2", "classes": []}), id="another version"),
    ],
)
def test_anything_else_is_refused_with_a_sentence(text: bytes) -> None:
    with pytest.raises(WireError):
        wire.decode_classes(text)


def test_every_field_is_explained() -> None:
    page = (Path(__file__).parents[3] / "docs" / "reference" / "class-reports.md").read_text()
    written = golden("class-report.json") + golden("device-report.json")
    fields = set(re.findall(r'"(\w+)":', written.decode()))
    assert {name for name in fields if f"`{name}`" not in page} == set()
