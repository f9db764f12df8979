"""PyTorch from PyPI, unmodified, over the stand-in for libcudart, under libfractile.so on simulated cards; run by
`make -C native frameworks`. FRAMEWORKS names
the directory that fetch/frameworks.py filled. Prints a table; every figure in it is the
judge's (host.py), and a row is good only if the judge agrees. No row uses cuBLAS or cuDNN: their runtime is static.
"""

import importlib.metadata
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from host import CONTEXT, MIB, OUT, PRELUDE, Host

VENV = Path(os.environ["FRAMEWORKS"]) / "venv"
QUOTA = 2048 * MIB
MODULES = 160 * MIB  # what the kernels of a row may hold
LIMIT = 300
ALLOCATORS = {"default": "", "expandable": "expandable_segments:True", "async": "backend:cudaMallocAsync"}

TORCH = """
import os, torch
MiB = 1 << 20
def bytes_(mib): return torch.empty(mib * MiB, dtype=torch.uint8, device="cuda")
def oom(call):
    try:
        call()
    except torch.OutOfMemoryError as error:
        return str(error)
    return ""
def compute():
    x = torch.ones(1 << 20, device="cuda")
    y = ((x * 2 + 1).relu() - x).sum()
    torch.cuda.synchronize()
    return y.item()
def leave(): sys.stdout.flush(); os._exit(0)
"""

Row = Callable[[Host, str], str]
rows: dict[str, tuple[Row, tuple[str, ...]]] = {}


def row(title: str, *allocators: str) -> Callable[[Row], Row]:
    def add(function: Row) -> Row:
        rows[title] = function, allocators or tuple(ALLOCATORS)
        return function

    return add


def mib(size: int) -> str:
    return f"{size / MIB:.0f}"


def within(h: Host) -> None:
    assert h.peak() <= QUOTA, f"{h.peak() - QUOTA} bytes above the quota"
    assert h.foreign() == 0, "memory on a card that is not the container's"


def start(h: Host, script: str, allocator: str):
    return h.run(TORCH + script, LIMIT, PYTORCH_CUDA_ALLOC_CONF=ALLOCATORS[allocator])


@row("total and free are the quota's")
def totals(h: Host, allocator: str) -> str:
    p = start(
        h,
        """
free, total = torch.cuda.mem_get_info()
property = torch.cuda.get_device_properties(0).total_memory
say("begin", count=torch.cuda.device_count(), total=total, free=free, property=property)
compute()
free, total = torch.cuda.mem_get_info()
say("ran", total=total, free=free)
""",
        allocator,
    )
    said = p.until("begin")
    assert said == {"count": 1, "total": QUOTA, "free": QUOTA - CONTEXT, "property": QUOTA} and h.now() == CONTEXT, (
        said,
        h.now(),
    )
    busy = h.kernels_ns()
    said = p.then("ran")
    counted = said["total"] - said["free"]
    assert said["total"] == QUOTA and h.kernels_ns() > busy, said
    # What the blocks of code may take at most is counted (docs/isolation.md, "Blocks"), not what they take.
    assert 0 <= counted - h.now() <= 8 * MIB, (counted, h.now())
    held = h.now()
    p.finish()
    assert h.now() == 0
    return f"total {mib(said['total'])}, free {mib(said['free'])}, held {mib(held)}"


@row("OutOfMemoryError at the quota, with the quota as capacity; then work goes on")
def at_the_quota(h: Host, allocator: str) -> str:
    p = start(
        h,
        """
compute()
held = []
said = oom(lambda: [held.append(bytes_(64)) for _ in range(100)])
say("full", said=said, count=len(held))
held.clear()
torch.cuda.synchronize()
torch.cuda.empty_cache()
say("empty")
large = bytes_(1024)
compute()
say("again")
""",
        allocator,
    )
    said = p.until("full")
    full = h.now()
    assert said["said"] and QUOTA - 66 * MIB <= full <= QUOTA, (said, full)
    if allocator != "async":  # which says no more than that the allocation failed
        assert f"total capacity of {QUOTA / 2**30:.2f} GiB" in said["said"], said
    p.then("empty")
    empty, busy = h.now(), h.kernels_ns()
    assert empty <= CONTEXT + MODULES, empty
    p.then("again")
    again = h.now()
    assert again >= empty + 1024 * MIB and h.kernels_ns() > busy, again
    p.finish()
    return f"full {mib(full)}, {said['count']} tensors of 64; emptied {mib(empty)}; again {mib(again)}"


