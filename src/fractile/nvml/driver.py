"""The cards of this machine through NVML, by NVIDIA's own binding (nvidia-ml-py, which loads libnvidia-ml.so.1).

Failure rule: a machine without the driver is an error with a remedy (SetupError). A card that does not answer (lost,
XID 79) is left out with a log line and never hides the others: one dead card of eight must cost one card
(NVIDIA/k8s-device-plugin#2038).
"""

import importlib
import logging
from typing import Protocol, cast

from fractile.errors import SetupError
from fractile.model.card import Card
from fractile.model.units import CardUUID, MiB

log = logging.getLogger(__name__)

_MIB = 2**20


class Driver(Protocol):
    """A source of cards."""

    def cards(self) -> list[Card]:
        """The cards that answer now, by index."""
        ...

    def close(self) -> None: ...


class _Memory(Protocol):
    total: int


class _Pci(Protocol):
    busId: str | bytes


class _Handle(Protocol):
    """An opaque pointer of NVML."""


class _Library(Protocol):
    """The part of pynvml that we use."""

    NVMLError: type[Exception]

    def nvmlInit(self) -> None: ...
    def nvmlShutdown(self) -> None: ...
    def nvmlDeviceGetCount(self) -> int: ...
    def nvmlDeviceGetHandleByIndex(self, index: int) -> _Handle: ...
    def nvmlDeviceGetUUID(self, handle: _Handle) -> str | bytes: ...
    def nvmlDeviceGetName(self, handle: _Handle) -> str | bytes: ...
    def nvmlDeviceGetMemoryInfo(self, handle: _Handle) -> _Memory: ...
    def nvmlDeviceGetPciInfo(self, handle: _Handle) -> _Pci: ...


class NvmlDriver:
    """NVML, initialised until ``close``. Not thread-safe."""

    def __init__(self) -> None:
        self._nvml = cast(_Library, importlib.import_module("pynvml"))
        try:
            self._nvml.nvmlInit()
        except self._nvml.NVMLError as e:
            raise SetupError(
                f"NVML does not start ({e}); install the NVIDIA driver on this node, or give --simulated-cards FILE"
            ) from None

    def cards(self) -> list[Card]:
        try:
            count = self._nvml.nvmlDeviceGetCount()
        except self._nvml.NVMLError as e:
            raise SetupError(f"NVML cannot count the cards ({e}); look at the driver's state with nvidia-smi") from None
        return [card for card in map(self._card, range(count)) if card is not None]

    def close(self) -> None:
        try:
            self._nvml.nvmlShutdown()
        except self._nvml.NVMLError as e:
            log.warning("nvml shutdown failed reason=%s", e)

    def _card(self, index: int) -> Card | None:
        nvml = self._nvml
        try:
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            return Card(
                uuid=CardUUID(_text(nvml.nvmlDeviceGetUUID(handle))),
                index=index,
                model=_text(nvml.nvmlDeviceGetName(handle)),
                memory=MiB(nvml.nvmlDeviceGetMemoryInfo(handle).total // _MIB),
                pci_bus_id=_text(nvml.nvmlDeviceGetPciInfo(handle).busId),
            )
        except nvml.NVMLError as e:
            log.warning("card left out index=%d reason=%s", index, e)
            return None


def _text(value: str | bytes) -> str:
    """pynvml before 12 gives bytes."""
    return value.decode(errors="replace") if isinstance(value, bytes) else value
