"""A node whose agent is the real program with simgpu's NVML, between a fake API server and a fake kubelet."""

import asyncio
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx2
import msgspec

from fractile.model.card import Card
from fractile.region import directory
from fractile.wire.kubernetes.objects import Pod
from fractile.wire.output import node_usage
from fractile.wire.output.node_usage import NodeUsage
from tests.agent.simgpu import CONTEXT_MIB, SimHost, sim_host
from tests.agent.world import CARDS, NODE, Asks, World, world

PROGRAM = "from fractile.main.cli import main; main()"
LISTENING = re.compile(r"listening address=127\.0\.0\.1:(\d+)")


@dataclass
class Node:
    """The agent as a program of its own, with simgpu's NVML as its driver."""

    world: World
    host: SimHost
    process: asyncio.subprocess.Process
    log: Path
    http: httpx2.AsyncClient

    async def usage(self) -> NodeUsage:
        return node_usage.decode((await self.http.get("/v1/usage")).content)

    async def until(self, right: Callable[[NodeUsage], bool], *, seconds: float = 20) -> NodeUsage:
        async with asyncio.timeout(seconds):
            while True:
                usage = await self.usage()
                if right(usage):
                    return usage
                await asyncio.sleep(0.05)

    async def container(self, gib: int, name: str = "", *, card: Card = CARDS[0]) -> tuple[Pod, Path]:
        """A started pod with one container, and its token directory."""
        pod = self.world.admit(Asks("main", gib), on={"main": [card]}, name=name)
        async with asyncio.timeout(60):
            while (started := self.world.kubelet.started(pod, "main")) is None:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        return pod, Path(started.mounts[directory.MOUNT])

    def events(self, reason: str) -> list[str]:
        """The pods that got such an event."""
        return [e["involvedObject"]["name"] for e in self.world.server.all("/api/v1/events") if e["reason"] == reason]


@asynccontextmanager
async def node(native: Path, *options: str, cards: Sequence[Card] = CARDS, model: str = "") -> AsyncGenerator[Node]:
    """``model``: of all cards, where it matters to simgpu which."""
    folder = Path(tempfile.mkdtemp(prefix="fr-"))
    try:
        async with (
            sim_host(native, folder / "sim", _named(cards, model)) as host,
            world(agent=False, cards=list(cards)) as w,
        ):
            log = folder / "agent.log"
            with log.open("wb") as out:
                process = await asyncio.create_subprocess_exec(
                    *("setpriv", "--pdeathsig", "KILL", sys.executable, "-c", PROGRAM, "agent"),
                    f"--node-name={NODE}",
                    f"--kubeconfig={w.server.write_kubeconfig(w.root / 'kubeconfig')}",
                    "--memory-unit=GiB",
                    f"--device-plugin-dir={w.kubelet.plugin_directory}",
                    f"--pod-resources-socket={w.kubelet.pod_resources_socket}",
                    f"--state-dir={w.root / 'state'}",
                    f"--library-dir={native}",
                    f"--simgpu-dir={host.folder}",
                    f"--context-memory={CONTEXT_MIB}",
                    "--metrics-address=127.0.0.1:0",
                    *options,
                    env={**os.environ, **host.environment},
                    stdout=out,
                    stderr=subprocess.STDOUT,
                )
            try:
                await w.ready()
                port = await _port(log)
                async with httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}", trust_env=False) as http:
                    yield Node(w, host, process, log, http)
            finally:
                if process.returncode is None:
                    process.terminate()
                await asyncio.wait_for(process.wait(), 20)
    finally:
        shutil.rmtree(folder)


def _named(cards: Sequence[Card], model: str) -> list[Card]:
    return [msgspec.structs.replace(c, model=model or c.model) for c in cards]


async def _port(log: Path) -> int:
    async with asyncio.timeout(20):
        while (found := LISTENING.search(log.read_text())) is None:  # noqa: ASYNC110, ASYNC240
            await asyncio.sleep(0.05)
    return int(found[1])
