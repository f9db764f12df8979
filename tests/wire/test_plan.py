"""What ``fractile plan -o json`` prints."""

from pathlib import Path

from fractile.wire.plan import (
    SCHEMA,
    Asked,
    Change,
    Consolidation,
    Defragmentation,
    Emptied,
    Growth,
    Move,
    Now,
    Placement,
    Plan,
    Reason,
    Shape,
    Stage,
    Waiting,
    decode,
    encode,
)

GOLDEN = Path(__file__).parent / "golden" / "plan.json"

PLAN = Plan(
    policy="fgd-plus",
    nodes=3,
    gpus=12,
    running=6,
    target=95.0,
    now=Now(2, 1, 4.5, 0.5, (Placement("team/a", "n0", (2,)),)),
    waiting=(
        Waiting(
            pods=("team/b",),
            asks=Asked(8_000, 16_384, 4, "4 whole GPUs"),
            reasons=(Reason(("gpu",), 2), Reason(("model", "cpu"), 1)),
            changes=(Change("fewer-gpus", "ask for 2 GPUs instead of 4", "n1", 4, 2),),
        ),
    ),
    growth=(
        Growth(Shape("n0", 32_000, 131_072, 4, "V100", 16_276), 1, 4, 100.0, 11.1111),
        Growth(Shape("small", 8_000, 8_192, 0, "", 0), None, None, 11.1111, 11.1111, "other pods fit on no node"),
    ),
    consolidation=Consolidation(1, (Emptied("n2", 4, 1),), 4, 2),
    defragmentation=Defragmentation(
        goal="waiting",
        moves=1,
        pods=1,
        gpus=4.0,
        allocation_before=50.0,
        allocation_after=83.3333,
        stages=(Stage(1, (Move("team/r", "n2", "n0", (3,)),), (Placement("team/b", "n2", (0, 1, 2, 3)),)),),
        still_waiting=("team/c",),
    ),
    notes=("node x: status.allocatable.cpu is missing",),
)


def test_the_golden_file_is_what_is_written_and_is_read_back() -> None:
    assert encode(PLAN) + "\n" == GOLDEN.read_text()
    assert decode(GOLDEN.read_text()) == PLAN
    assert PLAN.schema == SCHEMA == "fractile.dev/plan/v1"
