"""The report of ``fractile why`` as JSON."""

from pathlib import Path

import pytest

from fractile.errors import WireError
from fractile.wire.output.inspect import WaitingContainer
from fractile.wire.output.plan import PodChange
from fractile.wire.output.why import (
    ClassState,
    Holding,
    PodEvent,
    QuotaLimitReport,
    QuotaState,
    RefusingNodes,
    ResourceLimit,
    Scheduling,
    Use,
    Why,
    decode,
    encode,
)

GOLDEN = Path(__file__).parents[1] / "golden" / "why.json"
WHY = Why(
    namespace="team-a",
    pod="trainer",
    uid="uid-1",
    state="pending",
    verdict="none of 2 nodes takes it: too few CPUs free, 12 requested",
    age=250.5,
    node="",
    families=("class",),
    asks=(
        WaitingContainer(
            container="main",
            role="app",
            resource="fractile.dev/gpu",
            amount=1,
            count=1,
            memory_mib=0,
            exclusive=False,
            device_class="small",
        ),
    ),
    scheduling=Scheduling(scheduler="default-scheduler", seen=True, message="0/2", gates=("g",), nominated="n1"),
    quota=QuotaState(
        state="read",
        limits=(QuotaLimitReport(model="V100", limit_percent=200, held_percent=150),),
        pools=("public",),
        resources=(ResourceLimit(name="gpus", resource="requests.fractile.dev/gpu", hard="8", used="1"),),
        refusal="no",
    ),
    classes=(ClassState(name="small", exists=True, devices=4, units=8, free_units=2, message="m"),),
    fits=("n3",),
    groups=(RefusingNodes(nodes=("n1", "n2"), reasons=("too few CPUs free, 12 requested",), waiting_helps=True),),
    changes=(PodChange("fewer-cpus", "ask for 8 CPUs instead of 12", "n1", 12000, 8000),),
    holds=(
        Holding(
            container="main",
            role="app",
            card="GPU-1",
            index=0,
            model="T4",
            memory_mib=4096,
            cores_percent=25,
            use=Use(used_mib=600, peak_mib=700, busy_percent=12.5, refusals=None),
        ),
    ),
    containers=("container main waits: ContainerCreating",),
    events=(PodEvent(age=3.0, count=2, type="Warning", reason="FailedScheduling", source="s", message="0/2"),),
    notes=("a note",),
)


def test_the_report_is_the_golden_file() -> None:
    assert encode(WHY) + "\n" == GOLDEN.read_text()


def test_what_was_encoded_is_decoded() -> None:
    assert decode(encode(WHY)) == WHY


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(b"\xff", id="no text"),
        pytest.param("[]", id="no object"),
        pytest.param(encode(WHY).replace("why/v1", "why/v2"), id="another version"),
        pytest.param("[" * 100_000, id="nested"),
    ],
)
def test_anything_else_is_refused(text: str | bytes) -> None:
    with pytest.raises(WireError):
        decode(text)
