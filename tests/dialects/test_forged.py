"""Annotations of other tools belong to whoever owns the pod, who may write anything there: we read none of them."""

import pytest

from fractile.dialects import table
from fractile.dialects.table import assigned_annotations, parse_pod, placement_annotations
from fractile.model.placement import ContainerPlacement, Placement, Slice
from fractile.model.request import PodRequest
from fractile.model.units import MemoryUnit, MiB, NodeName, Percent
from fractile.wire.kubernetes.objects import Pod
from tests.builders import cards, container, pod

ASKING = {
    "aliyun": {"aliyun.com/gpu-mem": 1024},
    "tencent": {"tencent.com/vcuda-core": 30, "tencent.com/vcuda-memory": 4},
    "nvidia": {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 1024},
}


def written(asking: Pod) -> dict[str, str]:
    """All that we ever write for the tools of the family."""
    request = parse_pod(asking, MemoryUnit.MiB)
    assert isinstance(request, PodRequest)
    node = cards("n1")
    given = tuple(
        ContainerPlacement(c.container, c.role, (Slice(node[0].uuid, MiB(1024), Percent(30)),))
        for c in request.containers
    )
    chosen = Placement(NodeName("n1"), given)
    before = placement_annotations(request, chosen, cards=node, unit=MemoryUnit.MiB, now_ns=1)
    return {**before, **assigned_annotations(request)}


@pytest.mark.parametrize("family", sorted(ASKING))
@pytest.mark.parametrize("value", ["", "0", "7", "100", "forged", "GPU-x,NVIDIA,99999,100:;"])
def test_what_we_write_for_other_tools_changes_nothing_when_a_tenant_writes_it(family: str, value: str) -> None:
    plain = pod("p", container(limits=ASKING[family]))
    keys = written(plain)
    assert keys, "the family's tools get nothing, so this shows nothing"
    forged = pod("p", container(limits=ASKING[family]), annotations=dict.fromkeys(keys, value))
    assert forged.metadata.annotations != plain.metadata.annotations
    assert parse_pod(forged, MemoryUnit.MiB) == parse_pod(plain, MemoryUnit.MiB)


def test_every_family_that_has_tools_of_its_own_is_among_them() -> None:
    assert set(ASKING) == table.NAMES - {"class"}
