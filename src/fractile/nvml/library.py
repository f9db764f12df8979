"""The part of NVIDIA's binding (pynvml, of nvidia-ml-py) that we use, with types; and what its errors mean to us.

Functions that an old driver lacks, or that a card does not support, raise NVMLError like all others: ``perhaps`` turns
that into None, so that less is known and nothing breaks.
"""

import ctypes
import importlib
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar, cast

from fractile.model.health import Silence
from fractile.model.words import printable

T = TypeVar("T")

Handle = ctypes.c_void_p  # of a card
EventSet = ctypes.c_void_p

DOUBLE_BIT = 0x2  # nvmlEventTypeDoubleBitEccError
XID = 0x8  # nvmlEventTypeXidCriticalError

UNINITIALIZED, TIMEOUT = 1, 10
_SILENCE = {15: Silence.LOST, 28: Silence.LOST, 16: Silence.RESET_REQUIRED}  # GPU_IS_LOST, GPU_NOT_FOUND


class Memory(Protocol):
    total: int


class Pci(Protocol):
    busId: str | bytes


class EventData(Protocol):
    device: Handle
    eventType: int
    eventData: int


class Value(Protocol):
    ullVal: int
    uiVal: int


class FieldValue(Protocol):
    nvmlReturn: int
    valueType: int
    value: Value


class Errors(Protocol):
    NVMLError: type[Exception]
    NVMLLibraryMismatchError: type[Exception]  # a function that this driver has only in an older form


class Library(Errors, Protocol):
    def nvmlInit(self) -> None: ...
    def nvmlShutdown(self) -> None: ...
    def nvmlDeviceGetCount(self) -> int: ...
    def nvmlDeviceGetHandleByIndex(self, index: int) -> Handle: ...
    def nvmlDeviceGetUUID(self, handle: Handle) -> str | bytes: ...
    def nvmlDeviceGetName(self, handle: Handle) -> str | bytes: ...
    def nvmlDeviceGetMemoryInfo(self, handle: Handle) -> Memory: ...
    def nvmlDeviceGetPciInfo(self, handle: Handle) -> Pci: ...
    def nvmlDeviceGetTemperature(self, handle: Handle, sensor: int) -> int: ...
    def nvmlDeviceGetTemperatureV(self, handle: Handle, sensor: int) -> int: ...
    def nvmlDeviceGetTemperatureThreshold(self, handle: Handle, threshold: int) -> int: ...
    def nvmlDeviceGetTotalEccErrors(self, handle: Handle, errorType: int, counterType: int) -> int: ...
    def nvmlDeviceGetRemappedRows(self, handle: Handle) -> tuple[int, int, int, int]: ...
    def nvmlDeviceGetRetiredPagesPendingStatus(self, device: Handle) -> int: ...
    def nvmlDeviceGetFieldValues(self, handle: Handle, fieldIds: list[int]) -> list[FieldValue]: ...
    def nvmlDeviceGetComputeMode(self, handle: Handle) -> int: ...
    def nvmlDeviceGetMigMode(self, device: Handle) -> list[int]: ...
    def nvmlDeviceGetNvLinkState(self, device: Handle, link: int) -> int: ...
    def nvmlDeviceGetNvLinkVersion(self, device: Handle, link: int) -> int: ...
    def nvmlDeviceGetNvLinkRemotePciInfo(self, device: Handle, link: int) -> Pci: ...
    def nvmlDeviceGetP2PStatus(self, device1: Handle, device2: Handle, p2pIndex: int) -> int: ...
    def nvmlDeviceGetTopologyCommonAncestor(self, device1: Handle, device2: Handle) -> int: ...
    def nvmlDeviceGetMaxPcieLinkGeneration(self, handle: Handle) -> int: ...
    def nvmlDeviceGetMaxPcieLinkWidth(self, handle: Handle) -> int: ...
    def nvmlDeviceGetMemoryAffinity(self, handle: Handle, nodeSetSize: int, scope: int) -> Sequence[int]: ...
    def nvmlDeviceGetArchitecture(self, device: Handle) -> int: ...
    def nvmlDeviceGetBrand(self, handle: Handle) -> int: ...
    def nvmlDeviceGetCudaComputeCapability(self, handle: Handle) -> tuple[int, int]: ...
    def nvmlDeviceGetMaxClockInfo(self, handle: Handle, type: int) -> int: ...
    def nvmlDeviceGetMemoryBusWidth(self, device: Handle) -> int: ...
    def nvmlDeviceGetNumGpuCores(self, device: Handle) -> int: ...
    def nvmlDeviceGetPowerManagementLimit(self, handle: Handle) -> int: ...
    def nvmlDeviceGetEccMode(self, handle: Handle) -> list[int]: ...
    def nvmlSystemGetDriverVersion(self) -> str | bytes: ...
    def nvmlSystemGetCudaDriverVersion(self) -> int: ...
    def nvmlDeviceGetSupportedEventTypes(self, handle: Handle) -> int: ...
    def nvmlDeviceRegisterEvents(self, handle: Handle, eventTypes: int, eventSet: EventSet) -> None: ...
    def nvmlEventSetCreate(self) -> EventSet: ...
    def nvmlEventSetWait(self, eventSet: EventSet, timeoutms: int) -> EventData: ...
    def nvmlEventSetFree(self, eventSet: EventSet) -> None: ...


def load() -> Library:
    """The binding. It loads libnvidia-ml.so.1 when it is initialised, not before."""
    return cast(Library, importlib.import_module("pynvml"))


def refusals(nvml: Errors) -> tuple[type[Exception], ...]:
    """The exceptions of a call without an answer. The binding decodes texts itself; those of a broken card may be
    invalid."""
    return (nvml.NVMLError, nvml.NVMLLibraryMismatchError, UnicodeDecodeError)


def perhaps(nvml: Library, ask: Callable[[], T]) -> T | None:
    """The answer; None when there is none."""
    try:
        return ask()
    except refusals(nvml):
        return None


def code(error: Exception) -> int:
    """NVML_ERROR_*."""
    return int(getattr(error, "value", 999))


def silence(error: Exception) -> Silence:
    return _SILENCE.get(code(error), Silence.ERROR)


def address(handle: Handle) -> int:
    """Identifies a handle: an event has the pointer with which its card was registered."""
    return ctypes.cast(handle, ctypes.c_void_p).value or 0


def text(value: str | bytes) -> str:
    """pynvml before 12 returns bytes. Control characters are replaced, since the text is written into objects."""
    return printable(value.decode(errors="replace") if isinstance(value, bytes) else value)
