"""The real program ``fractile control-plane`` as a process of its own, for tests and benchmarks."""

import asyncio
import socket
import sys
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import httpx2

PROGRAM = "from fractile.main.cli import main; main()"
CONTROL_PLANE = (sys.executable, "-c", PROGRAM, "control-plane")


class Running:
    """A control plane's process and where it listens."""

    def __init__(self, process: asyncio.subprocess.Process, url: str, log: Path) -> None:
        self.process = process
        self.url = url
        self.log = log

    @property
    def pid(self) -> int:
        return self.process.pid

    async def ready(self, seconds: float = 60) -> None:
        """Wait until it says that its ledger is rebuilt."""
        async with asyncio.timeout(seconds), httpx2.AsyncClient(base_url=self.url, trust_env=False) as http:
            while True:
                if self.process.returncode is not None:
                    raise AssertionError(f"it ended with {self.process.returncode}:\n{self.log.read_text()}")
                try:
                    if (await http.get("/readyz")).status_code == 200:
                        return
                except httpx2.TransportError:
                    pass
                await asyncio.sleep(0.02)

    async def ended(self, seconds: float = 30) -> int:
        async with asyncio.timeout(seconds):
            return await self.process.wait()


@asynccontextmanager
async def control_plane(
    kubeconfig: Path, folder: Path, *arguments: str, program: Sequence[str] = CONTROL_PLANE
) -> AsyncGenerator[Running, None]:
    """Start it; it is killed, by pid, when the block is left, and by the kernel when this process dies. It is the only
    replica unless a ``--lease`` is given: a lease would outlive it for its duration. Its extender is open, unless a
    ``--client-ca`` is given."""
    port = free_port()
    alone = () if any(a.startswith("--lease") for a in arguments) else ("--lease=",)
    door = () if any(a.startswith("--client-ca") for a in arguments) else ("--insecure-open-extender",)
    log = folder / f"control-plane-{port}.log"
    with log.open("wb") as out:
        process = await asyncio.create_subprocess_exec(
            *("setpriv", "--pdeathsig", "KILL", *program),
            *(
                "--kubeconfig",
                str(kubeconfig),
                "--listen",
                f"127.0.0.1:{port}",
                *alone,
                *door,
                *arguments,
            ),
            stdout=out,
            stderr=out,
        )
    try:
        yield Running(process, f"http://127.0.0.1:{port}", log)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]
