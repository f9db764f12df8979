"""What a card reports about itself beyond what the core counts, for the selectors of classes.

Words are NVIDIA's own; quantities have their unit. What the driver or the card does not report is left out. It is
queried once, and again every minute or so, since an administrator may change limits and modes while the agent runs.
"""

from collections.abc import Callable

from fractile.model.card import Card
from fractile.model.interconnect import Interconnect
from fractile.model.properties import Properties, shared
from fractile.model.units import CardUUID
from fractile.nvml.library import Handle, Library, perhaps, text

_AGAIN = 12  # readings of a card between two queries: a minute
_SM, _MEMORY = 1, 2  # NVML_CLOCK_*

ARCHITECTURES = {
    2: "Kepler", 3: "Maxwell", 4: "Pascal", 5: "Volta", 6: "Turing", 7: "Ampere", 8: "Ada", 9: "Hopper",
    10: "Blackwell", 13: "Rubin",
}  # NVML_DEVICE_ARCH_*  # fmt: skip
BRANDS = {
    1: "Quadro", 2: "Tesla", 3: "NVS", 4: "GRID", 5: "GeForce", 6: "Titan", 7: "vApps", 8: "vPC", 9: "vCS", 10: "vWS",
    11: "CloudGaming", 12: "QuadroRTX", 13: "RTX", 14: "NVIDIA", 15: "GeForceRTX", 16: "TitanRTX",
}  # NVML_BRAND_*  # fmt: skip
_MODES = {0: "disabled", 1: "enabled"}  # not on and off, which YAML takes for booleans


class Tellings:
    """Remembers the properties of each card."""

    def __init__(self, nvml: Library) -> None:
        self._nvml = nvml
        self._said: dict[CardUUID, dict[str, str]] = {}
        self._left: dict[CardUUID, int] = {}

    def forget(self) -> None:
        self._said, self._left = {}, {}

    def of(self, card: Card, handle: Handle, *, group: int | None) -> Properties:
        """The card's properties; ``group`` is that of the cards that it reaches over NVLink."""
        left = self._left.get(card.uuid, 0)
        if left == 0:
            self._said[card.uuid] = read(self._nvml, handle)
        self._left[card.uuid] = (left or _AGAIN) - 1
        return shared(self._said[card.uuid] | joined(card.interconnect, group=group))


def read(nvml: Library, handle: Handle) -> dict[str, str]:
    """All properties that the driver reports."""
    asked: tuple[tuple[str, Callable[[], str | None]], ...] = (
        ("architecture", lambda: ARCHITECTURES.get(nvml.nvmlDeviceGetArchitecture(handle))),
        ("brand", lambda: BRANDS.get(nvml.nvmlDeviceGetBrand(handle))),
        ("computeCapability", lambda: "{}.{}".format(*nvml.nvmlDeviceGetCudaComputeCapability(handle))),
        ("driver", lambda: text(nvml.nvmlSystemGetDriverVersion())),
        ("driverBranch", lambda: text(nvml.nvmlSystemGetDriverVersion()).partition(".")[0]),
        ("cudaVersion", lambda: cuda_version(nvml.nvmlSystemGetCudaDriverVersion())),
        ("clock", lambda: _unit(nvml.nvmlDeviceGetMaxClockInfo(handle, _SM), "MHz")),
        ("memoryClock", lambda: _unit(nvml.nvmlDeviceGetMaxClockInfo(handle, _MEMORY), "MHz")),
        ("memoryBusWidth", lambda: _unit(nvml.nvmlDeviceGetMemoryBusWidth(handle))),
        ("cudaCores", lambda: _unit(nvml.nvmlDeviceGetNumGpuCores(handle))),
        ("powerLimit", lambda: _unit(nvml.nvmlDeviceGetPowerManagementLimit(handle) // 1000, "W")),
        ("ecc", lambda: _MODES.get(nvml.nvmlDeviceGetEccMode(handle)[0])),
        ("mig", lambda: _MODES.get(nvml.nvmlDeviceGetMigMode(handle)[0])),
    )
    found = {key: perhaps(nvml, ask) for key, ask in asked}
    return {key: value for key, value in found.items() if value}


def joined(found: Interconnect | None, *, group: int | None) -> dict[str, str]:
    """The properties of the card's interconnect, as far as it is known."""
    if found is None:
        return {}
    numbers = {"nvlinkGeneration": found.nvlink, "pcieGeneration": found.pcie, "pcieLanes": found.lanes}
    more = {"interconnectGroup": group, "numaNode": found.numa if found.numa >= 0 else None}
    return {key: str(n) for key, n in numbers.items() if n} | {key: str(n) for key, n in more.items() if n is not None}


def cuda_version(number: int) -> str:
    """As CUDA writes it: 12020 is 12.2."""
    return f"{number // 1000}.{number % 1000 // 10}" if number else ""


def _unit(number: int, unit: str = "") -> str | None:
    """None if the driver reports 0."""
    return f"{number}{unit}" if number else None
