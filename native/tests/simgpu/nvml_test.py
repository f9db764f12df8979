"""NVIDIA's own Python binding, unmodified, on the simulated NVML; skipped if nvidia-ml-py is not installed."""

import ctypes
import inspect
import json
import os
import re
import subprocess
import sys
import threading
import time
from pathlib import Path

LIBRARIES = Path(os.environ["OUT"]) / "simgpu"
CTL = LIBRARIES / "simgpu-ctl"

try:
    import pynvml as nvml
except ImportError:
    print("nvidia-ml-py is not installed")
    print("0 passed, 0 failed, 1 skipped")
    sys.exit(0)

if os.environ.get("LD_LIBRARY_PATH", "").split(":")[0] != str(LIBRARIES):
    os.environ["LD_LIBRARY_PATH"] = str(LIBRARIES)
    os.execv(sys.executable, [sys.executable, *sys.argv])

MIB = 2**20
FIRST = "GPU-00000000-0000-4000-8000-000000000001"


def ctl(*arguments: str) -> str:
    return subprocess.run([str(CTL), *arguments], check=True, capture_output=True, text=True).stdout


def first():
    return nvml.nvmlDeviceGetHandleByIndex(0)


def test_cards_of_the_file_are_found_by_index_uuid_and_bus_id() -> None:
    assert nvml.nvmlDeviceGetCount() == 2
    assert nvml.nvmlDeviceGetUUID(first()) == FIRST
    assert nvml.nvmlDeviceGetName(first()) == "NVIDIA A100-SXM4-40GB"
    bus_id = nvml.nvmlDeviceGetPciInfo(first()).busId
    assert bus_id == "00000000:07:00.0"
    for handle in (nvml.nvmlDeviceGetHandleByUUID(FIRST), nvml.nvmlDeviceGetHandleByPciBusId(bus_id)):
        assert nvml.nvmlDeviceGetIndex(handle) == 0
    assert nvml.nvmlDeviceGetHandleBySerial(nvml.nvmlDeviceGetSerial(first()))


def test_unknown_cards_are_not_found() -> None:
    for call, argument in ((nvml.nvmlDeviceGetHandleByIndex, 7), (nvml.nvmlDeviceGetHandleByUUID, "GPU-nothing")):
        try:
            call(argument)
            raise AssertionError("found")
        except (nvml.NVMLError_InvalidArgument, nvml.NVMLError_NotFound):
            pass


def test_memory_and_processes_are_those_of_the_ledger() -> None:
    cuda = ctypes.CDLL("libcuda.so.1")
    context, pointer = ctypes.c_void_p(), ctypes.c_uint64()
    assert cuda.cuInit(0) == 0
    assert cuda.cuCtxCreate_v2(ctypes.byref(context), 0, 0) == 0
    assert cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(100 * MIB)) == 0
    assert nvml.nvmlDeviceGetMemoryInfo(first()).used == 356 * MIB
    v2 = nvml.nvmlDeviceGetMemoryInfo(first(), version=nvml.nvmlMemory_v2)
    assert (v2.total, v2.reserved, v2.used) == (4096 * MIB, 0, 356 * MIB)
    [process] = nvml.nvmlDeviceGetComputeRunningProcesses(first())
    assert (process.pid, process.usedGpuMemory) == (os.getpid(), 356 * MIB)
    assert nvml.nvmlDeviceGetGraphicsRunningProcesses(first()) == []
    assert nvml.nvmlDeviceGetAccountingPids(first()) == [os.getpid()]
    assert nvml.nvmlDeviceGetAccountingStats(first(), os.getpid()).maxMemoryUsage == 356 * MIB
    assert nvml.nvmlDeviceGetBAR1MemoryInfo(first()).bar1Used == 2 * MIB
    ledger = json.loads(ctl("json"))
    [ours] = [p for p in ledger["processes"] if p["pid"] == os.getpid()]
    assert ours["cards"][FIRST]["now"] == 356 * MIB
    assert ours["kinds"] == {"linear": 100 * MIB, "context": 256 * MIB}
    assert sum(c["cards"].get(FIRST, {"now": 0})["now"] for c in ledger["containers"]) == 356 * MIB
    assert cuda.cuCtxDestroy_v2(context) == 0
    assert nvml.nvmlDeviceGetMemoryInfo(first()).used == 0


