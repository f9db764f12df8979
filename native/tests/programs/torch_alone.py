"""PyTorch in one process: allocators at the quota, graphs, memory pools, streams."""

from host import CONTEXT, MIB, Host
from torch_row import MODULES, QUOTA, mib, row, start


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
    # The most that blocks of code may take is counted (docs/concepts/isolation.md, "Blocks"), not what they take.
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
    if allocator != "async":  # which reports only that the allocation failed
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
