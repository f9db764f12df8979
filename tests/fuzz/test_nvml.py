"""Whatever NVML answers, of each card or none: the cards are told, less those that cannot be, and nothing is raised."""

import ctypes
import inspect
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pynvml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fractile.errors import SetupError
from fractile.nvml import library
from fractile.nvml.driver import NvmlDriver
from fractile.nvml.library import Library
from fractile.nvml.meter import NvmlMeter
from tests.fuzz.test_decoders import EXAMPLES, LONGER

Draw = Callable[[st.SearchStrategy[Any]], Any]

CARDS = 3
ERRORS = (1, 2, 3, 4, 6, 9, 10, 13, 15, 16, 28, 999)
SETTINGS = settings(
    max_examples=2 * EXAMPLES,
    derandomize=not LONGER,
    database=None,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)

short, long = st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1)
number = st.sampled_from([0, 1, 2, 3, 255, 2**31 - 1, -1, 2**34, 2**64 - 1]) | st.integers(-(2**31), 2**32 - 1)
text = st.sampled_from([b"", b"GPU-1", b"GPU-2", b"\xff\xfe", b"A100"]) | st.binary(max_size=40)
place = st.sampled_from([b"", b"00000000:07:00.0", b"0000:07:00.0"]) | st.binary(max_size=32) | st.text(max_size=32)
handle = st.integers(0, CARDS + 1).map(ctypes.c_void_p)


def numbers(count: int) -> st.SearchStrategy[Any]:
    return st.lists(number, min_size=count, max_size=count)


def record(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.builds(SimpleNamespace, **fields)


processes = st.lists(record(pid=short, usedGpuMemory=st.none() | long), max_size=3)
value = record(uiVal=short, ullVal=long)
TEXTS = ("nvmlDeviceGetUUID", "nvmlDeviceGetName", "nvmlSystemGetDriverVersion")
ANSWERS: dict[str, st.SearchStrategy[Any]] = {
    "nvmlDeviceGetCount": st.integers(0, CARDS),
    "nvmlDeviceGetHandleByIndex": handle,
    "nvmlEventSetCreate": handle,
    "nvmlEventSetWait": record(device=handle, eventType=number, eventData=long),
    "nvmlDeviceGetMemoryInfo": record(total=long, used=long),
    "nvmlDeviceGetPciInfo": record(busId=place),
    "nvmlDeviceGetNvLinkRemotePciInfo": record(busId=place),
    "nvmlDeviceGetFieldValues": st.lists(record(nvmlReturn=number, valueType=number, value=value), max_size=2),
    "nvmlDeviceGetMemoryAffinity": st.lists(long, min_size=16, max_size=16),
    "nvmlDeviceGetRemappedRows": numbers(4),
    "nvmlDeviceGetMigMode": numbers(2),
    "nvmlDeviceGetCudaComputeCapability": numbers(2),
    "nvmlDeviceGetEccMode": numbers(2),
    "nvmlDeviceGetUtilizationRates": record(gpu=short),
    "nvmlDeviceGetComputeRunningProcesses": processes,
    "nvmlDeviceGetComputeRunningProcesses_v2": processes,
    "nvmlDeviceGetGraphicsRunningProcesses": processes,
    "nvmlDeviceGetMPSComputeRunningProcesses": processes,
    "nvmlDeviceGetProcessUtilization": st.lists(record(pid=short, timeStamp=long, smUtil=short), max_size=3),
}
"""What the functions give whose answer is more than a number or a text."""


class Binding:
    """Every function of pynvml; each call is answered by what is drawn next, or refused as pynvml does."""

    NVMLError = pynvml.NVMLError
    NVMLLibraryMismatchError = pynvml.NVMLLibraryMismatchError

    def __init__(self, draw: Draw) -> None:
        self._draw = draw

    def __getattr__(self, name: str) -> Callable[..., object]:
        if not name.startswith("nvml"):
            raise AttributeError(name)

        def answer(*_: object) -> object:
            how = self._draw(st.sampled_from(["answer"] * 8 + ["error", "mismatch"]))
            if how == "error":
                raise pynvml.NVMLError(self._draw(st.sampled_from(ERRORS)))
            if how == "mismatch":
                raise pynvml.NVMLLibraryMismatchError(name)
            if name in TEXTS:
                return self._draw(text).decode()  # it may raise there, too
            return self._draw(ANSWERS.get(name, number))

        return answer


def test_what_is_answered_here_are_functions_of_the_binding_and_so_are_those_that_we_call() -> None:
    called = {name for name, _ in inspect.getmembers(Library, inspect.isfunction) if name.startswith("nvml")}
    assert called
    assert [name for name in {*called, *TEXTS, *ANSWERS} if not hasattr(pynvml, name)] == []


@SETTINGS
@given(data=st.data())
def test_the_driver_tells_of_cards_or_says_that_it_cannot(data: st.DataObject) -> None:
    with patch.object(library, "load", lambda: Binding(data.draw)):
        try:
            driver = NvmlDriver()
            cards = driver.cards()
        except SetupError:
            return
        assert all(card.memory >= 0 and 0 <= card.index < CARDS for card in cards)
        for _ in range(2):
            try:
                readings = driver.readings()
            except SetupError:
                continue
            assert [r.index for r in readings] == list(range(len(readings)))
            driver.events(0.0)
        driver.renew()
        driver.close()


@SETTINGS
@given(data=st.data())
def test_the_meter_reads_what_it_can(data: st.DataObject) -> None:
    def load(_: str) -> Binding:
        return Binding(data.draw)

    with patch("fractile.nvml.meter.importlib.import_module", load):
        try:
            meter = NvmlMeter()
        except SetupError:
            return
        for _ in range(2):
            for one in meter.read():
                assert one.processes is None or all(0 <= p.percent <= 100 for p in one.processes)
        meter.close()
