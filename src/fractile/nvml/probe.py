"""One card's identity and state, queried from NVML."""

from fractile.model.card import Card
from fractile.model.health import HealthReading
from fractile.model.units import CardUUID, MiB
from fractile.nvml.library import Handle, Library, perhaps, text

_MIB = 2**20
_SENSOR = 0  # NVML_TEMPERATURE_GPU
_SHUTDOWN, _SLOWDOWN = 0, 1  # NVML_TEMPERATURE_THRESHOLD_*
_CORRECTED, _UNCORRECTED, _VOLATILE = 0, 1, 0  # NVML_MEMORY_ERROR_TYPE_*, NVML_VOLATILE_ECC
_RECOVERY_ACTION = 230  # NVML_FI_DEV_GET_GPU_RECOVERY_ACTION; 0 is none
_UNSIGNED_INT = 1  # NVML_VALUE_TYPE_*
_PROHIBITED = 2  # NVML_COMPUTEMODE_PROHIBITED


def card(nvml: Library, index: int, handle: Handle, *, context: MiB) -> Card:
    """The card itself. NVMLError when it does not answer."""
    return Card(
        uuid=CardUUID(text(nvml.nvmlDeviceGetUUID(handle))),
        index=index,
        model=text(nvml.nvmlDeviceGetName(handle)),
        memory=MiB(nvml.nvmlDeviceGetMemoryInfo(handle).total // _MIB),
        pci_bus_id=text(nvml.nvmlDeviceGetPciInfo(handle).busId),
        context=context,
    )


def reading(nvml: Library, index: int, handle: Handle, *, context: MiB) -> HealthReading:
    """The card with all its health data. NVMLError when it does not answer."""
    rows = perhaps(nvml, lambda: nvml.nvmlDeviceGetRemappedRows(handle))
    mode = perhaps(nvml, lambda: nvml.nvmlDeviceGetComputeMode(handle))
    mig = perhaps(nvml, lambda: nvml.nvmlDeviceGetMigMode(handle))
    return HealthReading(
        index=index,
        card=card(nvml, index, handle, context=context),
        temperature=_temperature(nvml, handle),
        slowdown_at=_threshold(nvml, handle, _SLOWDOWN),
        shutdown_at=_threshold(nvml, handle, _SHUTDOWN),
        corrected=perhaps(nvml, lambda: nvml.nvmlDeviceGetTotalEccErrors(handle, _CORRECTED, _VOLATILE)),
        uncorrected=perhaps(nvml, lambda: nvml.nvmlDeviceGetTotalEccErrors(handle, _UNCORRECTED, _VOLATILE)),
        repair_pending=_repair_pending(nvml, handle) if rows is None else bool(rows[2]),
        repair_failed=None if rows is None else bool(rows[3]),
        reset_wanted=_reset_wanted(nvml, handle),
        prohibited=None if mode is None else mode == _PROHIBITED,
        partitioned=None if mig is None else mig[0] == 1,
    )


def _temperature(nvml: Library, handle: Handle) -> int | None:
    """The old call goes away with CUDA 14; old drivers lack the new one."""
    found = perhaps(nvml, lambda: nvml.nvmlDeviceGetTemperatureV(handle, _SENSOR))
    return perhaps(nvml, lambda: nvml.nvmlDeviceGetTemperature(handle, _SENSOR)) if found is None else found


def _threshold(nvml: Library, handle: Handle, which: int) -> int | None:
    """Some drivers report 0 when they have no threshold."""
    return perhaps(nvml, lambda: nvml.nvmlDeviceGetTemperatureThreshold(handle, which)) or None


def _repair_pending(nvml: Library, handle: Handle) -> bool | None:
    """Cards before Ampere retire pages instead of remapping rows."""
    pending = perhaps(nvml, lambda: nvml.nvmlDeviceGetRetiredPagesPendingStatus(handle))
    return None if pending is None else pending == 1


def _reset_wanted(nvml: Library, handle: Handle) -> bool | None:
    values = perhaps(nvml, lambda: nvml.nvmlDeviceGetFieldValues(handle, [_RECOVERY_ACTION]))
    if not values or values[0].nvmlReturn != 0:
        return None
    value = values[0].value
    return (value.uiVal if values[0].valueType == _UNSIGNED_INT else value.ullVal) != 0
