"""A smaller part that is named can be written down as it stands, and fits."""

import msgspec
import pytest

from fractile.dialects.units import FamilyUnits, family_units
from fractile.model.units import MemoryUnit
from fractile.sim.planner.planner import plan
from fractile.sim.snapshot.cluster_snapshot import Demand, DemandPart, Snapshot, Task
from fractile.wire.output.plan import PodChange
from tests.sim.worlds import machine, part, question, task, whole

UNITS = family_units(MemoryUnit.MiB)
GIB = family_units(MemoryUnit.GiB)["aliyun"]


def smaller(demand: Demand, units: FamilyUnits | None, *running: Demand, card: int = 16_276) -> list[PodChange]:
    """The changes of amounts of cards, for one card on which these run."""
    bound = tuple(task(f"r{i}", other, on="n0", cards=[0]) for i, other in enumerate(running))
    asking = msgspec.structs.replace(task("w", demand), units=units)
    found = plan(Snapshot((machine(gpus=1, card=card),), bound, (asking,)), question())
    changes = [c for group in found.waiting for c in group.changes if c.change in ("smaller-part", "fewer-gpus")]
    for change in changes:
        assert fits(demand, change, bound, card=card), change
    return changes


def fits(demand: Demand, change: PodChange, bound: tuple[Task, ...], *, card: int) -> bool:
    """Whether it is let in when it asks for the amounts that stand there."""
    if not change.amounts:
        return True
    amount = change.amounts.get
    memory = (
        amount("aliyun.com/gpu-mem", 0) + 256 * amount("tencent.com/vcuda-memory", 0) + amount("nvidia.com/gpumem", 0)
    )
    cores = amount("tencent.com/vcuda-core", 0) + amount("nvidia.com/gpucores", 0)
    asked = DemandPart(1, memory, 10 * amount("nvidia.com/gpumem-percentage", 0), 10 * cores)
    pending = (task("w", msgspec.structs.replace(demand, part=asked)),)
    return plan(Snapshot((machine(gpus=1, card=card),), bound, pending), question()).now.placed == 1


@pytest.mark.parametrize("units", [None, UNITS["nvidia"], UNITS["tencent"]], ids=["trace", "nvidia", "tencent"])
def test_beside_a_pod_without_a_share_one_percent_of_the_time_is_not_offered(units: FamilyUnits | None) -> None:
    (change,) = smaller(part(1_024, compute=900), units, part(1_024), part(1_024, compute=300))
    assert (change.wanted, change.to) == (900, 690)


@pytest.mark.parametrize(
    ("demand", "units", "running", "sentence", "amounts"),
    [
        pytest.param(
            part(10_000),
            UNITS["aliyun"],
            part(8_138),
            "ask for aliyun.com/gpu-mem: 8138 instead of 10000",
            {"aliyun.com/gpu-mem": 8138},
            id="MiB",
        ),
        pytest.param(
            part(10 * 1024),
            GIB,
            part(8_138),
            "ask for aliyun.com/gpu-mem: 7 instead of 10",
            {"aliyun.com/gpu-mem": 7},
            id="GiB",
        ),
        pytest.param(
            part(40 * 256, compute=200),
            UNITS["tencent"],
            part(8_138, compute=10),
            "ask for tencent.com/vcuda-memory: 31 instead of 40",
            {"tencent.com/vcuda-memory": 31, "tencent.com/vcuda-core": 20},
            id="blocks",
        ),
        pytest.param(
            part(40 * 256, compute=900),
            UNITS["tencent"],
            part(8_138, compute=305),
            "ask for tencent.com/vcuda-memory: 31 and tencent.com/vcuda-core: 69 instead of 40 and 90",
            {"tencent.com/vcuda-memory": 31, "tencent.com/vcuda-core": 69},
            id="both are short",
        ),
        pytest.param(
            Demand(0, 0, DemandPart(1, share=700)),
            UNITS["nvidia"],
            part(9_000),
            "ask for nvidia.com/gpumem-percentage: 44 instead of 70",
            {"nvidia.com/gpumem-percentage": 44},
            id="percent of the memory",
        ),
        pytest.param(
            whole(),
            UNITS["aliyun"],
            part(6_000),
            "ask for aliyun.com/gpu-mem: 10276 instead of aliyun.com/gpu-count: 1",
            {"aliyun.com/gpu-count": 0, "aliyun.com/gpu-mem": 10276},
            id="instead of a whole one: aliyun",
        ),
        pytest.param(
            whole(),
            UNITS["nvidia"],
            part(6_000, compute=387),
            "ask for nvidia.com/gpu: 1, nvidia.com/gpumem: 10276 and nvidia.com/gpucores: 61 instead of a whole card",
            {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 10276, "nvidia.com/gpucores": 61},
            id="instead of a whole one: nvidia",
        ),
        pytest.param(
            whole(),
            UNITS["tencent"],
            part(6_000),
            "ask for tencent.com/vcuda-memory: 40 and tencent.com/vcuda-core: 99 "
            "instead of tencent.com/vcuda-core: 100",
            {"tencent.com/vcuda-memory": 40, "tencent.com/vcuda-core": 99},
            id="instead of a whole one: tencent",
        ),
        pytest.param(
            whole(4),
            UNITS["tencent"],
            part(0),
            "",
            {},
            id="no card is left whole",
        ),
        pytest.param(
            part(10_000),
            msgspec.structs.replace(UNITS["aliyun"], together=True),
            part(8_138),
            "ask for aliyun.com/gpu-mem: 8138 instead of 10000 in its containers together",
            {},
            id="several containers",
        ),
        pytest.param(whole(), None, part(6_000), "take 63.1 % of a GPU instead of a whole one", {}, id="trace"),
    ],
)  # fmt: skip
def test_a_part_is_named_in_whole_units_of_the_family_by_its_resource(
    demand: Demand, units: FamilyUnits | None, running: Demand, sentence: str, amounts: dict[str, int]
) -> None:
    found = smaller(demand, units, running)
    assert [(c.sentence, c.amounts) for c in found] == ([(sentence, amounts)] if sentence else [])


@pytest.mark.parametrize(
    ("demand", "family", "running", "amounts"),
    [
        pytest.param(part(40 * 256, compute=200), "tencent", part(8_138, compute=10), (40 * 256, 31 * 256), id="MiB"),
        pytest.param(Demand(0, 0, DemandPart(1, share=700)), "nvidia", part(9_000), (700, 440), id="thousandths"),
    ],
)
def test_the_amount_that_it_is_reduced_to_is_the_one_that_is_named(
    demand: Demand, family: str, running: Demand, amounts: tuple[int, int]
) -> None:
    (change,) = smaller(demand, UNITS[family], running)
    assert (change.wanted, change.to) == amounts


def test_fewer_whole_cards_are_named_by_the_resource() -> None:
    demand = whole(4)
    asking = msgspec.structs.replace(task("w", demand), units=UNITS["tencent"])
    found = plan(Snapshot((machine(gpus=3),), (), (asking,)), question()).waiting[0].changes

    assert found[0].sentence == "ask for tencent.com/vcuda-core: 300 instead of 400"
    assert found[0].amounts == {"tencent.com/vcuda-core": 300}
