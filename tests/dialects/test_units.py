"""Amounts of memory that were meant in bytes."""

import pytest

from fractile.dialects.table import parse_pod
from fractile.dialects.units import counted_as_bytes, units_of
from fractile.model.request import PodRequest
from fractile.model.units import MemoryUnit
from tests.builders import container, pod


def asked(limits: dict[str, object], unit: MemoryUnit = MemoryUnit.MiB) -> PodRequest:
    found = parse_pod(pod("p", container(limits=limits)), unit)
    assert isinstance(found, PodRequest)
    return found


@pytest.mark.parametrize(
    ("limits", "unit", "said"),
    [
        ({"aliyun.com/gpu-mem": "2Gi"}, 1, "aliyun.com/gpu-mem counts MiB, not bytes: write 2048 for 2 GiB"),
        ({"aliyun.com/gpu-mem": "2147483648"}, 1, "aliyun.com/gpu-mem counts MiB, not bytes: write 2048 for 2 GiB"),
        ({"aliyun.com/gpu-mem": "512Mi"}, 1, "aliyun.com/gpu-mem counts MiB, not bytes: write 512 for 512 MiB"),
        ({"aliyun.com/gpu-mem": "2Gi"}, 1024, "aliyun.com/gpu-mem counts GiB, not bytes: write 2 for 2 GiB"),
        ({"aliyun.com/gpu-mem": "2Mi"}, 1024, "aliyun.com/gpu-mem counts GiB, not bytes"),
        (
            {"tencent.com/vcuda-core": "10", "tencent.com/vcuda-memory": "2Gi"},
            1,
            "tencent.com/vcuda-memory counts blocks of 256 MiB, not bytes: write 8 for 2 GiB",
        ),
        (
            {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "10Gi"},
            1,
            "nvidia.com/gpumem counts MiB, not bytes: write 10240 for 10 GiB",
        ),
        ({"aliyun.com/gpu-mem": "16k"}, 1, ""),
        ({"aliyun.com/gpu-mem": "200000"}, 1, ""),
        ({"nvidia.com/gpu": "1"}, 1, ""),
        ({"fractile.dev/gpu": "1"}, 1, ""),
    ],
)
def test_an_amount_that_no_card_has_is_explained_in_the_unit_of_its_resource(
    limits: dict[str, object], unit: int, said: str
) -> None:
    (one,) = asked(limits, MemoryUnit(unit)).containers
    assert counted_as_bytes(one) == said


def test_units_are_those_of_the_one_family_that_all_containers_ask_in() -> None:
    one = asked({"aliyun.com/gpu-mem": "2"}).containers
    other = asked({"nvidia.com/gpu": "1"}).containers

    found = units_of(one, MemoryUnit.GiB)
    assert found is not None
    assert (found.memory, found.mebibytes, found.together) == ("aliyun.com/gpu-mem", 1024, False)
    assert units_of(one + other, MemoryUnit.MiB) is None
    assert units_of((), MemoryUnit.MiB) is None
    assert units_of(asked({"fractile.dev/gpu": "1"}).containers, MemoryUnit.MiB) is None
