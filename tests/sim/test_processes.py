"""The processes of a simulation: none outlives it, and no server loads any of it."""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.sim.traces import NODE_HEAD, POD_HEAD, write

_PATIENCE = 30.0  # seconds; a process imports numpy first


@pytest.fixture
def command(tmp_path: Path) -> list[str]:
    """A simulation that would take hours."""
    nodes = write(tmp_path / "n.csv", NODE_HEAD, [f"n{i},64000,262144,8,T4" for i in range(200)])
    pods = write(tmp_path / "p.csv", POD_HEAD, [f"p{i},1000,64,1,{100 + i}," for i in range(300)])
    start = "from fractile.main.cli import main; main()"
    options = ["--tune", "100", "--seeds", "1..500", "--jobs", "2"]
    return [sys.executable, "-c", start, "simulate", "--nodes", str(nodes), "--pods", str(pods), *options]


def children(pid: int) -> list[int]:
    """Of the main thread and of those that start processes for it."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        found += [int(word) for word in task.read_text().split()]
    return found


def gone(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return True
    return state == "Z"


def wait_until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + _PATIENCE
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


@pytest.mark.parametrize("sig", [pytest.param(9, id="killed"), pytest.param(2, id="interrupted")])
def test_processes_end_with_the_command(command: list[str], sig: int) -> None:
    silent = subprocess.DEVNULL
    with subprocess.Popen(
        command, env={**os.environ, "OPENBLAS_NUM_THREADS": "1"}, stdout=silent, stderr=silent
    ) as run:
        workers: list[int] = []
        try:
            wait_until(lambda: len(children(run.pid)) >= 3)  # two, and multiprocessing's tracker of resources
            workers = children(run.pid)
            time.sleep(1.0)  # so that they are at work
            run.send_signal(sig)

            assert run.wait(_PATIENCE) == (-9 if sig == 9 else 130)
            wait_until(lambda: all(map(gone, workers)))
        finally:
            run.kill()
            for pid in workers:
                if not gone(pid):
                    os.kill(pid, 9)


@pytest.mark.parametrize("program", ["fractile.main.control_plane", "fractile.main.agent", "fractile.main.cli"])
def test_no_program_loads_the_simulator(program: str) -> None:
    code = f"import sys, {program}; print([m for m in sys.modules if m.startswith(('fractile.sim', 'numba'))])"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)

    assert said.stdout.strip() == "[]"