@row("a tensor above the quota is refused at once, and nothing is held for it")
def too_large(h: Host, allocator: str) -> str:
    p = start(
        h, "compute()\nsay('begin')\nsay('large', said=oom(lambda: bytes_(3000)))\ncompute()\nsay('ran')\n", allocator
    )
    p.until("begin")
    before = h.now()
    said = p.then("large")["said"]
    assert said and h.now() <= before, (said, h.now())
    p.then("ran")
    held = h.now()
    p.finish()
    return f"held {mib(before)} before, {mib(held)} after"


GRAPH = """
torch.ones(1, device="cuda") * 2
static = torch.zeros(16 << 20, device="cuda")
torch.cuda.synchronize()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    a = static * 2
    b = a + 1
"""


@row("CUDA graphs: capture and replay")
def graphs(h: Host, allocator: str) -> str:
    p = start(
        h,
        GRAPH
        + "say('captured')\nfor _ in range(20): graph.replay()\ntorch.cuda.synchronize()\nsay('played')\nleave()\n",
        allocator,
    )
    p.until("captured")
    busy, captured = h.kernels_ns(), h.now()
    p.then("played")
    played, took = h.now(), h.kernels_ns() - busy
    assert took > 0 and played >= CONTEXT + 192 * MIB, (took, played)
    p.finish()
    return f"captured {mib(captured)}, played {mib(played)}, {took / 1e6:.2f} ms of kernels in 20 replays"


@row("CUDA graphs: out of memory inside a capture; then work and another capture go on")
def graph_refused(h: Host, allocator: str) -> str:
    inside = """
refusing = torch.cuda.CUDAGraph()
def capture():
    global kept
    with torch.cuda.graph(refusing): kept = bytes_(3000)
    refusing.replay() # cudaMallocAsync makes nodes of allocations; they are made when the graph is played
said = ""
try:
    capture()
except (torch.OutOfMemoryError, RuntimeError) as error:
    said = str(error)
say("refused", said=said)
compute()
"""
    p = start(h, inside + GRAPH + "graph.replay()\ntorch.cuda.synchronize()\nsay('played')\nleave()\n", allocator)
    said = p.until("refused")["said"]
    assert "out of memory" in said.lower(), said
    refused, busy = h.now(), h.kernels_ns()
    assert refused <= CONTEXT + MODULES, refused
    p.then("played")
    assert h.kernels_ns() > busy
    held = h.now()
    p.finish()
    return f"refused with {mib(refused)} held, played with {mib(held)}"


@row("MemPool: its memory is charged, given back, and refused beyond the quota", "default")
def mem_pool(h: Host, allocator: str) -> str:
    p = start(
        h,
        """
compute()
say("begin")
pool = torch.cuda.MemPool()
with torch.cuda.use_mem_pool(pool):
    inside = bytes_(500)
say("inside")
with torch.cuda.use_mem_pool(pool):
    said = oom(lambda: bytes_(1600))
say("refused", said=said)
del inside, pool
torch.cuda.empty_cache()
say("gone")
""",
        allocator,
    )
    p.until("begin")
    before = h.now()
    p.then("inside")
    inside = h.now()
    assert inside >= before + 500 * MIB, inside
    assert p.then("refused")["said"]
    p.then("gone")
    gone = h.now()
    assert gone <= before, (gone, before)
    p.finish()
    return f"before {mib(before)}, inside {mib(inside)}, gone {mib(gone)}"


