"""Ids and units as types, so that a MiB is never added to a percent and a node name is never a pod name."""

from enum import IntEnum
from typing import NewType

PodUID = NewType("PodUID", str)
NodeName = NewType("NodeName", str)
CardUUID = NewType("CardUUID", str)  # "GPU-<uuid>", as NVML gives it
ContainerName = NewType("ContainerName", str)
DeviceID = NewType("DeviceID", str)  # what kubelet counts: "GPU-<uuid>::<k>"

MiB = NewType("MiB", int)  # 2^20 bytes
Percent = NewType("Percent", int)  # of one card's compute time, 0..100

WHOLE = Percent(100)


class MemoryUnit(IntEnum):
    """What one unit of a memory resource is worth, in MiB; one per cluster."""

    MiB = 1
    GiB = 1024
