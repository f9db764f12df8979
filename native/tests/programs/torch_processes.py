"""PyTorch in several processes of a container: spawned workers, tensors over IPC, DataLoader."""

import os
import signal
import tempfile
from pathlib import Path

from host import CONTEXT, MIB, PRELUDE, Host
from torch_row import ALLOCATORS, LIMIT, MODULES, QUOTA, TORCH, mib, row

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
        assert after - before <= 64 * MIB, after - before  # workers have no context, and pinned memory is host memory
        p.finish()
    return f"before {mib(before)}, after 8 batches {mib(after)}"


@row("DataLoader with workers by fork and pinned memory", "default", "async")
def forked_loader(h: Host, allocator: str) -> str:
    return loader(h, allocator, "fork")


@row("DataLoader with workers by spawn and pinned memory", "default")
def spawned_loader(h: Host, allocator: str) -> str:
    return loader(h, allocator, "spawn")
