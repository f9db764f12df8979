"""Builders of small traces."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from fractile.policy.nodes.view import TaskDemand
from fractile.sim.snapshot.trace import NodeRow, PodRow

NODE_HEAD = "sn,cpu_milli,memory_mib,gpu,model"
POD_HEAD = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec"


def write(path: Path, head: str, lines: Iterable[str]) -> Path:
    path.write_text("".join(f"{line}\n" for line in (head, *lines)))
    return path


def nodes(*gpus: int, cpu: int = 64_000, models: Sequence[str] = ()) -> tuple[NodeRow, ...]:
    """Nodes of so many GPUs each."""
    named = [*models, *["T4"] * (len(gpus) - len(models))]
    return tuple(NodeRow(f"n{i}", cpu, 262_144, g, named[i] if g else "") for i, g in enumerate(gpus))


def pods(*asks: TaskDemand) -> tuple[PodRow, ...]:
    return tuple(PodRow(f"p{i:04}", a) for i, a in enumerate(asks))


def part(milli: int, cpu: int = 4_000) -> TaskDemand:
    return TaskDemand(cpu, 1_024, 1, milli)


def whole(gpus: int, cpu: int = 8_000) -> TaskDemand:
    return TaskDemand(cpu, 1_024, gpus, 1000)


def mixed() -> tuple[PodRow, ...]:
    """About the production mix, in small."""
    return pods(
        *[whole(1)] * 24,
        *[part(810)] * 7,
        *[part(470)] * 5,
        *[part(230)] * 2,
        *[TaskDemand(16_000, 8_192)] * 6,
        whole(4),
    )
