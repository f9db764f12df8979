"""A program that uses the card and prints the driver's results, in a container made for it. Both are removed at the
end."""

import atexit
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from container import MIB, Container

OUT = Path(os.environ["OUT"])
SIM = OUT / "simgpu"
LIBRARY = OUT / "interposer" / "libfractile.so"
WORK = Path(tempfile.mkdtemp(prefix="program-"))
CARD = "GPU-00000000-0000-4000-8000-000000000001"
CONTEXT = 256 * MIB
QUOTA = 1024 * MIB
OOM = 2
atexit.register(shutil.rmtree, WORK, ignore_errors=True)

PROGRAM = """
import ctypes, json, os, sys, time
cuda = ctypes.CDLL("libcuda.so.1")
told = {}
def say(name, value):
    told[name] = value
def init():
    say("init", cuda.cuInit(0))
def context():
    say("context", cuda.cuCtxCreate_v2(ctypes.byref(ctypes.c_void_p()), 0, 0))
def alloc(name="alloc", size=64 << 20):
    pointer = ctypes.c_uint64()
    say(name, cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(size)))
    return pointer
def info():
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total))
    say("free", free.value >> 20), say("total", total.value >> 20)
def free(pointer):
    say("freed", cuda.cuMemFree_v2(pointer))
def finish():
    print(json.dumps(told), flush=True)
"""

USUAL = "init(); context(); p = alloc(); info(); p.value and free(p); finish()"


class Answer:
    def __init__(self, result: subprocess.CompletedProcess[str]) -> None:
        self.status, self.said = result.returncode, result.stderr
        self.told = json.loads(result.stdout.strip().splitlines()[-1]) if result.stdout.strip() else {}

    def __repr__(self) -> str:
        return f"status {self.status}, {self.told}, said {self.said!r}"


def environment(directory: Path, **more: str) -> dict[str, str]:
    return dict(os.environ, FRACTILE_DIR=str(directory), LD_LIBRARY_PATH=str(SIM), LD_PRELOAD=str(LIBRARY), **more)


def run(directory: Path, steps: str = USUAL, *, before: tuple[str, ...] = (), **more: str) -> Answer:
    command = [*before, sys.executable, "-c", PROGRAM + steps]
    env = environment(directory, **more)
    if before:  # only the program itself runs with the library
        preload = env.pop("LD_PRELOAD")
        command = [*before, "env", f"LD_PRELOAD={preload}", sys.executable, "-c", PROGRAM + steps]
    return Answer(subprocess.run(command, env=env, capture_output=True, text=True, timeout=30))


def expect_refusal(directory: Path, *words: str, steps: str = USUAL, before: tuple[str, ...] = ()) -> None:
    """Everything is refused as out of memory, the reason is printed once, and the program ends normally."""
    answer = run(directory, steps, before=before)
    assert answer.status == 0, answer
    assert answer.told["init"] == 0 and answer.told["context"] == OOM, answer
    assert answer.told["alloc"] != 0, answer  # without a context the driver may return that error first
    lines = [line for line in answer.said.splitlines() if line]
    assert len(lines) == 1 and lines[0].startswith("fractile: "), answer
    for word in words:
        assert word in lines[0], (word, answer)


def made(name: str, **more: int) -> Container:
    directory = WORK / name
    shutil.rmtree(directory, ignore_errors=True)
    return Container(directory, {CARD: QUOTA}, context=CONTEXT, **more)
