"""What ``fractile plan -o json`` prints."""

from pathlib import Path

from fractile.wire.output.plan import (
    SCHEMA,
    Consolidation,
    Defragmentation,
    Emptied,
    Growth,
    Move,
    NodeShape,
    Now,
    Plan,
    PlannedPlacement,
    PlanStage,
    PodChange,
    PodResources,
    Reason,
    WaitingGroup,
    decode,
    encode,
)

GOLDEN = Path(__file__).parents[1] / "golden" / "plan.json"

PLAN = Plan(
    policy="fgd-plus",
    nodes=3,
    gpus=12,
    running=6,
    target=95.0,
    now=Now(2, 1, 4.5, 0.5, (PlannedPlacement("team/a", "n0", (2,)),)),
    waiting=(
        WaitingGroup(
            pods=("team/b",),
            asks=PodResources(8_000, 16_384, 4, "4 whole GPUs"),
            reasons=(Reason(("gpu",), 2), Reason(("model", "cpu"), 1)),
            changes=(
                PodChange("fewer-gpus", "ask for nvidia.com/gpu: 2 instead of 4", "n1", 4, 2, {"nvidia.com/gpu": 2}),
            ),
        ),
    ),
    growth=(
        Growth(NodeShape("n0", 32_000, 131_072, 4, "V100", 16_276), 1, 4, 100.0, 11.1111),
        Growth(NodeShape("small", 8_000, 8_192, 0, "", 0), None, None, 11.1111, 11.1111, "other pods fit on no node"),
    ),
    consolidation=Consolidation(1, (Emptied("n2", 4, 1),), 4, 2),
    defragmentation=Defragmentation(
        goal="waiting",
        moves=1,
        pods=1,
        gpus=4.0,
        allocation_before=50.0,
        allocation_after=83.3333,
        stages=(PlanStage(1, (Move("team/r", "n2", "n0", (3,)),), (PlannedPlacement("team/b", "n2", (0, 1, 2, 3)),)),),
        still_waiting=("team/c",),
    ),
    notes=("node x: status.allocatable.cpu is missing",),
)


def test_the_golden_file_is_what_is_written_and_is_read_back() -> None:
    assert encode(PLAN) + "\n" == GOLDEN.read_text()
    assert decode(GOLDEN.read_text()) == PLAN
    assert PLAN.schema == SCHEMA == "fractile.dev/plan/v1"