SPAWN = """
import time
def work(i, held, go, full):
    x = bytes_(400)
    compute()
    held.put((i, os.getpid()))
    go.wait()
    full.put((i, bool(oom(lambda: bytes_(1700)))))
    go2 = time.sleep(600) if i == 0 else None
if __name__ == "__main__":
    import torch.multiprocessing as mp
    context = mp.get_context("spawn")
    held, full, go = context.Queue(), context.Queue(), context.Event()
    workers = [context.Process(target=work, args=(i, held, go, full)) for i in range(2)]
    for w in workers: w.start()
    pids = dict(held.get() for _ in workers)
    say("held", pids=[pids[i] for i in range(2)])
    go.set()
    refused = [full.get()[1] for _ in workers]
    say("refused", refused=refused)
    workers[1].join()
    say("one", code=workers[1].exitcode)
    workers[0].join()
    say("killed", code=workers[0].exitcode)
    x = bytes_(1500)
    compute()
    say("again")
"""


@row("spawned workers share the quota; one is killed with -9", "default", "expandable")
def spawned(h: Host, allocator: str) -> str:
    with tempfile.TemporaryDirectory() as directory:
        script = Path(directory) / "spawned.py"
        script.write_text(PRELUDE + TORCH + SPAWN)
        p = h.command([h.python, str(script)], LIMIT, PYTORCH_CUDA_ALLOC_CONF=ALLOCATORS[allocator])
        pids = p.until("held")["pids"]
        held = h.now()
        assert 2 * (CONTEXT + 400 * MIB) <= held <= QUOTA, held
        said = p.then("refused")["refused"]
        assert said == [True, True], said
        assert p.then("one")["code"] == 0
        one = h.now()
        assert one <= held - CONTEXT - 400 * MIB, one
        os.kill(pids[0], signal.SIGKILL)
        assert p.then("killed")["code"] == -signal.SIGKILL
        killed = h.now()
        assert killed == 0, killed
        p.then("again")
        again = h.now()
        assert again >= CONTEXT + 1500 * MIB, again
        p.finish()
    return f"two {mib(held)}, one {mib(one)}, after kill -9 {mib(killed)}, then {mib(again)}"


IPC = """
def work(tensors, seen, go):
    x = tensors.get()
    y = x[:1 << 20] + 1
    torch.cuda.synchronize()
    seen.put(x.numel())
    go.wait()
    del x, y
if __name__ == "__main__":
    import torch.multiprocessing as mp
    context = mp.get_context("spawn")
    tensors, seen, go = context.Queue(), context.Queue(), context.Event()
    worker = context.Process(target=work, args=(tensors, seen, go))
    worker.start()
    x = bytes_(600)
    x.fill_(1)
    torch.cuda.synchronize()
    say("before")
    tensors.put(x)
    numbers = seen.get()
    say("shared", numbers=numbers)
    go.set()
    worker.join()
    say("joined", code=worker.exitcode)
"""


@row("a tensor over IPC is charged once", "default")
def ipc(h: Host, allocator: str) -> str:
    with tempfile.TemporaryDirectory() as directory:
        script = Path(directory) / "ipc.py"
        script.write_text(PRELUDE + TORCH + IPC)
        p = h.command([h.python, str(script)], LIMIT, PYTORCH_CUDA_ALLOC_CONF=ALLOCATORS[allocator])
        p.until("before")
        before = h.now()
        assert p.then("shared")["numbers"] == 600 * MIB
        shared = h.now()
        assert shared - before <= CONTEXT + MODULES, shared - before
        assert p.then("joined")["code"] == 0
        joined = h.now()
        p.finish()
    return f"before {mib(before)}, in two processes {mib(shared)} (a context more), after {mib(joined)}"


LOADER = """
from torch.utils.data import DataLoader, Dataset
class Numbers(Dataset):
    def __len__(self): return 64
    def __getitem__(self, i): return torch.full((1 << 16,), float(i))
if __name__ == "__main__":
    how = sys.argv[1]
    compute()
    say("begin")
    batches = DataLoader(Numbers(), batch_size=8, num_workers=2, pin_memory=True, multiprocessing_context=how)
    pinned, same = True, True
    for n, batch in enumerate(batches):
        pinned = pinned and batch.is_pinned()
        on_card = batch.to("cuda", non_blocking=True)
        torch.cuda.synchronize()
        same = same and torch.equal(on_card.cpu(), batch)
    say("read", batches=n + 1, pinned=pinned, same=same)
"""


