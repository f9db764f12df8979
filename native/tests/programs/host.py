"""A simulated host with one container, the programs in it under libfractile.so, and the judge: simgpu's own ledger,
read from outside while a program waits.

A program calls `say("mark", **facts)`, which prints a line and waits until the test has looked and lets it continue.
"""

import json
import os
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

OUT = Path(os.environ["OUT"]).resolve()
LIBRARY, CTL, SLICE = OUT / "interposer/libfractile.so", OUT / "simgpu/simgpu-ctl", OUT / "slice/fractile-slice"
MIB = 2**20
CARD = "GPU-00000000-0000-4000-8000-000000000001"
CONTEXT = 256 * MIB
PRELUDE = """
import json, sys
def say(mark, **facts):
    print("@" + json.dumps([mark, facts]), flush=True)
    sys.stdin.readline()
def refused(call):
    try:
        call()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""
"""


class Program:
    """`deadline`: seconds for the whole program, after which it is killed and its test fails."""

    def __init__(self, command: Sequence[str], environment: dict[str, str], deadline: float):
        command = ["timeout", "-s", "KILL", str(deadline), *command]
        self.errors = tempfile.TemporaryFile("w+")  # noqa: SIM115  read if the program fails
        self.process = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors, text=True
        )

    def until(self, mark: str) -> dict[str, Any]:
        """The facts reported with the mark; the program waits there."""
        assert self.process.stdout
        printed: list[str] = []
        for line in self.process.stdout:
            if line.startswith("@"):
                said, facts = json.loads(line[1:])
                assert said == mark, f"{said} instead of {mark}: {facts}"
                return facts
            printed.append(line)
        raise AssertionError(f"it ended before {mark}: {''.join(printed)[-1000:]} {self._error()}")

    def go(self) -> None:
        assert self.process.stdin
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def then(self, mark: str) -> dict[str, Any]:
        self.go()
        return self.until(mark)

    def finish(self) -> str:
        """The output since the last mark."""
        out, _ = self.process.communicate("\n")
        assert self.process.returncode == 0, f"status {self.process.returncode}: {out[-500:]} {self._error()}"
        return out

    def kill(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()

    def _error(self) -> str:
        self.errors.seek(0)
        return self.errors.read()[-3000:]


class Host:
    """`quota`: bytes of the container on the first of two cards; the second is not the container's."""

    def __init__(self, python: str, quota: int, memory: int = 4096 * MIB, libraries: str = ""):
        self.python, self.quota, self.libraries = python, quota, libraries
        self.programs: list[Program] = []
        self._directory = tempfile.TemporaryDirectory(prefix="fractile-programs-")
        root = Path(self._directory.name)
        self.simgpu, self.container = root / "simgpu", root / "fractile"
        self.simgpu.mkdir()
        self.container.mkdir()
        card = {"uuid": CARD, "index": 0, "model": "NVIDIA A100-SXM4-40GB", "memoryMiB": memory // MIB}
        card |= {"pciBusID": "00000000:07:00.0", "smCount": 108, "contextMiB": CONTEXT // MIB}
        card |= {"pcie": 4, "lanes": 16, "numa": 0}
        other = card | {"uuid": CARD[:-1] + "2", "index": 1, "pciBusID": "00000000:0F:00.0"}
        (self.simgpu / "cards.json").write_text(json.dumps([card, other]))
        slice_of = f"{CARD}={quota // MIB}MiB,context={CONTEXT // MIB}MiB"
        subprocess.run(
            [str(SLICE), "create", str(self.container), "--card", slice_of], check=True, stdout=subprocess.DEVNULL
        )

    def __enter__(self) -> "Host":
        return self

    def __exit__(self, *_: object) -> None:
        for program in self.programs:
            program.kill()
        self._directory.cleanup()

    def environment(self, **more: str) -> dict[str, str]:
        keep = {
            name: value
            for name, value in os.environ.items()
            if name == "SIMGPU_POLICY" or not name.startswith(("SIMGPU_", "FRACTILE_", "LD_", "PYTHON"))
        }
        keep |= {"SIMGPU_DIR": str(self.simgpu), "FRACTILE_DIR": str(self.container), "LD_PRELOAD": str(LIBRARY)}
        keep |= {"LD_LIBRARY_PATH": f"{self.libraries}{OUT / 'simgpu'}", "SIMGPU_CONTAINER": "programs"}
        return keep | more

    def run(self, script: str, deadline: float = 60, **environment: str) -> Program:
        return self.command([self.python, "-c", PRELUDE + script], deadline, **environment)

    def command(self, command: Sequence[str], deadline: float = 60, **environment: str) -> Program:
        program = Program(command, self.environment(**environment), deadline)
        self.programs.append(program)
        return program

    # ---- the judge ----

    def _ledger(self) -> dict[str, Any]:
        shown = subprocess.run(
            [str(CTL), "json"], check=True, capture_output=True, env=dict(os.environ, SIMGPU_DIR=str(self.simgpu))
        )
        return json.loads(shown.stdout)

    def _card(self) -> dict[str, int]:
        containers = [c for c in self._ledger()["containers"] if c["name"] == "programs"]
        return containers[0]["cards"].get(CARD, {"now": 0, "peak": 0}) if containers else {"now": 0, "peak": 0}

    def now(self) -> int:
        return self._card()["now"]

    def peak(self) -> int:
        return self._card()["peak"]

    def foreign(self) -> int:
        """The peak of the other card, of which the container must hold nothing."""
        return self._ledger()["cards"][1]["peak"]

    def kernels_ns(self) -> int:
        return sum(p["gpuNs"] for p in self._ledger()["processes"])
