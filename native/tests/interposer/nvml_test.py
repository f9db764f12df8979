"""NVIDIA's own Python binding, unmodified, in a container with two of a host's four cards; needs nvidia-ml-py."""

import ctypes
import json
import os
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from container import MIB, Container, get

OUT = Path(os.environ["OUT"])
SIM = OUT / "simgpu"
LIBRARY = OUT / "interposer" / "libfractile.so"
HOST = Path(os.environ["SIMGPU_DIR"]) / ("" if "INSIDE" in os.environ else "four")
UUIDS = [f"GPU-00000000-0000-4000-8000-00000000000{i}" for i in range(4)]
BUS_IDS = [f"00000000:{7 + i:02X}:00.0" for i in range(4)]
OURS = [3, 1]  # in the agent's order; the driver's order is the reverse
QUOTA = {3: 512 * MIB, 1: 256 * MIB}
CONTEXT = 100 * MIB

try:
    import pynvml as nvml
except ImportError:
    print("nvidia-ml-py is not installed")
    print("0 passed, 0 failed, 1 skipped")
    sys.exit(0)


class Skipped(Exception):
    """This test cannot run here."""


def container() -> Container:
    return Container(HOST / "fractile", {UUIDS[i]: QUOTA[i] for i in OURS}, context=CONTEXT)


def enter_container() -> None:
    HOST.mkdir()
    cards = [
        {
            "uuid": UUIDS[i],
            "index": i,
            "model": "NVIDIA A100-SXM4-40GB",
            "memoryMiB": 4096,
            "pciBusID": BUS_IDS[i],
            "smCount": 108,
            "contextMiB": 100,
        }
        for i in range(4)
    ]
    (HOST / "cards.json").write_text(json.dumps(cards))
    container()
    environment = dict(
        os.environ,
        SIMGPU_DIR=str(HOST),
        SIMGPU_CONTAINER="ours",
        FRACTILE_DIR=str(HOST / "fractile"),
        LD_LIBRARY_PATH=str(SIM),
        LD_PRELOAD=str(LIBRARY),
        INSIDE="1",
    )
    os.execve(sys.executable, [sys.executable, *sys.argv], environment)


# ---- processes that hold memory ----

HOLDER = """
import ctypes, sys
cuda = ctypes.CDLL("libcuda.so.1")
context, pointer, device = ctypes.c_void_p(), ctypes.c_uint64(), ctypes.c_int()
assert cuda.cuInit(0) == 0
for number in range(16):
    uuid = (ctypes.c_ubyte * 16)()
    if cuda.cuDeviceGetUuid(uuid, number) == 0 and bytes(uuid)[-1] == int(sys.argv[1]):
        break
assert cuda.cuCtxCreate_v2(ctypes.byref(context), 0, number) == 0
assert cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(int(sys.argv[2]))) == 0
print("held", flush=True)
sys.stdin.read()
"""


@contextmanager
def holder(card: int, size: int, *, neighbour: bool = False) -> Iterator[subprocess.Popen[str]]:
    environment = dict(os.environ)
    if neighbour:
        del environment["LD_PRELOAD"]
        environment["SIMGPU_CONTAINER"] = "theirs"
    command = [sys.executable, "-c", HOLDER, str(card), str(size)]
    child = subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert child.stdout and child.stdout.readline() == "held\n"
    try:
        yield child
    finally:
        child.kill()
        child.communicate()
        time.sleep(0.1)  # by then the process must be removed from the ledger


def handle(card: int):
    return nvml.nvmlDeviceGetHandleByUUID(UUIDS[card])


def refused(error: type[Exception], call, *arguments) -> None:
    try:
        call(*arguments)
    except error:
        return
    raise AssertionError(f"{call.__name__}{arguments} was not refused")


# ---- the list of cards ----


