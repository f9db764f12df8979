"""Where the time goes: profiles of kube-scheduler, kube-apiserver and control plane, taken in the middle of a round.

The first two are read with `go tool pprof -top FILE`.
"""

import asyncio
import shutil
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from fractile.lab.machine import processes
from tests.load.scenarios import Scenario

if TYPE_CHECKING:
    from tests.load.programs import Cluster

_DELAY = 3.0  # seconds after the first pod


class Profiles(msgspec.Struct, frozen=True):
    """``folder``: where to put them; None: nothing is profiled, since that costs."""

    folder: Path | None = None
    seconds: int = 10

    @asynccontextmanager
    async def taken(self, cluster: "Cluster", row: Scenario, number: int) -> AsyncGenerator[None]:
        if self.folder is None:
            yield
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        async with asyncio.TaskGroup() as tasks:
            some = [
                tasks.create_task(self._go(cluster, f"{row.name}-{number}-scheduler", cluster.state.ports.scheduler)),
                tasks.create_task(self._go(cluster, f"{row.name}-{number}-apiserver", cluster.state.ports.apiserver)),
                tasks.create_task(self._python(cluster, row, number)),
            ]
            yield
            for one in some:
                one.cancel()

    async def _go(self, cluster: "Cluster", name: str, port: int) -> None:
        """Of a program that is written in Go, by its own word."""
        assert self.folder is not None
        await asyncio.sleep(_DELAY)
        url = f"https://127.0.0.1:{port}/debug/pprof/profile?seconds={self.seconds}"
        data = await cluster.fetch(url, timeout=self.seconds + 20)
        (self.folder / f"{name}.pprof").write_bytes(data)

    async def _python(self, cluster: "Cluster", row: Scenario, number: int) -> None:
        """py-spy, where it is installed: lines of stacks and how often each was seen."""
        assert self.folder is not None
        process = processes.running(cluster.place.record("control-plane"))
        program = shutil.which("py-spy")
        if process is None or program is None:
            return
        await asyncio.sleep(_DELAY)
        out = self.folder / f"{row.name}-{number}-control-plane.txt"
        spy = await asyncio.create_subprocess_exec(
            *(program, "record", "--pid", str(process.pid), "--duration", str(self.seconds), "--rate", "200"),
            *("--format", "raw", "--output", str(out)),
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
        )
        try:
            async with asyncio.timeout(self.seconds + 20):
                await spy.wait()
        finally:
            with suppress(ProcessLookupError):
                spy.kill()
