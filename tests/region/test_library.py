"""The library itself, on a simulated card, under limits that the agent's code wrote; needs `make -C native`."""

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Generator
from pathlib import Path

import msgspec
import pytest

from fractile.model.units import CardUUID, ContainerName, PodUID
from fractile.region import directory
from fractile.region.page import CardLimits, ContainerLimits
from fractile.region.usage import RegionUsage, SliceProcess, usage

BUILD = Path(os.environ.get("FRACTILE_NATIVE_BUILD", Path(__file__).parents[2] / "native" / "build"))
LIBRARY = BUILD / "interposer" / "libfractile.so"
SLICE = BUILD / "slice" / "fractile-slice"

pytestmark = [
    pytest.mark.skipif(not LIBRARY.exists() or not SLICE.exists(), reason="`make -C native` has not been run"),
    pytest.mark.skipif(Path(directory.MOUNT).exists(), reason=f"this machine is a container with a {directory.MOUNT}"),
]

MIB = 2**20
CARD = CardUUID("GPU-00000000-0000-4000-8000-000000000009")
LIMITS = ContainerLimits(
    pod_uid=PodUID("u"),
    namespace="default",
    pod="p",
    container=ContainerName("main"),
    cards=(CardLimits(uuid=CARD, memory=600 * MIB, context=256 * MIB),),
)

# Answers every number of MiB on its input with the error code of an allocation of that size.
PROGRAM = """
import ctypes, sys
cuda = ctypes.CDLL("libcuda.so.1")
device, context, pointer = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_uint64()
print(cuda.cuInit(0) or cuda.cuDeviceGet(ctypes.byref(device), 0)
      or cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device) or cuda.cuCtxSetCurrent(context), flush=True)
for line in sys.stdin:
    print(cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(int(line) << 20)), flush=True)
"""

Allocate = Callable[[int], int]


@pytest.fixture
def token(tmp_path: Path) -> Path:
    card = {"uuid": CARD, "index": 0, "model": "A100", "memoryMiB": 4096, "pciBusID": "00000000:07:00.0"}
    (tmp_path / "cards.json").write_text(json.dumps([card]))
    made = tmp_path / "token"
    made.mkdir()
    directory.prepare(made)
    return made


@contextlib.contextmanager
def program(token: Path) -> Generator[Allocate]:
    """A process of the container, with a context on the card; gives a function that allocates."""
    env = os.environ | {
        "SIMGPU_DIR": str(token.parent),
        "LD_LIBRARY_PATH": str(BUILD / "simgpu"),
        "LD_PRELOAD": str(LIBRARY),
        "FRACTILE_DIR": str(token),
    }
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        requests, answers = process.stdin, process.stdout

        def allocate(mib: int) -> int:
            requests.write(f"{mib}\n")
            requests.flush()
            return int(answers.readline())

        try:
            assert int(answers.readline()) == 0, "no context"
            yield allocate
        finally:
            process.kill()


def seen(token: Path) -> RegionUsage:
    limits = directory.read(token)
    assert limits is not None
    found = usage(token / directory.REGION, cards=1, generation=limits.generation)
    assert isinstance(found, RegionUsage), found
    return found


def only(processes: tuple[SliceProcess, ...]) -> SliceProcess:
    (found,) = processes
    return found


def test_the_library_keeps_to_what_the_agent_wrote_and_says_what_is_used(token: Path) -> None:
    directory.put(token, LIMITS)
    with program(token) as allocate:
        assert allocate(300) == 0
        assert allocate(100) == 2  # CUDA_ERROR_OUT_OF_MEMORY
        found = seen(token)
        assert found.cards[0].used == 556 * MIB
        assert found.cards[0].refusals == 1
        process = only(found.processes)
        assert "python" in process.command
        assert [(h.card, h.bytes, h.contexts) for h in process.held] == [(0, 556 * MIB, 1)]
    after = seen(token)
    assert (after.processes, after.cards[0].used) == ((), 0)


def test_a_changed_quota_holds_for_the_next_call(token: Path) -> None:
    directory.put(token, LIMITS)
    with program(token) as allocate:
        assert allocate(400) == 2
        more = msgspec.structs.replace(LIMITS.cards[0], memory=700 * MIB)
        directory.put(token, msgspec.structs.replace(LIMITS, cards=(more,)))
        assert allocate(400) == 0


def test_the_c_tool_reads_what_the_agent_made_and_the_other_way_round(token: Path) -> None:
    directory.put(token, LIMITS)
    shown = json.loads(subprocess.run([SLICE, "json", token], capture_output=True, text=True, check=True).stdout)
    assert CARD in json.dumps(shown)
    made = token.parent / "made"
    subprocess.run(
        [SLICE, "create", made, "--slots", "7", "--card", f"{CARD}=3MiB,context=1MiB,cores=20"],
        capture_output=True,
        check=True,
    )
    found = directory.read(made)
    assert found is not None
    assert [(c.uuid, c.memory, c.context, c.cores) for c in found.cards] == [(CARD, 3 * MIB, MIB, 20)]
    assert isinstance(usage(made / directory.REGION, cards=1, generation=found.generation), RegionUsage)
