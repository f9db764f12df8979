"""The control plane besieged at its full size: 5,000 nodes, 50,000 pods, 3,000 slow connections and 64 hostile bodies.

A played kube-scheduler goes on meanwhile: filter with 5,000 names and prioritize over its kept connection, bind over a
new one each, and now and then a filter with 5,000 whole nodes. The besiegers come from eight addresses that are not
kube-scheduler's, as pods do. They and the player share the cores of the control plane.
"""

import asyncio
import os
import ssl
import sys
import tempfile
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from tests.builders import container, pod
from tests.fakes.http1 import Exchange
from tests.main.process import Running, control_plane, free_port
from tests.perf.measuring.beat import used
from tests.perf.measuring.report import Row
from tests.perf.measuring.world import NAMES
from tests.perf.memory import ListServer, memory_of, processor_of
from tests.serving.scheduler_client import Authorities, SchedulerClient
from tests.serving.siege import besieged

SLOW, BODIES = 3_000, 64
ROUNDS = 150
RSS, STALL, P99 = 400.0, 200.0, 50.0  # MB, ms, ms
LEASE = "default/fractile"
HOSTS = [f"127.0.0.{i}" for i in range(2, 10)]
_NODE_SIZE = 9_000  # bytes of a whole node


class Cluster(ListServer):
    """The same with a Lease, and with pods that are asked for one by one."""

    def __init__(self) -> None:
        super().__init__()
        self._lease: dict[str, Any] = {}
        self._version = 0

    async def _answer(self, exchange: Exchange) -> None:
        parts = exchange.path.split("/")
        if "leases" in parts:
            await self._answer_lease(exchange)
        elif exchange.method == "GET" and parts[-2] == "pods":
            await exchange.answer(200, msgspec.json.encode(asked_pod(parts[-1])))
        else:
            await super()._answer(exchange)

    async def _answer_lease(self, exchange: Exchange) -> None:
        if exchange.method == "GET" and not self._lease:
            await exchange.answer(404, b'{"kind":"Status","code":404,"reason":"NotFound","message":"not found"}')
            return
        if exchange.method != "GET":
            self._version += 1
            self._lease = msgspec.json.decode(exchange.body)
            self._lease["metadata"]["resourceVersion"] = str(self._version)
        await exchange.answer(200, msgspec.json.encode(self._lease))


def asked_pod(name: str) -> dict[str, Any]:
    made: dict[str, Any] = msgspec.to_builtins(pod(name, container(memory=1)))
    made["metadata"]["uid"] = f"uid-{name}"
    return made


async def measure() -> list[Row]:
    with tempfile.TemporaryDirectory(prefix="fractile-bench-") as folder:
        async with Cluster().running(Path(folder)) as kubeconfig:
            known, port = Authorities(Path(folder)), free_port()
            options = (*known.options, f"--listen=127.0.0.1:{port}", f"--lease={LEASE}")
            async with control_plane(kubeconfig, Path(folder), *options) as running:
                scheduler = SchedulerClient(port, known.trust(), partial(used, running.pid))
                await scheduler.until_ready(180)
                before = Round(await _round(running, scheduler, known.trust("")))
                print(f"  in peace: {before.shown}", file=sys.stderr, flush=True)
                scheduler.close()  # and another one gets in meanwhile
                async with besieged(port, slow=SLOW, bodies=BODIES, hosts=HOSTS):
                    await asyncio.sleep(3)
                    scheduler = SchedulerClient(port, known.trust(), partial(used, running.pid))
                    during = Round(await _round(running, scheduler, known.trust("")))
                lost = running.log.read_text().count("lead lost")
    return [
        *_rows("in peace", before, bars=False),
        *_rows("besieged", during, bars=True),
        Row("lead lost", lost, "", 0),
    ]


class Round:
    """What one round showed: ``taken`` by verb, in ms, in order."""

    def __init__(self, found: dict[str, Any]) -> None:
        self.taken: dict[str, list[float]] = {v: sorted(t * 1e3 for t in times) for v, times in found["taken"].items()}
        self.used: dict[str, list[float]] = {v: sorted(t * 1e3 for t in times) for v, times in found["used"].items()}
        self.resident: float = found["resident"]
        self.wait: float = found["wait"] * 1e3
        self.stall: float = found["stall"] * 1e3
        self.descriptors: int = found["descriptors"]
        self.processor: float = found["processor"]

    @property
    def shown(self) -> str:
        medians = ", ".join(f"{verb} {taken[len(taken) // 2]:.1f} ms" for verb, taken in self.taken.items())
        return f"{medians}, RSS {self.resident:.0f} MB, {self.stall:.0f} ms stalled, {self.descriptors} descriptors"


