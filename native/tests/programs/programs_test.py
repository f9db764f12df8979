"""Third-party programs, unmodified, under libfractile.so on simulated cards: numba-cuda, cuda-core, cuda-bindings,
nvidia-ml-py, nvitop, gpustat. PROGRAMS names the directory that fetch/programs.py filled. Every figure about held
memory is the judge's (host.py); a program's own figures are only compared with it.
"""

import json
import os
import sys
from pathlib import Path

import suite
from host import CONTEXT, MIB, Host

PYTHON = str(Path(os.environ["PROGRAMS"]) / "venv/bin/python")
QUOTA = 1024 * MIB
ROUNDING = 32 * MIB  # a pool's step: the memory that a refusal may leave unused


def host() -> Host:
    return Host(PYTHON, QUOTA)


def within(h: Host) -> None:
    assert h.peak() <= QUOTA, f"{h.peak() - QUOTA} bytes above the quota"
    assert h.foreign() == 0, "memory on a card that is not the container's"


DRIVER = """
from cuda.bindings import driver as d
def ok(answer):
    assert answer[0] == d.CUresult.CUDA_SUCCESS, answer[0]
    return answer[1] if len(answer) == 2 else answer[1:]
ok(d.cuInit(0))
context = ok(d.cuCtxCreate(0, 0))
stream = ok(d.cuStreamCreate(0))
def fill(allocate):
    held, size = [], 64 << 20
    while size >= 2 << 20:
        code, at = allocate(size)
        if code == d.CUresult.CUDA_SUCCESS: held.append(at)
        else: size //= 2
    return held, int(code)
"""


def test_cuda_bindings_fills_the_quota_and_not_a_byte_more() -> None:
    script = """
free, total = ok(d.cuMemGetInfo())
say("begin", cards=ok(d.cuDeviceGetCount()), total=total, free=free)
held, code = fill(d.cuMemAlloc)
say("full", code=code, free=ok(d.cuMemGetInfo())[0])
for at in held: ok(d.cuMemFree(at))
say("empty", free=ok(d.cuMemGetInfo())[0])
held, code = fill(d.cuMemAlloc)
say("again")
"""
    with host() as h:
        p = h.run(DRIVER + script)
        said = p.until("begin")
        assert said == {"cards": 1, "total": QUOTA, "free": QUOTA - CONTEXT} and h.now() == CONTEXT, said
        said = p.then("full")
        assert said == {"code": 2, "free": 0} and h.now() == QUOTA, (said, h.now())
        said = p.then("empty")
        assert said["free"] == QUOTA - CONTEXT and h.now() == CONTEXT, (said, h.now())
        p.then("again")
        assert h.now() == QUOTA, h.now()
        p.finish()
        within(h)
        assert h.now() == 0


def test_cuda_bindings_allocates_in_the_order_of_a_stream_up_to_the_quota() -> None:
    script = """
held, code = fill(lambda size: d.cuMemAllocAsync(size, stream))
say("full", code=code, free=ok(d.cuMemGetInfo())[0])
for at in held: ok(d.cuMemFreeAsync(at, stream))
ok(d.cuStreamSynchronize(stream))
ok(d.cuMemPoolTrimTo(ok(d.cuDeviceGetDefaultMemPool(0)), 0))
say("empty")
"""
    with host() as h:
        p = h.run(DRIVER + script)
        said = p.until("full")
        assert said["code"] == 2 and QUOTA - ROUNDING <= h.now() <= QUOTA, (said, h.now())
        p.then("empty")
        assert h.now() == CONTEXT, h.now()
        p.finish()
        within(h)


def test_the_runtime_of_cuda_bindings_stops_at_the_handshake_and_holds_nothing() -> None:
    script = """
from cuda.bindings import runtime
say("asked", code=int(runtime.cudaMalloc(1 << 20)[0]))
"""
    with host() as h:
        p = h.run(script)
        assert p.until("asked")["code"] == 500
        assert h.now() <= CONTEXT, h.now()
        p.finish()
        within(h)


CORE = """
import numpy as np
from cuda.core import Device, GraphMemoryResource, LaunchConfig, Linker, LinkerOptions, Program, ProgramOptions, launch
device = Device()
device.set_current()
stream = device.create_stream()
source = 'extern "C" __global__ void add(float *p, int n) { int i = threadIdx.x; if (i < n) p[i] += 1; }'
compiled = Program(source, "c++", ProgramOptions(arch="sm_80")).compile("ptx")
kernel = compiled.get_kernel("add")
few = LaunchConfig(grid=4, block=128)
buffer = device.allocate(64 << 20, stream=stream)
def run(on, k=None): launch(on, few, k or kernel, buffer, np.int32(512))
def build(): return device.create_graph_builder().begin_building()
def play(builder):
    graph = builder.end_building().complete()
    graph.upload(stream)
    for _ in range(3): graph.launch(stream)
    stream.sync()
"""


