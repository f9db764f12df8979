"""Data sheet values of the models that are simulated; real cards report their own.

A model is found by a part of its name, the first that fits. native/simgpu has the same table, and a test compares them.
"""

from typing import Final

import msgspec

from fractile.nvml.properties import ARCHITECTURES, BRANDS, cuda_version

_TESLA, _NVIDIA = 2, 14  # brands
_CUDA = 13050  # CUDA of simgpu's driver
DRIVER: Final = "615.00.00"


class Model(msgspec.Struct, frozen=True):
    """``clock`` and ``memory_clock`` in MHz, ``bus`` in bits, ``power`` in W."""

    part: str
    architecture: int
    major: int
    minor: int
    clock: int
    memory_clock: int
    bus: int
    power: int
    brand: int = _NVIDIA


MODELS: Final = (
    Model("K80", 2, 3, 7, 875, 2505, 384, 150, _TESLA),
    Model("M40", 3, 5, 2, 1112, 3004, 384, 250, _TESLA),
    Model("P100", 4, 6, 0, 1328, 715, 4096, 250, _TESLA),
    Model("P40", 4, 6, 1, 1531, 3615, 384, 250, _TESLA),
    Model("P4", 4, 6, 1, 1531, 3003, 256, 75, _TESLA),
    Model("V100", 5, 7, 0, 1530, 877, 4096, 300, _TESLA),
    Model("T4", 6, 7, 5, 1590, 5001, 256, 70, _TESLA),
    Model("A100", 7, 8, 0, 1410, 1215, 5120, 400),
    Model("A10", 7, 8, 6, 1695, 6251, 384, 150),
    Model("L40", 8, 8, 9, 2490, 9001, 384, 300),
    Model("L4", 8, 8, 9, 2040, 6251, 192, 72),
    Model("4090", 8, 8, 9, 2520, 10501, 384, 450, 5),
    Model("H100", 9, 9, 0, 1980, 2619, 5120, 700),
    Model("H200", 9, 9, 0, 1980, 3201, 6144, 700),
    Model("B200", 10, 10, 0, 1965, 3996, 8192, 1000),
)
OTHER: Final = Model("", 7, 8, 0, 1410, 1215, 5120, 400)  # simgpu's default


def model(name: str) -> Model:
    return next((m for m in MODELS if m.part in name), OTHER)


def said(name: str) -> dict[str, str]:
    """What a card of that name reports through simgpu's NVML."""
    m = model(name)
    return {
        "architecture": ARCHITECTURES[m.architecture],
        "brand": BRANDS[m.brand],
        "computeCapability": f"{m.major}.{m.minor}",
        "driver": DRIVER,
        "driverBranch": DRIVER.partition(".")[0],
        "cudaVersion": cuda_version(_CUDA),
        "clock": f"{m.clock}MHz",
        "memoryClock": f"{m.memory_clock}MHz",
        "memoryBusWidth": str(m.bus),
        "powerLimit": f"{m.power}W",
        "ecc": "enabled",
        "mig": "disabled",
    }