def test_a_process_of_another_pid_namespace_has_the_pid_that_the_reader_sees() -> None:
    program = (
        "import ctypes, os, sys; c = ctypes.CDLL('libcuda.so.1'); x = ctypes.c_void_p(); c.cuInit(0); "
        "print(os.getpid(), c.cuCtxCreate_v2(ctypes.byref(x), 0, 0), flush=True); sys.stdin.read()"
    )
    inside = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--mount-proc", "--kill-child"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([*inside, sys.executable, "-c", program], **pipes) as outer:
        said = outer.stdout.readline().split()
        if not said:
            print("no pid namespaces here")  # nothing to show
            return
        assert said == ["1", "0"]
        (child,) = Path(f"/proc/{outer.pid}/task/{outer.pid}/children").read_text().split()
        pids = [p.pid for p in nvml.nvmlDeviceGetComputeRunningProcesses(first())]
        samples = [s.pid for s in nvml.nvmlDeviceGetProcessUtilization(first(), 0)]
        outer.stdin.close()
    assert int(child) in pids
    assert 1 not in pids
    assert int(child) in samples


def test_injected_xid_events_reach_a_waiting_set() -> None:
    events = nvml.nvmlEventSetCreate()
    nvml.nvmlDeviceRegisterEvents(first(), nvml.nvmlEventTypeXidCriticalError, events)
    timer = threading.Timer(0.2, ctl, ("xid", "0", "63"))
    timer.start()
    started = time.monotonic()
    event = nvml.nvmlEventSetWait_v2(events, 5000)
    assert time.monotonic() - started < 2
    assert (event.eventType, event.eventData) == (nvml.nvmlEventTypeXidCriticalError, 63)
    timer.join()
    try:
        nvml.nvmlEventSetWait_v2(events, 10)
        raise AssertionError("told twice")
    except nvml.NVMLError_Timeout:
        pass
    nvml.nvmlEventSetFree(events)


def test_ecc_errors_are_counted() -> None:
    ctl("ecc", "0", "corrected", "5")
    ctl("ecc", FIRST, "uncorrected", "2")
    volatile = nvml.NVML_VOLATILE_ECC
    assert nvml.nvmlDeviceGetTotalEccErrors(first(), nvml.NVML_MEMORY_ERROR_TYPE_CORRECTED, volatile) == 5
    assert nvml.nvmlDeviceGetTotalEccErrors(first(), nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, volatile) == 2


def test_a_lost_card_hides_itself_only_and_comes_back() -> None:
    ctl("xid", "0", "79")
    try:
        first()
        raise AssertionError("a lost card answered")
    except nvml.NVMLError_GpuIsLost:
        pass
    assert nvml.nvmlDeviceGetName(nvml.nvmlDeviceGetHandleByIndex(1))
    ctl("heal", "0")
    assert nvml.nvmlDeviceGetName(first())


def test_fields_and_samples_say_what_the_calls_say() -> None:
    ctl("ecc", "1", "corrected", "3")
    second = nvml.nvmlDeviceGetHandleByIndex(1)
    [total, unknown] = nvml.nvmlDeviceGetFieldValues(
        second, [nvml.NVML_FI_DEV_ECC_SBE_VOL_TOTAL, nvml.NVML_FI_DEV_MEMORY_TEMP]
    )
    assert (total.nvmlReturn, total.value.ullVal) == (0, 3)
    assert unknown.nvmlReturn == nvml.NVML_ERROR_NOT_SUPPORTED
    kind, [sample] = nvml.nvmlDeviceGetSamples(second, nvml.NVML_GPU_UTILIZATION_SAMPLES, 0)
    assert (kind, sample.sampleValue.uiVal) == (nvml.NVML_VALUE_TYPE_UNSIGNED_INT, 0)


def test_the_nearest_card_is_the_other_one() -> None:
    [other] = nvml.nvmlDeviceGetTopologyNearestGpus(first(), nvml.NVML_TOPOLOGY_SYSTEM)
    assert nvml.nvmlDeviceGetIndex(other) == 1


def test_there_are_no_partitions_and_no_limits_by_cgroup() -> None:
    assert nvml.nvmlDeviceGetMaxMigDeviceCount(first()) == 0
    library = ctypes.CDLL("libnvidia-ml.so.1")
    assert library.nvmlDeviceGetMemoryLimits_v1(first(), (ctypes.c_uint64 * 4)()) == nvml.NVML_ERROR_NOT_SUPPORTED


def test_what_is_not_modelled_says_not_supported() -> None:
    try:
        nvml.nvmlDeviceGetConfComputeMemSizeInfo(first())
        raise AssertionError("supported")
    except nvml.NVMLError_NotSupported:
        pass


def test_energy_is_the_sum_of_power_and_reasons_for_low_clocks_follow_the_heat() -> None:
    before, began = nvml.nvmlDeviceGetTotalEnergyConsumption(first()), time.monotonic()
    time.sleep(0.1)
    joules = (nvml.nvmlDeviceGetTotalEnergyConsumption(first()) - before) / 1000
    idle = nvml.nvmlDeviceGetPowerUsage(first()) / 1000
    assert 0.09 * idle <= joules <= (time.monotonic() - began + 0.01) * idle, joules
    assert nvml.nvmlDeviceGetCurrentClocksEventReasons(first()) == nvml.nvmlClocksEventReasonGpuIdle
    ctl("temperature", "0", "91")
    assert nvml.nvmlDeviceGetCurrentClocksEventReasons(first()) & nvml.nvmlClocksThrottleReasonHwThermalSlowdown
    ctl("heal", "0")


