"""A row of the table of frameworks: a script for PyTorch under each allocator, and the judge's result."""

import os
from collections.abc import Callable
from pathlib import Path

from host import MIB, Host

VENV = Path(os.environ["FRAMEWORKS"]) / "venv"
QUOTA = 2048 * MIB
MODULES = 160 * MIB  # the most that the kernels of a row may hold
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
