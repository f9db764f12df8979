"""A simulated host with tenants: programs that use its cards, in a container's view of its files or in none."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from fractile.model.card import Card

CONTEXT_MIB = 256
# Holds so many MiB (an even number) on its first card until its input ends; says so, or the driver's error.
TENANT = """
import ctypes, sys
cuda = ctypes.CDLL("libcuda.so.1")
device, context, at = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_uint64()
error = cuda.cuInit(0) or cuda.cuDeviceGet(ctypes.byref(device), 0)
error = error or cuda.cuCtxCreate_v2(ctypes.byref(context), 0, device)
error = error or cuda.cuMemAlloc_v2(ctypes.byref(at), ctypes.c_size_t(int(sys.argv[1]) << 20))
print(error, flush=True)
sys.stdin.read()
"""
# The files of a container: an /etc of its own, in a mount namespace of its own.
_ENTER = 'mount -t tmpfs none /etc && mkdir /etc/fractile && mount --bind "$1" /etc/fractile && shift && exec "$@"'


@dataclass
class SimHost:
    """``folder`` is SIMGPU_DIR; ``native`` has the library and simgpu."""

    native: Path
    folder: Path
    running: list[asyncio.subprocess.Process] = field(default_factory=list[asyncio.subprocess.Process])

    def write_cards(self, cards: Sequence[Card]) -> None:
        entries = [
            {"uuid": c.uuid, "index": c.index, "model": c.model, "memoryMiB": c.memory, "pciBusID": c.pci_bus_id}
            | {"contextMiB": CONTEXT_MIB}
            for c in cards
        ]
        (self.folder / "cards.json").write_text(json.dumps(entries))

    @property
    def environment(self) -> dict[str, str]:
        return {"SIMGPU_DIR": str(self.folder), "LD_LIBRARY_PATH": str(self.native / "simgpu")}

    async def tenant(self, mib: int, *, token: Path | None = None, library: bool = True) -> int:
        """The pid of a process that holds so many MiB. ``token``: it sees this directory at /etc/fractile."""
        return await self.start([sys.executable, "-c", TENANT, str(mib)], b"0", token=token, library=library)

    async def start(
        self,
        program: list[str],
        ready: bytes,
        *,
        token: Path | None,
        library: bool = True,
        environment: Mapping[str, str] | None = None,
    ) -> int:
        """The same for any program; it has begun when its first line starts with ``ready``."""
        if token is not None:
            preload = [f"LD_PRELOAD={self.native / 'libfractile.so'}"] if library else []
            program = [
                *("unshare", "--mount", "--propagation", "private", "sh", "-c", _ENTER, "sh", str(token)),
                *("env", *preload, *program),
            ]
        process = await asyncio.create_subprocess_exec(
            *("setpriv", "--pdeathsig", "KILL", *program),
            env={**os.environ, **self.environment, **(environment or {})},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self.running.append(process)
        assert process.stdout is not None
        said = await asyncio.wait_for(process.stdout.readline(), 30)
        assert said.startswith(ready), f"it said {said!r}"
        return process.pid

    async def end(self, *pids: int) -> None:
        """End these tenants; all without names."""
        for process in [p for p in self.running if not pids or p.pid in pids]:
            self.running.remove(process)
            if process.returncode is None:
                process.kill()
            await process.wait()


@asynccontextmanager
async def sim_host(native: Path, folder: Path, cards: Sequence[Card]) -> AsyncGenerator[SimHost]:
    folder.mkdir()  # noqa: ASYNC240
    host = SimHost(native, folder)
    host.write_cards(cards)
    try:
        yield host
    finally:
        await host.end()
