"""The present state of every card, through NVML: memory, utilisation, and its processes with what they hold.

Failure rule: a card that does not answer is left out, a figure without an answer is None; an old driver, or one in a
virtual machine, knows less than a new one.
"""

import importlib
import logging
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol, TypeVar, cast

import msgspec

from fractile.errors import SetupError
from fractile.model.units import CardUUID
from fractile.nvml.library import Errors, refusals

T = TypeVar("T")

log = logging.getLogger(__name__)


class GpuProcess(msgspec.Struct, frozen=True):
    """``bytes`` is None if the driver does not report it; ``percent`` is its part of about the last second."""

    pid: int
    bytes: int | None
    percent: int = 0


class CardReading(msgspec.Struct, frozen=True):
    """One card. ``used`` in bytes, with the driver's own reserve; ``percent``: time in which any kernel ran;
    ``processes`` is None if the driver does not list them."""

    uuid: CardUUID
    total: int
    used: int
    percent: int | None
    processes: tuple[GpuProcess, ...] | None


class Meter(Protocol):
    """A source of readings. ``read`` blocks: call it in a thread, one at a time."""

    def read(self) -> list[CardReading]: ...

    def close(self) -> None: ...


class _Handle(Protocol):
    """An opaque pointer of NVML."""


class _Memory(Protocol):
    total: int
    used: int


class _Rates(Protocol):
    gpu: int


class _ProcessInfo(Protocol):
    pid: int
    usedGpuMemory: int | None


class _Sample(Protocol):
    pid: int
    timeStamp: int
    smUtil: int


class _Library(Errors, Protocol):
    """The part of pynvml that we use."""

    def nvmlInit(self) -> None: ...
    def nvmlShutdown(self) -> None: ...
    def nvmlDeviceGetCount(self) -> int: ...
    def nvmlDeviceGetHandleByIndex(self, index: int) -> _Handle: ...
    def nvmlDeviceGetUUID(self, handle: _Handle) -> str | bytes: ...
    def nvmlDeviceGetMemoryInfo(self, handle: _Handle) -> _Memory: ...
    def nvmlDeviceGetUtilizationRates(self, handle: _Handle) -> _Rates: ...
    def nvmlDeviceGetComputeRunningProcesses(self, handle: _Handle) -> list[_ProcessInfo]: ...
    def nvmlDeviceGetComputeRunningProcesses_v2(self, handle: _Handle) -> list[_ProcessInfo]: ...
    def nvmlDeviceGetGraphicsRunningProcesses(self, handle: _Handle) -> list[_ProcessInfo]: ...
    def nvmlDeviceGetMPSComputeRunningProcesses(self, handle: _Handle) -> list[_ProcessInfo]: ...
    def nvmlDeviceGetProcessUtilization(self, handle: _Handle, since: int) -> list[_Sample]: ...


class NvmlMeter:
    """NVML, initialised until ``close``; or a driver's ``session``, which is held while cards are read: NVML counts its
    users, and with one more user the driver could not start a new session, which a card that was reset needs."""

    def __init__(self, session: AbstractContextManager[object] | None = None) -> None:
        self._nvml = cast(_Library, importlib.import_module("pynvml"))
        self._since: dict[CardUUID, int] = {}  # the newest sample of utilisation, in the driver's microseconds
        self._session = session or nullcontext()
        self._own = session is None
        if not self._own:
            return
        try:
            self._nvml.nvmlInit()
        except refusals(self._nvml) as e:
            raise SetupError(f"NVML does not start ({e}); install the NVIDIA driver on this node") from None

    def read(self) -> list[CardReading]:
        with self._session:
            count = self._ask(self._nvml.nvmlDeviceGetCount) or 0
            readings = [self._card(index) for index in range(count)]
        return [reading for reading in readings if reading is not None]

    def close(self) -> None:
        if self._own:
            self._ask(self._nvml.nvmlShutdown)

    def _card(self, index: int) -> CardReading | None:
        nvml = self._nvml
        try:
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            uuid = CardUUID(_text(nvml.nvmlDeviceGetUUID(handle)))
            memory = nvml.nvmlDeviceGetMemoryInfo(handle)
        except refusals(nvml) as e:
            log.debug("card not read index=%d reason=%s", index, e)
            return None
        rates = self._ask(lambda: nvml.nvmlDeviceGetUtilizationRates(handle))
        return CardReading(
            uuid=uuid,
            total=memory.total,
            used=memory.used,
            percent=rates.gpu if rates else None,
            processes=self._processes(uuid, handle),
        )

    def _processes(self, uuid: CardUUID, handle: _Handle) -> tuple[GpuProcess, ...] | None:
        nvml = self._nvml
        compute = self._ask(lambda: nvml.nvmlDeviceGetComputeRunningProcesses(handle))
        if compute is None:
            compute = self._ask(lambda: nvml.nvmlDeviceGetComputeRunningProcesses_v2(handle))
        if compute is None:
            return None
        shared = self._ask(lambda: nvml.nvmlDeviceGetMPSComputeRunningProcesses(handle)) or []
        graphics = self._ask(lambda: nvml.nvmlDeviceGetGraphicsRunningProcesses(handle)) or []
        held: dict[int, int | None] = {}
        for info in [*compute, *shared, *graphics]:
            # A process may be in several lists, each with all that it holds.
            held[info.pid] = _more(held.get(info.pid), info.usedGpuMemory)
        busy = self._busy(uuid, handle) if held else {}
        return tuple(GpuProcess(pid, size, busy.get(pid, 0)) for pid, size in sorted(held.items()))

    def _busy(self, uuid: CardUUID, handle: _Handle) -> dict[int, int]:
        """Percent by pid: the newest sample of each since the last reading."""
        since = self._since.get(uuid, 0)
        samples = self._ask(lambda: self._nvml.nvmlDeviceGetProcessUtilization(handle, since)) or []
        samples = sorted((s for s in samples if s.pid and s.timeStamp > since), key=lambda s: s.timeStamp)
        if samples:
            self._since[uuid] = samples[-1].timeStamp
        return {s.pid: min(100, s.smUtil) for s in samples}

    def _ask(self, function: Callable[[], T]) -> T | None:
        try:
            return function()
        except refusals(self._nvml) as e:
            log.debug("nvml gives no answer reason=%s", e)
            return None


def _more(one: int | None, other: int | None) -> int | None:
    return max((size for size in (one, other) if size is not None), default=None)


def _text(value: str | bytes) -> str:
    """pynvml before 12 returns bytes."""
    return value.decode(errors="replace") if isinstance(value, bytes) else value
