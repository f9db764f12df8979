"""What the programs hold in memory: real processes against a server that lists a whole cluster."""

import asyncio
import json
import os
import random
import sys
import tempfile
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from itertools import islice
from pathlib import Path

import msgspec

from fractile.model.units import MemoryUnit
from tests.fakes.apiserver import FakeApiServer
from tests.fakes.http1 import Exchange, Server
from tests.fakes.kubelet import FakeKubelet
from tests.main.process import PROGRAM, control_plane
from tests.perf.measuring.report import Row
from tests.perf.measuring.world import CARDS, card_objects, card_of, node_objects, pod_objects

PODS = 50_000
CONTROL_PLANE = 400.0  # MB
AGENT = 60.0  # MB
_VERSION = "900000"


Make = Callable[[], Iterator[bytes]]


class ListServer:
    """Lists that are made while they are read, and watches that say nothing: a cluster at rest, in little memory.

    ``collections``: what the lists of these plural names hold; the others are empty. ``writes`` are answered and noted.
    """

    def __init__(self, collections: Mapping[str, Make] | None = None) -> None:
        self.writes: list[str] = []
        self._collections = dict(
            collections or {"extendedresources": card_objects, "pods": lambda: pod_objects(PODS), "nodes": node_objects}
        )
        self._server = Server(self._answer)
        self._rest: dict[str, Iterator[bytes]] = {}

    @asynccontextmanager
    async def running(self, folder: Path) -> AsyncGenerator[Path, None]:
        """A kubeconfig for it."""
        await self._server.start()
        config = {
            "current-context": "bench",
            "clusters": [{"name": "bench", "cluster": {"server": f"http://127.0.0.1:{self._server.port}"}}],
            "contexts": [{"name": "bench", "context": {"cluster": "bench"}}],
        }
        (folder / "kubeconfig").write_text(json.dumps(config))
        try:
            yield folder / "kubeconfig"
        finally:
            await self._server.stop()

    async def _answer(self, exchange: Exchange) -> None:
        if exchange.query.get("watch"):
            await exchange.begin()
            await asyncio.Event().wait()
        if exchange.method != "GET":
            self.writes.append(f"{exchange.method} {exchange.path}")
            await exchange.answer(200, b"{}")
            return
        make = self._collections.get(exchange.path.rpartition("/")[2], lambda: iter(()))
        if not exchange.query.get("continue"):
            self._rest[exchange.path] = make()
        page = list(islice(self._rest[exchange.path], int(exchange.query.get("limit", "500"))))
        more = f',"continue":"{exchange.path}"' if page else ""
        meta = f'{{"metadata":{{"resourceVersion":"{_VERSION}"{more}}},"items":['
        await exchange.answer(200, meta.encode() + b",".join(page) + b"]}")


async def measure() -> list[Row]:
    with tempfile.TemporaryDirectory(prefix="fractile-bench-") as folder:
        rows = await _control_plane(Path(folder))
        for unit, size in ((MemoryUnit.GiB, 16_384), (MemoryUnit.MiB, 7_400)):  # MiB: just below 60,000 ids
            place = Path(folder) / unit.name
            place.mkdir()
            rows.append(await _agent(place, unit, size))
        return rows


async def _control_plane(folder: Path) -> list[Row]:
    async with ListServer().running(folder) as kubeconfig, control_plane(kubeconfig, folder) as running:
        await running.ready(seconds=120)
        processor = processor_of(running.pid)
        await asyncio.sleep(1)
        ready = next(line for line in running.log.read_text().splitlines() if " ready pods=" in line)
        assert f"pods={PODS} " in ready, ready
        resident, peak = memory_of(running.pid)
        return [
            Row(
                "control plane: RSS",
                resident,
                "MB",
                CONTROL_PLANE,
                "5,000 nodes x 8 cards, 50,000 pods, each on a card",
            ),
            Row("control plane: peak RSS", peak, "MB"),
            Row(
                "control plane: seconds to ready", float(ready.rpartition("seconds=")[2]), "s", None, "lists, over HTTP"
            ),
            Row("control plane: processor time until ready", processor, "s", None, "of it alone, from exec"),
        ]


async def _agent(folder: Path, unit: MemoryUnit, size: int) -> Row:
    """The agent at rest on a node with CARDS cards of ``size`` MiB, with the ids that the unit makes of them."""
    file = folder / "cards.json"
    cards = [card_of(0, slot) for slot in range(CARDS)]
    file.write_bytes(
        msgspec.json.encode(
            [
                {"uuid": c.uuid, "index": c.index, "model": c.model, "memoryMiB": size, "pciBusID": c.pci_bus_id}
                for c in cards
            ]
        )
    )
    async with FakeApiServer() as server, FakeKubelet(folder / "kubelet", rng=random.Random(3)) as kubelet:
        server.create("/api/v1/nodes", {"metadata": {"name": "n1"}})
        process = await asyncio.create_subprocess_exec(
            *("setpriv", "--pdeathsig", "KILL", sys.executable, "-c", PROGRAM, "agent", "--node-name", "n1"),
            *("--kubeconfig", str(server.write_kubeconfig(folder / "agent.kubeconfig")), "--memory-unit", unit.name),
            *("--device-plugin-dir", str(kubelet.plugin_directory), "--state-dir", str(folder / "state")),
            *("--pod-resources-socket", str(kubelet.pod_resources_socket), "--simulated-cards", str(file)),
            "--metrics-address=127.0.0.1:0",
            stdout=asyncio.subprocess.DEVNULL,
            stderr=(folder / "agent.log").open("wb"),
            env=dict(os.environ),
        )
        try:
            await kubelet.registered("aliyun.com/gpu-count", CARDS)
            await asyncio.sleep(3)
            resident, _ = memory_of(process.pid)
        finally:
            process.kill()
            await process.wait()
    note = f"{CARDS} cards of {size} MiB, unit {unit.name}, {CARDS * (size // unit):,} ids registered"
    return Row(f"agent: RSS at rest, unit {unit.name}", resident, "MB", AGENT, note)


def memory_of(pid: int) -> tuple[float, float]:
    """Resident and peak resident memory in MB (10^6 bytes)."""
    fields = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines() if ":" in line)
    return _megabytes(fields["VmRSS"]), _megabytes(fields["VmHWM"])


def processor_of(pid: int) -> float:
    """Seconds of processor time that a process has used, its own and the kernel's for it (proc(5), stat)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _megabytes(text: str) -> float:
    return int(text.split()[0]) * 1024 / 1e6