def test_only_the_containers_cards_are_counted_and_they_are_numbered_from_0_in_the_drivers_order() -> None:
    assert nvml.nvmlDeviceGetCount() == 2
    found = [nvml.nvmlDeviceGetUUID(nvml.nvmlDeviceGetHandleByIndex(i)) for i in range(2)]
    assert found == [UUIDS[1], UUIDS[3]]
    assert [nvml.nvmlDeviceGetIndex(handle(i)) for i in (1, 3)] == [0, 1]
    refused(nvml.NVMLError_InvalidArgument, nvml.nvmlDeviceGetHandleByIndex, 2)


def test_a_card_of_others_is_found_by_no_name() -> None:
    for card, there in ((0, False), (1, True), (2, False), (3, True)):
        for call, name in (
            (nvml.nvmlDeviceGetHandleByUUID, UUIDS[card]),
            (nvml.nvmlDeviceGetHandleByPciBusId, BUS_IDS[card]),
        ):
            if there:
                assert nvml.nvmlDeviceGetUUID(call(name)) == UUIDS[card]
            else:
                refused(nvml.NVMLError_NotFound, call, name)
        if there:
            serial = nvml.nvmlDeviceGetSerial(handle(card))
            assert nvml.nvmlDeviceGetUUID(nvml.nvmlDeviceGetHandleBySerial(serial)) == UUIDS[card]


def test_a_serial_number_of_another_card_is_not_found() -> None:
    outside = dict(os.environ)
    del outside["LD_PRELOAD"]
    code = "import pynvml as n; n.nvmlInit(); print(n.nvmlDeviceGetSerial(n.nvmlDeviceGetHandleByIndex(0)))"
    serial = subprocess.run(
        [sys.executable, "-c", code], env=outside, capture_output=True, text=True, check=True
    ).stdout.strip()
    refused(nvml.NVMLError_NotFound, nvml.nvmlDeviceGetHandleBySerial, serial)


def test_a_uuid_in_the_younger_form_is_found_and_a_wrong_version_is_told() -> None:
    class Uuid(ctypes.Structure):
        _fields_ = [("version", ctypes.c_uint), ("type", ctypes.c_uint), ("text", ctypes.c_char * 41)]

    library, out = ctypes.CDLL("libnvidia-ml.so.1"), ctypes.c_void_p()
    good = ctypes.sizeof(Uuid) | 1 << 24
    for card, version, answer in ((3, good, 0), (0, good, 6), (3, good + 1, 25)):
        assert (
            library.nvmlDeviceGetHandleByUUIDV(ctypes.byref(Uuid(version, 1, UUIDS[card].encode())), ctypes.byref(out))
            == answer
        )


def test_topology_names_the_containers_cards_only() -> None:
    [other] = nvml.nvmlDeviceGetTopologyNearestGpus(handle(1), nvml.NVML_TOPOLOGY_SYSTEM)
    assert nvml.nvmlDeviceGetUUID(other) == UUIDS[3]
    assert len(nvml.nvmlSystemGetTopologyGpuSet(0)) == 2


def test_a_lost_card_says_so_and_leaves_the_other_ones_number() -> None:
    ctl = [str(SIM / "simgpu-ctl")]
    subprocess.run([*ctl, "xid", "1", "79"], check=True, capture_output=True)
    try:
        assert nvml.nvmlDeviceGetCount() == 2
        refused(nvml.NVMLError_GpuIsLost, nvml.nvmlDeviceGetHandleByIndex, 0)
        assert nvml.nvmlDeviceGetUUID(nvml.nvmlDeviceGetHandleByIndex(1)) == UUIDS[3]
    finally:
        subprocess.run([*ctl, "heal", "1"], check=True, capture_output=True)
    assert nvml.nvmlDeviceGetUUID(nvml.nvmlDeviceGetHandleByIndex(0)) == UUIDS[1]


# ---- memory ----


