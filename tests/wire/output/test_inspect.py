"""The format of ``fractile inspect -o json``."""

from pathlib import Path

import msgspec
import pytest
import yaml

from fractile.errors import WireError
from fractile.wire.output import inspect

GOLDEN = Path(__file__).parents[1] / "golden" / "inspection.json"

CARD = inspect.CardReport(
    uuid="GPU-8c5a2f4e-0000-4000-8000-000000000000",
    index=0,
    model="Tesla-V100",
    pci_bus_id="00000000:00:04.0",
    healthy=True,
    memory_mib=16276,
    allocated_mib=12207,
    free_mib=4069,
    allocated_percent=75.0,
    allocated_cores_percent=0,
    pods=(
        inspect.CardHolder(
            namespace="default",
            name="binpack-0",
            uid="0b1ff0f3-7c43-4f3c-9a6c-6a8b2a2f7a11",
            phase="Running",
            memory_mib=12207,
            cores_percent=0,
            containers=(
                inspect.ContainerShare(name="warm-up", role="init", memory_mib=12207, cores_percent=0),
                inspect.ContainerShare(name="main", role="app", memory_mib=8138, cores_percent=0),
            ),
        ),
    ),
)
TOTALS = inspect.Amounts(cards=1, memory_mib=16276, allocated_mib=12207, free_mib=4069, allocated_percent=75.0)
REPORT = inspect.Inspection(
    memory_unit="MiB",
    totals=TOTALS,
    nodes=(inspect.NodeReport(name="fractile-0", totals=TOTALS, cards=(CARD,)),),
    waiting=(
        inspect.WaitingPodReport(
            namespace="default",
            name="large",
            uid="5d9f7c58-3a39-4a0f-8a3b-1b2c3d4e5f60",
            created="2026-11-21T04:00:00Z",
            requests=(
                inspect.WaitingContainer(
                    container="main",
                    role="app",
                    resource="aliyun.com/gpu-mem",
                    amount=8138,
                    count=1,
                    memory_mib=8138,
                    exclusive=False,
                ),
            ),
            refusal="",
        ),
    ),
    problems=(
        inspect.Problem(
            kind="Pod",
            namespace="default",
            name="by-hand",
            uid="f2a1c0de-1111-4222-8333-444455556666",
            node="fractile-0",
            reason="the pod has no placement: it was bound without Fractile (by spec.nodeName, or by a scheduler that "
            "does not call Fractile), so it gets no card; delete it, and create it again without spec.nodeName",
        ),
    ),
)


def test_the_json_is_the_golden_file() -> None:
    assert inspect.encode(REPORT) + "\n" == GOLDEN.read_text()


def test_the_golden_file_is_read_back() -> None:
    assert inspect.decode(GOLDEN.read_bytes()) == REPORT


def test_the_yaml_holds_the_same_as_the_json() -> None:
    assert yaml.safe_load(inspect.encode_yaml(REPORT)) == msgspec.json.decode(GOLDEN.read_bytes())


def test_the_documentation_names_every_field() -> None:
    page = (Path(__file__).parents[3] / "docs" / "reference" / "inspect.md").read_text()
    structs = (
        inspect.Inspection,
        inspect.Amounts,
        inspect.NodeReport,
        inspect.CardReport,
        inspect.CardHolder,
        inspect.ContainerShare,
        inspect.WaitingPodReport,
        inspect.WaitingContainer,
        inspect.Problem,
    )
    fields = {field.encode_name for struct in structs for field in msgspec.structs.fields(struct)}

    assert {name for name in fields if f"`{name}`" not in page} == set()


@pytest.mark.parametrize(
    "text",
    ["", "null", "{}", GOLDEN.read_text().replace("v1alpha1", "v2"), GOLDEN.read_text().replace("Inspection", "Pod")],
    ids=["nothing", "null", "empty", "other version", "other kind"],
)
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(WireError):
        inspect.decode(text)
