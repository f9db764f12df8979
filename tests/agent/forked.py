"""Agents as processes that can be killed at any line: forked, since a thousand of them are started.

    ``with agents() as fork: life = fork.start(world); ...; life.kill()``    the test's side
    ``python -m tests.agent.forked``                                         the program that forks them

The program imports everything once and then forks an agent for every line that it reads. An agent that gets SIGUSR1
begins to count the lines of Python that it executes on the way of a pod (``WAY``) and kills itself with SIGKILL at the
one that a file names; with SIGUSR2 it writes down how many there were. So every line is a point to die at, and nothing
of this is in the product.
"""

import asyncio
import contextlib
import ctypes
import gc
import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import IO, Any

import msgspec

from fractile.agent.deviceplugin import (
    allocate,
    assigned,
    plugin,
    precedence,
    preferred_allocation,
    preferred_ids,
    prestart,
)
from fractile.agent.kubelet import identity, kubelet_state, owner
from fractile.agent.limits import enforce, journal, limits_writer, slices
from fractile.agent.node import pods
from fractile.main import agent as agent_program
from fractile.main.node.options import AgentOptions
from fractile.model.units import MemoryUnit
from fractile.nvml.simulated import SimulatedDriver
from fractile.region import directory, live, page, shared
from tests.agent.world import NODE, World, adapter

WAY = frozenset(
    str(module.__file__)
    for module in (
        allocate, assigned, enforce, identity, journal, kubelet_state, limits_writer, owner, plugin, pods, precedence,
        preferred_allocation, preferred_ids, prestart, slices,
        directory, live, page, shared,
    )
)  # fmt: skip
_PR_SET_PDEATHSIG = 1  # prctl(2)


class Order(msgspec.Struct, frozen=True):
    """What the agent is started with."""

    root: str
    kubeconfig: str
    cards: str
    plugins: str
    pod_resources: str
    unit: str
    wait: float
    adapters: tuple[int, ...] = ()  # how many share each of the node's non-GPU devices


@dataclass
class Life:
    """One agent."""

    pid: int
    counted: Path
    aim: Path
    armed: Path

    @property
    def alive(self) -> bool:
        try:
            fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            return False
        return fields[0] != "Z"

    def arm(self, *, die_at: int = 0) -> None:
        """From here on lines are counted; ``die_at``: the one to die at, 0: none."""
        self.armed.unlink(missing_ok=True)
        _write(self.aim, die_at)
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGUSR1)

    async def disarm(self, *, seconds: float = 20.0) -> None:
        """When this returns it has died, or dies at no line any more: until then it may, since a signal takes time."""
        self.arm()
        async with asyncio.timeout(seconds):
            while self.alive and not self.armed.exists():  # noqa: ASYNC110
                await asyncio.sleep(0.002)

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)

    async def dead(self, *, seconds: float = 20.0) -> None:
        async with asyncio.timeout(seconds):
            while self.alive:  # noqa: ASYNC110
                await asyncio.sleep(0.005)

    async def lines(self) -> int:
        """How many lines of the way there were since ``arm``."""
        os.kill(self.pid, signal.SIGUSR2)
        async with asyncio.timeout(20):
            while not self.counted.exists():  # noqa: ASYNC110
                await asyncio.sleep(0.005)
        return int(self.counted.read_text())


@dataclass
class Fork:
    """Starts agents."""

    process: subprocess.Popen[bytes]

    def start(self, w: World, *, wait: float = 20.0) -> Life:
        """``wait``: seconds that PreStart waits for the control plane to confirm kubelet's choice."""
        counted = w.root / "counted"
        counted.unlink(missing_ok=True)
        order = Order(
            root=str(w.root),
            kubeconfig=str(w.server.write_kubeconfig(w.root / "kubeconfig")),
            cards=str(w.write_cards()),
            plugins=str(w.kubelet.plugin_directory),
            pod_resources=str(w.kubelet.pod_resources_socket),
            unit=w.unit.name,
            wait=wait,
            adapters=tuple(o.device.shares for o in w.others),
        )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(msgspec.json.encode(order) + b"\n")
        self.process.stdin.flush()
        return Life(int(self.process.stdout.readline()), counted, w.root / "aim", w.root / "armed")


def _write(file: Path, number: int) -> None:
    """A reader sees this number or the one before."""
    staging = file.with_suffix(".new")
    staging.write_text(str(number))
    staging.rename(file)


@contextmanager
def agents() -> Generator[Fork]:
    """The program that forks; its agents end with it, and it with us."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.agent.forked"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        yield Fork(process)
    finally:
        assert process.stdin is not None
        process.stdin.close()
        try:
            process.wait(20)
        finally:
            process.kill()
            assert process.stdout is not None
            process.stdout.close()


# The program


def _main(orders: IO[bytes]) -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel buries them
    _die_with_parent()
    gc.collect()
    gc.freeze()  # a collection in an agent would touch, and so copy, all the pages that it shares with us
    while line := orders.readline():
        order = msgspec.json.decode(line, type=Order)
        pid = os.fork()
        if pid == 0:
            _agent(order)
        print(pid, flush=True)


def _agent(order: Order) -> None:
    """Never returns."""
    try:
        _die_with_parent()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        log = os.open(f"{order.root}/agent.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        nothing = os.open(os.devnull, os.O_RDONLY)
        for ours, standard in ((nothing, 0), (log, 1), (log, 2)):
            os.dup2(ours, standard)
        random.seed()
        prestart._WAIT = order.wait  # pyright: ignore[reportPrivateUsage]  # 20 s for each kill
        _Counter(Path(order.root))
        agent_program.set_up_logging("info")
        asyncio.run(
            agent_program.run(
                SimulatedDriver(Path(order.cards)),
                AgentOptions(
                    node=NODE,
                    kubeconfig=Path(order.kubeconfig),
                    unit=MemoryUnit[order.unit],
                    plugins=Path(order.plugins),
                    pod_resources=Path(order.pod_resources),
                    state=Path(order.root) / "state",
                    others=[adapter(n, shares) for n, shares in enumerate(order.adapters)],
                ),
            )
        )
    finally:
        os._exit(1)


class _Counter:
    """Counts lines of the way in all threads, from SIGUSR1 on."""

    def __init__(self, root: Path) -> None:
        self._file = root / "counted"
        self._aim = root / "aim"
        self._ready = root / "armed"
        self._die_at = 0
        self._armed = False
        self._lines = 0
        threading.settrace(self._called)
        signal.signal(signal.SIGUSR1, self._arm)
        signal.signal(signal.SIGUSR2, self._tell)

    def _arm(self, _number: int, _frame: FrameType | None) -> None:
        self._lines = 0
        self._die_at = int(self._aim.read_text())
        self._armed = True
        sys.settrace(self._called)
        if not self._die_at:
            self._ready.touch()

    def _tell(self, _number: int, _frame: FrameType | None) -> None:
        _write(self._file, self._lines)

    def _called(self, frame: FrameType, _event: str, _argument: Any) -> Any:
        return self._line if self._armed and frame.f_code.co_filename in WAY else None

    def _line(self, _frame: FrameType, event: str, _argument: Any) -> Any:
        if event == "line":
            self._lines += 1
            if self._lines == self._die_at:
                os.kill(os.getpid(), signal.SIGKILL)
        return self._line


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))


if __name__ == "__main__":
    _main(sys.stdin.buffer)