def test_memory_is_the_quota_and_what_the_container_holds_of_it() -> None:
    with holder(3, 1024 * MIB, neighbour=True), holder(3, 64 * MIB):
        v1 = nvml.nvmlDeviceGetMemoryInfo(handle(3))
        assert (v1.total, v1.used, v1.free) == (512 * MIB, 164 * MIB, 348 * MIB), v1
        v2 = nvml.nvmlDeviceGetMemoryInfo(handle(3), version=nvml.nvmlMemory_v2)
        assert (v2.total, v2.used, v2.free, v2.reserved) == (512 * MIB, 164 * MIB, 348 * MIB, 0), v2
        bar1 = nvml.nvmlDeviceGetBAR1MemoryInfo(handle(3))
        assert (bar1.bar1Total, bar1.bar1Used) == (512 * MIB, 4 * MIB)  # the driver's own use of it is the card's
        limits = (ctypes.c_uint64 * 4)()
        assert ctypes.CDLL("libnvidia-ml.so.1").nvmlDeviceGetMemoryLimits_v1(handle(3), limits) == 0
        assert list(limits)[1:] == [512 * MIB, 512 * MIB, 164 * MIB]
    assert nvml.nvmlDeviceGetMemoryInfo(handle(1)).used == 0


def test_memory_info_of_a_wrong_version_is_told() -> None:
    refused(nvml.NVMLError_ArgumentVersionMismatch, nvml.nvmlDeviceGetMemoryInfo, handle(3), 0x1000020)


def test_free_is_never_more_than_the_card_has_free() -> None:
    with holder(1, 3800 * MIB, neighbour=True):
        info = nvml.nvmlDeviceGetMemoryInfo(handle(1))
        assert (info.total, info.used, info.free) == (256 * MIB, 0, (4096 - 3900) * MIB)


def test_a_killed_processs_memory_is_back_within_100_ms() -> None:
    with holder(3, 64 * MIB) as child:
        assert nvml.nvmlDeviceGetMemoryInfo(handle(3)).used == 164 * MIB
        child.kill()
        child.wait()
        time.sleep(0.1)
        assert nvml.nvmlDeviceGetMemoryInfo(handle(3)).used == 0


def test_a_changed_quota_is_seen_within_100_ms_also_below_what_is_held() -> None:
    ours = Container.there(HOST / "fractile", [UUIDS[i] for i in OURS])
    with holder(3, 64 * MIB):
        for quota, used in ((1024 * MIB, 164 * MIB), (128 * MIB, 128 * MIB), (512 * MIB, 164 * MIB)):
            ours.set_memory(0, quota)
            time.sleep(0.1)
            info = nvml.nvmlDeviceGetMemoryInfo(handle(3))
            assert (info.total, info.used, info.free) == (quota, used, quota - used)


# ---- processes ----


def test_only_the_containers_processes_are_listed_with_their_bytes() -> None:
    with holder(3, 100 * MIB, neighbour=True), holder(3, 64 * MIB) as first, holder(3, 32 * MIB) as second:
        found = {p.pid: p.usedGpuMemory for p in nvml.nvmlDeviceGetComputeRunningProcesses(handle(3))}
        assert found == {first.pid: 164 * MIB, second.pid: 132 * MIB}
        assert nvml.nvmlDeviceGetComputeRunningProcesses(handle(1)) == []
        assert nvml.nvmlDeviceGetGraphicsRunningProcesses(handle(3)) == []
        assert nvml.nvmlDeviceGetMPSComputeRunningProcesses(handle(3)) == []
        details = nvml.nvmlDeviceGetRunningProcessDetailList(handle(3), nvml.nvmlProcessDetailList_v1, 0)
        listed = {p.pid: p.usedGpuMemory for p in details}
        assert listed == found
        assert nvml.nvmlSystemGetProcessName(first.pid).startswith("python")
        refused(nvml.NVMLError_NotFound, nvml.nvmlSystemGetProcessName, os.getpid())


