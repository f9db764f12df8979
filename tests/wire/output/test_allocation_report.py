"""The format of ``fractile allocations -o json``."""

import pytest
import yaml

from fractile.errors import WireError
from fractile.wire.output.allocation_report import (
    AllocationReport,
    NodeAllocations,
    ResourceAllocation,
    decode,
    encode,
    encode_yaml,
)
from tests.wire.golden_files import golden

GPU = ResourceAllocation(
    resource="nvidia.com/gpu",
    extended=True,
    requested="8",
    limit="8",
    capacity="8",
    allocatable="7",
    free="-1",
    utilization_percent=114.3,
)
UNKNOWN = ResourceAllocation(
    resource="cpu",
    extended=False,
    nodes=2,
    requested="2500m",
    limit="0",
    capacity="0",
    allocatable="0",
    free="-2500m",
    utilization_percent=None,
)
REPORT = AllocationReport(nodes=(NodeAllocations("n1", 3, (GPU,)),), totals=(UNKNOWN,), problems=("something is odd",))


def test_the_report_is_encoded_as_recorded() -> None:
    assert encode(REPORT) + "\n" == golden("allocation-report.json").decode()


def test_the_recorded_report_is_read_back_and_yaml_says_the_same() -> None:
    assert decode(golden("allocation-report.json")) == REPORT
    assert yaml.safe_load(encode_yaml(REPORT)) == yaml.safe_load(encode(REPORT))


@pytest.mark.parametrize("text", ["", "{}", "[]", encode(REPORT).replace("v1alpha1", "v9"), b"\xff"])
def test_anything_else_is_refused(text: str | bytes) -> None:
    with pytest.raises(WireError):
        decode(text)