# Functions that an A100 without partitions, licences or a confidential mode does not support.
UNSUPPORTED = (
    "Vgpu|ConfCompute|C2c|Dram|DriverModel|GpuOperationMode|Mig|InstanceId|Fan|Cooler|VfOffset|Attributes|BridgeChip"
    "|AutoBoosted|BBXTimeData|ClkMon|Hostname|MarginTemperature|Pdi|PerformanceModes|PgpuMetadata|RetiredPagesPending"
    "|Pcie|Numa"  # the last two are not in the cards file of this test
)


def test_functions_of_one_argument_answer_as_a_card_of_a_data_centre() -> None:
    answered, refused = 0, []
    for name, function in sorted(vars(nvml).items()):
        if not name.startswith("nvmlDeviceGet") or name.startswith("nvmlDeviceGetHandleBy") or not callable(function):
            continue
        if sum(p.default is p.empty for p in inspect.signature(function).parameters.values()) != 1:
            continue
        try:
            function(first())
            answered += 1
        except nvml.NVMLError_NotSupported:
            refused.append(name)
    assert not [name for name in refused if not re.search(UNSUPPORTED, name)], refused
    assert answered >= 85, answered


def test_topology_follows_the_interconnect() -> None:
    second = nvml.nvmlDeviceGetHandleByIndex(1)
    assert nvml.nvmlDeviceGetP2PStatus(first(), second, nvml.NVML_P2P_CAPS_INDEX_NVLINK) == nvml.NVML_P2P_STATUS_OK
    assert nvml.nvmlDeviceGetNvLinkState(first(), 11) == nvml.NVML_FEATURE_ENABLED


def test_a_wrong_cards_file_is_a_clear_refusal() -> None:
    wrong = Path(os.environ["SIMGPU_DIR"]) / "wrong.json"
    for text in (
        '[{"uuid": "GPU-1"}]',
        "[",
        '[{"uuid": "x", "index": 0}]',
        "[1]",
        '[{"index": 01}]',
        "{}",
        '["\\ud800"]',
        "",
    ):
        wrong.write_text(text)
        (wrong.parent / "other").mkdir(exist_ok=True)
        environment = dict(os.environ, SIMGPU_CARDS=str(wrong), SIMGPU_DIR=str(wrong.parent / "other"))
        result = subprocess.run([str(CTL)], env=environment, capture_output=True, text=True)
        assert result.returncode == 1 and "wrong.json" in result.stderr, (text, result)


# Every slot of the host is used once. After that, a process that only queries must touch no more slots than are live.
_USE_ALL_SLOTS = "import pynvml as n\nfor _ in range(1100): n.nvmlInit(); n.nvmlShutdown()"
_ASK = """
import pynvml as n
n.nvmlInit()
for i in range(n.nvmlDeviceGetCount()):
    h = n.nvmlDeviceGetHandleByIndex(i)
    n.nvmlDeviceGetMemoryInfo(h), n.nvmlDeviceGetUtilizationRates(h), n.nvmlDeviceGetAccountingPids(h)
    print(sorted(p.pid for p in n.nvmlDeviceGetComputeRunningProcesses(h)))
resident, inside = 0, False
for line in open("/proc/self/smaps"):
    words = line.split()
    if not words[0].endswith(":"):
        inside = line.rstrip().endswith("/state")
    elif inside and words[0] == "Rss:":
        resident += int(words[1])
print(resident)
"""


def test_a_process_that_only_asks_has_no_more_of_the_state_in_memory_than_live_slots() -> None:
    subprocess.run([sys.executable, "-c", _USE_ALL_SLOTS], check=True, timeout=50)
    cuda, context = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p()
    assert cuda.cuInit(0) == 0 and cuda.cuCtxCreate_v2(ctypes.byref(context), 0, 0) == 0
    asked = subprocess.run([sys.executable, "-c", _ASK], check=True, capture_output=True, text=True, timeout=50)
    assert cuda.cuCtxDestroy_v2(context) == 0
    first_card, _, resident = asked.stdout.splitlines()
    assert json.loads(first_card) == [os.getpid()]  # its slot is far from the last ones used
    assert 0 < int(resident) < 400, resident  # KiB; all slots are 4,096


def main() -> int:
    nvml.nvmlInit()
    failed = 0
    tests = [(name, test) for name, test in globals().items() if name.startswith("test_")]
    for name, test in tests:
        try:
            test()
            print(f"ok   {name}")
        except Exception as error:
            failed += 1
            print(f"FAIL {name}: {error!r}")
    nvml.nvmlShutdown()
    print(f"{len(tests) - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