def loader(h: Host, allocator: str, how: str) -> str:
    with tempfile.TemporaryDirectory() as directory:
        script = Path(directory) / "loader.py"
        script.write_text(PRELUDE + TORCH + LOADER)
        p = h.command([h.python, str(script), how], LIMIT, PYTORCH_CUDA_ALLOC_CONF=ALLOCATORS[allocator])
        p.until("begin")
        before = h.now()
        said = p.then("read")
        assert said == {"batches": 8, "pinned": True, "same": True}, said
        after = h.now()
        assert after - before <= 64 * MIB, after - before  # workers have no context, pinned memory is the host's
        p.finish()
    return f"before {mib(before)}, after 8 batches {mib(after)}"


@row("DataLoader with workers by fork and pinned memory", "default", "async")
def forked_loader(h: Host, allocator: str) -> str:
    return loader(h, allocator, "fork")


@row("DataLoader with workers by spawn and pinned memory", "default")
def spawned_loader(h: Host, allocator: str) -> str:
    return loader(h, allocator, "spawn")


@row("streams, events and pinned copies")
def streams(h: Host, allocator: str) -> str:
    p = start(
        h,
        """
here = torch.arange(1 << 20, dtype=torch.float32).pin_memory()
one, two = torch.cuda.Stream(), torch.cuda.Stream()
a, b = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
with torch.cuda.stream(one):
    a.record()
    x = here.to("cuda", non_blocking=True)
    b.record()
two.wait_event(b)
with torch.cuda.stream(two):
    x.record_stream(two)
    y = x.clone()
    back = y.to("cpu", non_blocking=True)
two.synchronize()
say("ran", same=bool(torch.equal(back, here)), time=a.elapsed_time(b))
""",
        allocator,
    )
    said = p.until("ran")
    assert said["same"] and said["time"] > 0, said
    held = h.now()
    p.finish()
    return f"held {mib(held)}, copy of 4 MiB {said['time']:.2f} ms"


@row("what needs cuBLAS stops at the handshake, and the process says so", "default")
def static_runtime(h: Host, allocator: str) -> str:
    p = start(
        h,
        """
try:
    torch.ones(64, 64, device="cuda") @ torch.ones(64, 64, device="cuda")
    said = ""
except RuntimeError as error:
    said = str(error)
say("asked", said=said)
leave()
""",
        allocator,
    )
    said = p.until("asked")["said"]
    assert "CUBLAS" in said, said
    p.finish()
    return said.splitlines()[0][:44]


def one(title: str, function: Row, allocator: str) -> tuple[str, str]:
    """Whether it is good, and the judge's figures or what was wrong."""
    try:
        with Host(str(VENV / "bin/python"), QUOTA, libraries=f"{OUT / 'tests/runtime'}:") as h:
            figures = function(h, allocator)
            within(h)
            return "ok", f"{figures}; peak {mib(h.peak())}"
    except Exception as error:
        return "FAIL", f"{type(error).__name__}: {error}"


def versions() -> str:
    site = next((VENV / "lib").glob("python3*")) / "site-packages"
    found = importlib.metadata.distributions(path=[str(site)])
    wanted = {d.metadata["Name"]: d.version for d in found if d.metadata["Name"].startswith(("torch", "nvidia-"))}
    return ", ".join(f"{name} {version}" for name, version in sorted(wanted.items(), reverse=True))


def main(arguments: list[str]) -> int:
    began, failed, total = time.monotonic(), 0, 0
    print(
        f"PyTorch under libfractile.so on simgpu, quota {mib(QUOTA)} of 4096, a context {mib(CONTEXT)}; MiB by simgpu."
    )
    print(f"{versions()}; libcudart: tests/runtime.\n")
    for title, (function, allocators) in rows.items():
        for allocator in allocators:
            if arguments and not any(a in f"{title} [{allocator}]" for a in arguments):
                continue
            good, figures = one(title, function, allocator)
            total += 1
            failed += good != "ok"
            print(f"{good:4} {title} [{allocator}]\n         {figures}", flush=True)
    print("\nNot to be had here: CuPy, cuBLAS, cuDNN and cuda-bindings 13 carry a static runtime, which stops at the")
    print("handshake with the vendor's driver; the handshake is not emulated.")
    print(f"\n{total - failed} passed, {failed} failed in {time.monotonic() - began:.0f} s")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