def test_the_lists_of_all_generations_keep_the_drivers_protocol_of_sizes() -> None:
    library = ctypes.CDLL("libnvidia-ml.so.1")
    with holder(3, 64 * MIB) as first, holder(3, 32 * MIB) as second:
        for suffix, words in (("", 2), ("_v2", 3), ("_v3", 3)):
            call = library["nvmlDeviceGetComputeRunningProcesses" + suffix]
            count, space = ctypes.c_uint(0), (ctypes.c_uint64 * (3 * words))(*[9] * 3 * words)
            assert (call(handle(3), ctypes.byref(count), None), count.value) == (7, 2)
            count.value = 1
            assert (call(handle(3), ctypes.byref(count), space), count.value) == (7, 2)
            assert set(space[words:]) == {9}, "written behind the end"
            count.value = 3
            assert (call(handle(3), ctypes.byref(count), space), count.value) == (0, 2)
            assert {space[0] & 0xFFFFFFFF, space[words] & 0xFFFFFFFF} == {first.pid, second.pid}
            assert {space[1], space[words + 1]} == {164 * MIB, 132 * MIB}
            assert set(space[2 * words :]) == {9}, "written behind the end"
            assert call(handle(3), None, None) == 2


def test_a_process_that_only_looks_is_not_a_process_on_the_card() -> None:
    assert nvml.nvmlDeviceGetComputeRunningProcesses(handle(3)) == []
    ours = Container.there(HOST / "fractile", [UUIDS[i] for i in OURS])
    data = ours.region.read_bytes()
    assert os.getpid() not in [get(data, "slot", "pid", ours.slot(i)) for i in range(64)]


def test_accounting_knows_the_containers_processes_only() -> None:
    with holder(3, 64 * MIB, neighbour=True) as theirs, holder(3, 64 * MIB) as first:
        assert nvml.nvmlDeviceGetAccountingPids(handle(3)) == [first.pid]
        stats = nvml.nvmlDeviceGetAccountingStats(handle(3), first.pid)
        assert (stats.isRunning, stats.maxMemoryUsage) == (1, 164 * MIB)
        assert abs(stats.startTime / 1e6 - time.time()) < 20
        refused(nvml.NVMLError_NotFound, nvml.nvmlDeviceGetAccountingStats, handle(3), theirs.pid)


# ---- utilisation ----


def account_of(pid: int, card: int) -> tuple[Container, int]:
    ours = Container.there(HOST / "fractile", [UUIDS[i] for i in OURS])
    data = ours.region.read_bytes()
    [slot] = [i for i in range(64) if get(data, "slot", "pid", ours.slot(i)) == pid]
    return ours, ours.account(slot, card)


def test_utilisation_is_the_containers_gpu_time_of_late() -> None:
    with holder(3, 64 * MIB, neighbour=True), holder(3, 64 * MIB) as first, holder(3, 32 * MIB) as second:
        assert nvml.nvmlDeviceGetUtilizationRates(handle(3)).gpu == 0
        started = time.monotonic()
        time.sleep(0.6)
        nvml.nvmlDeviceGetUtilizationRates(handle(3))
        time.sleep(0.6)
        for pid, percent in ((first.pid, 30), (second.pid, 10)):
            ours, at = account_of(pid, 0)
            ours.write(ours.region, "account", at, gpu_ns=int((time.monotonic() - started) * percent * 1e7))
        rates = nvml.nvmlDeviceGetUtilizationRates(handle(3))
        assert 30 <= rates.gpu <= 90, rates.gpu  # all of it counts in the last half of the time
        samples = {s.pid: s.smUtil for s in nvml.nvmlDeviceGetProcessUtilization(handle(3), 0)}
        assert set(samples) == {first.pid, second.pid}
        assert 2 <= samples[first.pid] / samples[second.pid] <= 4, samples
        kind, [sample] = nvml.nvmlDeviceGetSamples(handle(3), nvml.NVML_GPU_UTILIZATION_SAMPLES, 0)
        assert kind == nvml.NVML_VALUE_TYPE_UNSIGNED_INT and sample.sampleValue.uiVal > 10
        assert nvml.nvmlDeviceGetUtilizationRates(handle(1)).gpu == 0
        info = nvml.nvmlDeviceGetProcessesUtilizationInfo(handle(3), 0)
        assert {p.pid for p in info} == {first.pid, second.pid}
        for _ in range(3):  # work of long ago no longer counts
            time.sleep(0.6)
            rates = nvml.nvmlDeviceGetUtilizationRates(handle(3))
        assert rates.gpu == 0