async def _round(running: Running, scheduler: SchedulerClient, stranger: ssl.SSLContext) -> dict[str, Any]:
    """Verbs one after the other; every tenth pod is asked about with whole nodes."""
    names = msgspec.json.encode(NAMES)
    whole = b",".join(_whole(name) for name in NAMES)
    resident, descriptors = 0.0, 0
    began, processor = time.monotonic(), processor_of(running.pid)
    probe = SchedulerClient(scheduler.port, stranger)
    async with _beating(scheduler.port, running.pid) as longest:
        for number in range(ROUNDS):
            name = f"siege-{os.getpid()}-{time.monotonic_ns()}"
            asked = msgspec.json.encode(asked_pod(name))
            answer = await scheduler.ask("filter", b'{"Pod":%b,"NodeNames":%b}' % (asked, names))
            fitting = msgspec.json.encode(answer["NodeNames"])
            scores = await scheduler.ask("prioritize", b'{"Pod":%b,"NodeNames":%b}' % (asked, fitting))
            best = max(scores, key=lambda one: one["Score"])["Host"]
            assert await scheduler.bind(name, f"uid-{name}", best) == ""
            if number % 50 == 49:
                body = b'{"Pod":%b,"Nodes":{"items":[%b]},"NodeNames":null}' % (asked, whole)
                assert (await scheduler.ask("filter", body, label="filter, 46 MB"))["Nodes"]["items"]
            if number % 20 == 0:
                assert (await probe.get("/readyz"))[0] == 200
            resident = max(resident, memory_of(running.pid)[0])
            descriptors = max(descriptors, len(os.listdir(f"/proc/{running.pid}/fd")))
            await asyncio.sleep(0.02)
    share = (processor_of(running.pid) - processor) / (time.monotonic() - began)
    return {
        "taken": scheduler.taken,
        "used": scheduler.used,
        "resident": max(resident, memory_of(running.pid)[0]),
        "wait": longest[0],
        "stall": longest[1],
        "descriptors": descriptors,
        "processor": share * 100,
    }


@asynccontextmanager
async def _beating(port: int, pid: int) -> AsyncGenerator[list[float]]:
    """When the block is left, the longest wait of a small request, and the loop's own part of it, in seconds."""
    process = await asyncio.create_subprocess_exec(
        *("setpriv", "--pdeathsig", "KILL", sys.executable, "-m", "tests.perf.measuring.beat", *(str(port), str(pid))),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    found: list[float] = []
    yield found
    said, _ = await process.communicate(b"")  # closes its standard input
    found.extend(map(float, said.split()))


def _whole(name: str) -> bytes:
    images = ",".join(
        f'{{"names":["registry.example/app-{i}@sha256:{"0" * 64}"],"sizeBytes":{10**8 + i}}}'
        for i in range(_NODE_SIZE // 125)
    )
    return f'{{"metadata":{{"name":"{name}"}},"status":{{"images":[{images}]}}}}'.encode()


def _p99(ordered: list[float]) -> float:
    return ordered[min(len(ordered) - 1, len(ordered) * 99 // 100)]


def _rows(when: str, found: Round, *, bars: bool) -> list[Row]:
    note = f"{SLOW} slow connections, {BODIES} bodies of 52 MiB; 5,000 nodes, 50,000 pods" if bars else ""
    rows: list[Row] = []
    for verb, taken in found.taken.items():
        bar = P99 if bars and "MB" not in verb else None
        rows += [
            Row(f"{when}: {verb}, p99 (median {taken[len(taken) // 2]:.1f} ms)", _p99(taken), "ms", bar, note),
            Row(f"{when}: the control plane's processor time meanwhile, p99", _p99(found.used[verb]), "ms"),
        ]
    return [
        *rows,
        Row(f"{when}: RSS at its most", found.resident, "MB", RSS if bars else None),
        Row(f"{when}: longest wait of GET /healthz, asked every 5 ms", found.wait, "ms"),
        Row(f"{when}: most processor time of the loop meanwhile", found.stall, "ms", STALL if bars else None),
        Row(f"{when}: descriptors", found.descriptors, ""),
        Row(f"{when}: processor time of the control plane", found.processor, "% of a core"),
    ]
