"""A container with a part of one card and the whole of another."""

from fractile.model.units import WHOLE, CardUUID, ContainerName, Percent, PodUID
from fractile.region.page import CardLimits, ContainerLimits

MIB = 2**20
FIRST = CardUUID("GPU-11111111-2222-3333-4444-555555555555")
SECOND = CardUUID("GPU-22222222-2222-3333-4444-555555555555")
LIMITS = ContainerLimits(
    pod_uid=PodUID("8c0f3d52-5a3e-4a7a-9d1b-0a4a2f6a1b11"),
    namespace="default",
    pod="trainer-0",
    container=ContainerName("main"),
    cards=(
        CardLimits(
            uuid=FIRST, memory=8138 * MIB, context=256 * MIB, cores=Percent(30), cores_limit=Percent(50), weight=30
        ),
        CardLimits(uuid=SECOND, memory=16276 * MIB, unaccounted=4096, cores=WHOLE, weight=100),
    ),
    priority=1,
    generation=0x0123456789ABCDEF,
)