def test_utilisation_without_a_process_is_not_found() -> None:
    refused(nvml.NVMLError_NotFound, nvml.nvmlDeviceGetProcessUtilization, handle(1), 0)


# ---- administrator settings, and others ----


def test_nothing_that_the_card_shares_can_be_set() -> None:
    refuse = nvml.NVMLError_NoPermission
    card = handle(3)
    refused(refuse, nvml.nvmlDeviceSetComputeMode, card, nvml.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS)
    refused(refuse, nvml.nvmlDeviceSetPersistenceMode, card, 0)
    refused(refuse, nvml.nvmlDeviceSetPowerManagementLimit, card, 100000)
    refused(refuse, nvml.nvmlDeviceSetGpuLockedClocks, card, 300, 300)
    refused(refuse, nvml.nvmlDeviceResetGpuLockedClocks, card)
    refused(refuse, nvml.nvmlDeviceClearEccErrorCounts, card, 0)
    refused(refuse, nvml.nvmlDeviceSetAccountingMode, card, 0)
    refused(refuse, nvml.nvmlDeviceSetMigMode, card, 1)
    assert ctypes.CDLL("libnvidia-ml.so.1").nvmlDeviceSetMemoryLimits_v1(card, (ctypes.c_uint64 * 3)()) == 4


