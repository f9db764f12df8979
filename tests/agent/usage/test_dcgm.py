"""dcgm-exporter finds our pods by what kubelet's pod-resources API says of them: the ids are taken apart as it does."""

import re

import pytest

from fractile.agent.node.catalog import Catalog
from fractile.model.units import CardUUID, MemoryUnit
from tests.agent.world import card

# What internal/pkg/transformation/kubernetes.go of dcgm-exporter d5e5f51 looks for, in its order.
MIG_PREFIX = "MIG-"
GKE_MIG = re.compile(r"^nvidia([0-9]+)/gi([0-9]+)(/vgpu[0-9]+)?$")
GKE_SHARED = "/vgpu"
SHARED = "::"


def as_dcgm_exporter_reads_it(device: str) -> tuple[str, str]:
    """The card that the id names, and the part of it: the value of the label vgpu."""
    assert not device.startswith(MIG_PREFIX)
    assert not GKE_MIG.match(device)
    assert GKE_SHARED not in device
    assert SHARED in device
    parts = device.split(SHARED)
    return parts[0], parts[1]


@pytest.mark.parametrize("unit", list(MemoryUnit), ids=lambda unit: unit.name)
def test_every_id_of_every_resource_names_its_card(unit: MemoryUnit) -> None:
    catalog = Catalog.of([card(n, 4 * 1024) for n in range(2)], unit)
    for resource in catalog.resources:
        by_card: dict[str, set[str]] = {}
        for device, _ in catalog.devices(resource):
            uuid, part = as_dcgm_exporter_reads_it(device)
            by_card.setdefault(uuid, set()).add(part)
        counts = catalog.counts(resource)
        assert {CardUUID(uuid): len(parts) for uuid, parts in by_card.items()} == {u: n for u, n in counts.items() if n}
