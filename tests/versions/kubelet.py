"""Kubelet played as far as one static pod goes: it runs the real kube-scheduler as its manifest says.

The program gets the manifest's words, and sees the node's ``/etc`` in place of this machine's, in a mount namespace of
its own. It is ended when the manifest changes, and started again when it has ended. What it says becomes the pod's log.
"""

import asyncio
import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from fractile.wire.foreign import static_pod

_LOOK = 0.2  # seconds
_ENTER = 'mount --bind "$0" /etc && exec "$@"'


class Node:
    """The files of a control-plane node below ``root``, and what runs of them."""

    def __init__(self, root: Path, program: Path) -> None:
        self.root = root
        self.manifest = root / "etc/kubernetes/manifests/kube-scheduler.yaml"
        self.starts = 0
        self._program = program
        self._logs = root / "var/log/pods/kube-system_kube-scheduler-node_0/kube-scheduler"

    async def run(self) -> None:
        """Until it is cancelled; nothing that it has started outlives that."""
        process: asyncio.subprocess.Process | None = None
        running = ""
        try:
            while True:
                text = self.manifest.read_text()
                if process is not None and (text != running or process.returncode is not None):
                    process = await _ended(process)
                if process is None:
                    process, running = await self._start(static_pod.read(text).command), text
                await asyncio.sleep(_LOOK)
        finally:
            if process is not None:
                await _ended(process)

    async def _start(self, command: tuple[str, ...]) -> asyncio.subprocess.Process:
        self._logs.mkdir(parents=True, exist_ok=True)
        path = os.pathsep.join((str(self._program.parent), os.environ["PATH"]))
        with (self._logs / f"{self.starts}.log").open("wb") as log:
            self.starts += 1
            return await asyncio.create_subprocess_exec(
                *("setpriv", "--pdeathsig", "KILL", "unshare", "--mount", "sh", "-c", _ENTER),
                *(str(self.root / "etc"), *command),
                stdout=log,
                stderr=log,
                env={**os.environ, "PATH": path},
            )


async def _ended(process: asyncio.subprocess.Process) -> None:
    with suppress(ProcessLookupError):
        process.kill()
    await asyncio.wait_for(process.wait(), 30)


@asynccontextmanager
async def running(node: Node) -> AsyncGenerator[None]:
    """Kubelet beside the block."""
    async with asyncio.TaskGroup() as group:
        kubelet = group.create_task(node.run())
        try:
            yield
        finally:
            kubelet.cancel()