def test_cuda_core_compiles_launches_and_is_refused_beyond_the_quota() -> None:
    script = """
say("begin")
run(stream)
stream.sync()
say("ran")
said = refused(lambda: device.allocate(1 << 30, stream=stream))
stream.sync()
say("refused", said=said)
more = device.allocate(256 << 20, stream=stream)
stream.sync()
say("more")
"""
    with host() as h:
        p = h.run(CORE + script)
        p.until("begin")
        before, busy = h.now(), h.kernels_ns()
        assert CONTEXT + 64 * MIB <= before <= CONTEXT + 64 * MIB + ROUNDING, before
        p.then("ran")
        assert h.kernels_ns() > busy, "no kernel ran"
        said = p.then("refused")["said"]
        assert "OUT_OF_MEMORY" in said, said
        p.then("more")
        assert h.now() >= before + 256 * MIB, h.now()
        p.finish()
        within(h)


def test_cuda_core_links_texts_into_a_module_that_runs() -> None:
    script = """
linked = Linker(compiled, options=LinkerOptions(arch="sm_80")).link("cubin").get_kernel("add")
say("linked")
run(stream, linked)
stream.sync()
say("ran")
"""
    with host() as h:
        p = h.run(CORE + script)
        p.until("linked")
        busy = h.kernels_ns()
        p.then("ran")
        assert h.kernels_ns() > busy, "no kernel ran"
        p.finish()
        within(h)


GRAPHS = """
def forked():
    builder = build()
    a, b = builder.split(2)
    run(a)
    run(b)
    play(a.join(a, b))
def with_callback():
    called = []
    builder = build()
    builder.callback(lambda: called.append(1))
    play(builder)
    assert len(called) == 3, called
def embedded():
    child = build()
    run(child)
    child.end_building()
    builder = build()
    run(builder)
    builder.embed(child)
    play(builder)
def conditional():
    builder = build()
    body = builder.if_then(builder.create_condition())
    body.begin_building()
    run(body)
    body.end_building()
    play(builder)
def straight():
    builder = build()
    run(builder)
    play(builder)
"""


def test_graphs_of_cuda_core_are_built_split_embedded_and_launched() -> None:
    script = """
say("begin")
for how in (straight, forked, with_callback, embedded, conditional):
    how()
    say(how.__name__)
"""
    with host() as h:
        p = h.run(CORE + GRAPHS + script)
        p.until("begin")
        for how in ("straight", "forked", "with_callback", "embedded", "conditional"):
            before, held = h.kernels_ns(), h.now()
            p.then(how)
            computes = how not in ("with_callback", "conditional")
            assert (h.kernels_ns() > before) == computes, how  # the condition's value is 0
            assert h.now() <= held + 4 * MIB, f"{how} holds {h.now() - held} bytes"
        p.finish()
        within(h)


def test_memory_of_a_graph_of_cuda_core_is_charged_and_refused_beyond_the_quota() -> None:
    script = """
def graph(size):
    builder = build()
    memory = GraphMemoryResource(device).allocate(size, stream=builder)
    memory.close(builder)
    return builder.end_building().complete()
small = graph(128 << 20)
small.launch(stream)
stream.sync()
say("small")
def large():
    g = graph(900 << 20)
    g.launch(stream)
    stream.sync()
said = refused(large)
say("large", said=said)
run(stream)
stream.sync()
say("ran")
"""
    with host() as h:
        p = h.run(CORE + script)
        p.until("small")
        assert h.now() >= CONTEXT + 192 * MIB, h.now()
        said = p.then("large")["said"]
        assert "OUT_OF_MEMORY" in said, said
        busy = h.kernels_ns()
        p.then("ran")
        assert h.kernels_ns() > busy
        p.finish()
        within(h)