def test_the_drivers_own_errors_come_back() -> None:
    library, number = ctypes.CDLL("libnvidia-ml.so.1"), ctypes.c_uint()
    memory = (ctypes.c_uint64 * 3)()
    assert library.nvmlDeviceGetMemoryInfo(ctypes.c_void_p(0x1234), memory) == 2
    assert library.nvmlDeviceGetMemoryInfo(handle(3), None) == 2
    assert library.nvmlDeviceGetCount_v2(None) == 2
    assert library.nvmlDeviceGetHandleByUUID(None, ctypes.byref(ctypes.c_void_p())) == 2
    code = (
        "import ctypes; n = ctypes.CDLL('libnvidia-ml.so.1'); x = ctypes.c_uint(); "
        "name = ctypes.create_string_buffer(9); "
        "print(n.nvmlDeviceGetCount_v2(ctypes.byref(x)), n.nvmlSystemGetProcessName(1, name, 9))"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert told.split() == ["1", "1"], "before nvmlInit the answer is UNINITIALIZED"
    assert number.value == 0


def test_names_clocks_and_errors_of_the_card_pass_through() -> None:
    assert nvml.nvmlDeviceGetName(handle(3)) == "NVIDIA A100-SXM4-40GB"
    assert nvml.nvmlDeviceGetPciInfo(handle(3)).busId == BUS_IDS[3]
    assert nvml.nvmlDeviceGetTemperature(handle(3), 0) == 40
    [field] = nvml.nvmlDeviceGetFieldValues(handle(3), [nvml.NVML_FI_DEV_ECC_SBE_VOL_TOTAL])
    assert field.nvmlReturn == 0


# ---- other ways to reach NVML ----

COUNT = """
import pynvml as n
n.nvmlInit()
cards = [n.nvmlDeviceGetHandleByIndex(i) for i in range(n.nvmlDeviceGetCount())]
print(len(cards), sum(n.nvmlDeviceGetMemoryInfo(card).total for card in cards))
"""


def count(**changed: str | None) -> tuple[str, str]:
    environment = {k: v for k, v in dict(os.environ, **changed).items() if v is not None}
    result = subprocess.run([sys.executable, "-c", COUNT], env=environment, capture_output=True, text=True)
    return result.stdout.strip() or result.stderr.strip().splitlines()[-1], result.stderr


def test_the_library_under_the_name_of_nvml_is_nvml() -> None:
    names = HOST / "names"
    names.mkdir()
    for name in ("libnvidia-ml.so.1", "libcuda.so.1"):
        (names / name).symlink_to(LIBRARY)
    path = f"{names}:{SIM}"
    assert count(LD_PRELOAD=None, LD_LIBRARY_PATH=path) == (f"2 {sum(QUOTA.values())}", "")


def test_without_limits_there_is_no_card() -> None:
    assert count(FRACTILE_DIR=str(HOST / "nothing"))[0] == "0 0"


def test_without_a_region_there_is_no_memory() -> None:
    other = Container(HOST / "other", {UUIDS[3]: 512 * MIB})
    other.region.unlink()
    told, said = count(FRACTILE_DIR=str(other.directory))
    assert told == "1 0" and "region is not there" in said, (told, said)


def test_with_isolation_off_the_card_is_shown_as_it_is() -> None:
    other = Container(HOST / "off", {UUIDS[3]: 512 * MIB})
    other.write(other.limits, "limits", flags=1)
    assert count(FRACTILE_DIR=str(other.directory))[0] == f"1 {4096 * MIB}"


def test_a_table_as_of_nvidia_smi_shows_the_container() -> None:
    with holder(1, 16 * MIB) as first:
        lines = []
        for i in range(nvml.nvmlDeviceGetCount()):
            card = nvml.nvmlDeviceGetHandleByIndex(i)
            memory, rates = nvml.nvmlDeviceGetMemoryInfo(card), nvml.nvmlDeviceGetUtilizationRates(card)
            lines.append(
                f"| {i}  {nvml.nvmlDeviceGetName(card)}  {nvml.nvmlDeviceGetPciInfo(card).busId} "
                f"| {memory.used // MIB:5}MiB / {memory.total // MIB:5}MiB | {rates.gpu:3}% |"
            )
        for i in range(nvml.nvmlDeviceGetCount()):
            for p in nvml.nvmlDeviceGetComputeRunningProcesses(nvml.nvmlDeviceGetHandleByIndex(i)):
                lines.append(
                    f"| {i}  pid {p.pid}  {nvml.nvmlSystemGetProcessName(p.pid)}  {p.usedGpuMemory // MIB}MiB |"
                )
        print("\n".join(lines))
        assert "116MiB /   256MiB |   0%" in lines[0] and "0MiB /   512MiB |   0%" in lines[1]
        assert lines[2].startswith(f"| 0  pid {first.pid}  python") and len(lines) == 3


def test_our_layouts_are_the_vendors() -> None:
    wheels = os.environ.get("FRACTILE_CUDA_WHEELS")
    if not wheels:
        raise Skipped("FRACTILE_CUDA_WHEELS names no headers to compare with")
    header = next(Path(wheels, "13.5").rglob("nvml.h"))
    native = Path(__file__).resolve().parents[2]
    command = ["cc", "-std=c11", "-fsyntax-only", f"-I{header.parent}", f"-I{native / 'abi'}"]
    subprocess.run([*command, str(Path(__file__).with_name("nvml_abi_check.c"))], check=True, env={"PATH": os.defpath})


def main() -> int:
    nvml.nvmlInit()
    failed = skipped = 0
    tests = [(name, test) for name, test in globals().items() if name.startswith("test_")]
    for name, test in tests:
        try:
            test()
            print(f"ok   {name}", flush=True)
        except Skipped as reason:
            skipped += 1
            print(f"skip {name}: {reason}", flush=True)
        except Exception as error:
            failed += 1
            print(f"FAIL {name}: {error!r}", flush=True)
            traceback.print_exc()
    nvml.nvmlShutdown()
    print(f"{len(tests) - failed - skipped} passed, {skipped} skipped, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    if "INSIDE" not in os.environ:
        enter_container()
    sys.exit(main())