def test_numba_compiles_launches_and_is_refused_beyond_the_quota() -> None:
    script = """
import warnings
warnings.simplefilter("ignore")
import numpy as np
from numba import cuda
info = cuda.current_context().get_memory_info()
say("begin", total=info.total, free=info.free)
@cuda.jit
def add(x):
    i = cuda.grid(1)
    if i < x.size: x[i] += 1
array = cuda.to_device(np.arange(1 << 20, dtype=np.float32))
add[64, 128](array)
cuda.synchronize()
say("ran", same=bool((array.copy_to_host() == np.arange(1 << 20)).all()))
said = refused(lambda: cuda.device_array(2 << 30, dtype=np.uint8))
say("refused", said=said)
held = [cuda.device_array(64 << 20, dtype=np.uint8) for _ in range(11)]
said = refused(lambda: cuda.device_array(128 << 20, dtype=np.uint8))
say("full", said=said)
held.clear()
cuda.current_context().memory_manager.deallocations.clear()
say("freed")
"""
    with host() as h:
        p = h.run(script)
        said = p.until("begin")
        assert said["total"] == QUOTA and said["free"] == QUOTA - CONTEXT, said
        busy = h.kernels_ns()
        said = p.then("ran")
        assert said["same"] and h.kernels_ns() > busy, said
        held = h.now()
        assert CONTEXT + 4 * MIB <= held <= CONTEXT + 16 * MIB, held
        assert "OUT_OF_MEMORY" in p.then("refused")["said"]
        assert "OUT_OF_MEMORY" in p.then("full")["said"]
        assert h.now() == held + 11 * 64 * MIB, h.now()
        p.then("freed")
        assert h.now() == held, h.now()
        p.finish()
        within(h)


def holder(h: Host) -> int:
    """Starts a program that holds 200 MiB until its host is gone; returns its pid."""
    pid = h.run(DRIVER + "import os\nok(d.cuMemAlloc(200 << 20))\nsay('held', pid=os.getpid())").until("held")["pid"]
    assert h.now() == CONTEXT + 200 * MIB, h.now()
    return pid


def test_nvidia_ml_py_sees_the_quota_and_what_the_container_holds() -> None:
    script = """
import pynvml as n
n.nvmlInit()
assert n.nvmlDeviceGetCount() == 1
card = n.nvmlDeviceGetHandleByIndex(0)
memory = n.nvmlDeviceGetMemoryInfo(card)
processes = {p.pid: p.usedGpuMemory for p in n.nvmlDeviceGetComputeRunningProcesses(card)}
say("seen", total=memory.total, used=memory.used, free=memory.free, processes=processes)
"""
    with host() as h:
        pid = holder(h)
        p = h.run(script)
        said = p.until("seen")
        assert said["total"] == QUOTA and said["used"] == h.now() and said["free"] == QUOTA - h.now(), said
        assert said["processes"] == {str(pid): h.now()}, said
        p.finish()


def test_functions_of_nvidia_ml_py_answer_the_same_with_the_library_as_without() -> None:
    script = """
import inspect
import pynvml as n
n.nvmlInit()
card = n.nvmlDeviceGetHandleByIndex(0)
answers = {}
for name, f in sorted(vars(n).items()):
    if not name.startswith("nvmlDeviceGet") or "HandleBy" in name or not callable(f): continue
    if sum(p.default is p.empty for p in inspect.signature(f).parameters.values()) != 1: continue
    try:
        f(card)
        answers[name] = "ok"
    except n.NVMLError as error:
        answers[name] = str(error)
say("answers", **answers)
"""
    with host() as h:
        inside = h.run(script).until("answers")
        outside = h.run(script, LD_PRELOAD="").until("answers")
        assert {k: (v, outside[k]) for k, v in inside.items() if v != outside[k]} == {}
        assert sum(v == "ok" for v in inside.values()) >= 92, sum(v == "ok" for v in inside.values())


def test_gpustat_shows_the_quota() -> None:
    with host() as h:
        pid = holder(h)
        shown = h.command([PYTHON, "-m", "gpustat", "--json"]).finish()
        (card,) = json.loads(shown)["gpus"]
        assert card["memory.total"] == QUOTA // MIB and card["memory.used"] == h.now() // MIB, card
        assert [(p["pid"], p["gpu_memory_usage"]) for p in card["processes"]] == [(pid, h.now() // MIB)], card


def test_nvitop_shows_the_quota() -> None:
    with host() as h:
        pid = holder(h)
        shown = h.command([PYTHON, "-m", "nvitop", "--once", "--no-unicode", "--ascii"], COLUMNS="100").finish()
        assert (
            f"{h.now() / MIB:.1f}MiB / {QUOTA / MIB:.0f}MiB" in shown
            or f"{h.now() // MIB}MiB / {QUOTA // MIB}MiB" in shown
        ), shown
        assert str(pid) in shown, shown


if __name__ == "__main__":
    sys.exit(suite.run(globals()))
