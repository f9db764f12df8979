"""What a pod's calls cost the control plane as it runs: a process with TLS and client certificates, asked by a played
kube-scheduler: filter, prioritize where several nodes are named, and bind beside the next pod's.

Processor time of that process alone, so the player and the API server, in Python here, are not part of the figures.
"""

import asyncio
import ssl
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import trustme

from fractile.kube import paths
from fractile.model.units import NodeName
from tests.builders import resource
from tests.fakes.apiserver import FakeApiServer
from tests.load.scenarios import SIZES, gpu_pod
from tests.load.world import card_of, node_name
from tests.main.process import control_plane, free_port
from tests.perf.measuring.report import Row
from tests.perf.usage import processor_time

NODES, CARDS = 500, 8
WARM, PODS = 50, 500
RATE = 80.0  # pods a second
CALLER = "system:kube-scheduler"
VARIANTS = {
    "all of the best named": (),
    "a clear lead named alone": ("--clear-lead=default-scheduler=2",),
    "one named": ("--name-nodes=1",),
}


async def measure() -> list[Row]:
    return [row for name, flags in VARIANTS.items() for row in await _variant(name, flags)]


async def _variant(name: str, flags: tuple[str, ...]) -> list[Row]:
    with tempfile.TemporaryDirectory() as folder:
        async with FakeApiServer() as server:
            for node in range(NODES):
                for slot in range(CARDS):
                    server.create(paths.extended_resources(), resource(card_of(node, slot), NodeName(node_name(node))))
            port, authority = free_port(), trustme.CA()
            options = (*_tls(authority, Path(folder)), f"--listen=127.0.0.1:{port}", "--memory-unit=GiB", *flags)
            async with control_plane(server.write_kubeconfig(Path(folder, "kc")), Path(folder), *options) as running:
                player = Player(server, port, _trust(authority))
                await player.ready()
                await player.play(WARM)
                before, began = processor_time(running.pid), time.monotonic()
                await player.play(PODS)
                took = time.monotonic() - began
                used = (processor_time(running.pid) - before) * 1000 / PODS
    note = f"{PODS / took:.0f} pods/s, {NODES} names; prioritize {player.asked} times, {player.refused} binds refused"
    return [Row(f"a pod's calls, {name}: processor time", used, "ms", None, note)]


def _tls(authority: trustme.CA, folder: Path) -> tuple[str, ...]:
    pair = authority.issue_cert("127.0.0.1")
    cert, key, ca = folder / "tls.crt", folder / "tls.key", folder / "ca.crt"
    pair.cert_chain_pems[0].write_to_path(str(cert))
    pair.private_key_pem.write_to_path(str(key))
    authority.cert_pem.write_to_path(str(ca))
    return (f"--tls-cert={cert}", f"--tls-key={key}", f"--client-ca={ca}", f"--client-name={CALLER}")


def _trust(authority: trustme.CA) -> ssl.SSLContext:
    context = ssl.create_default_context(cadata=authority.cert_pem.bytes().decode())
    authority.issue_cert("caller.test", common_name=CALLER).configure_cert(context)  # pyright: ignore[reportUnknownMemberType]  # half typed
    return context


class Player:
    """kube-scheduler: one pod after the other, binds beside it; two connections are kept when they are idle."""

    def __init__(self, server: FakeApiServer, port: int, trust: ssl.SSLContext) -> None:
        self.asked = 0
        self.refused = 0
        self._server = server
        self._port = port
        self._trust = trust
        self._names = [node_name(number) for number in range(NODES)]
        self._idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
        self._count = 0

    async def ready(self) -> None:
        async with asyncio.timeout(60):
            while not await self._is_ready():  # noqa: ASYNC110 - it says so when it is asked
                await asyncio.sleep(0.05)

    async def play(self, pods: int) -> None:
        began = time.monotonic()
        async with asyncio.TaskGroup() as binds:
            for number in range(pods):
                await asyncio.sleep(max(0.0, began + number / RATE - time.monotonic()))
                pod = self._create()
                node = await self._choose(pod)
                binds.create_task(self._bind(pod["metadata"], node))

    def _create(self) -> dict[str, Any]:
        self._count += 1
        manifest = gpu_pod(f"p-{self._count:05d}", SIZES[self._count % len(SIZES)])
        manifest["metadata"]["namespace"] = "default"
        return self._server.create(paths.pods("default"), manifest)

    async def _choose(self, pod: Mapping[str, Any]) -> str:
        found = (await self._call("filter", {"Pod": pod, "Nodes": None, "NodeNames": self._names}))["NodeNames"]
        if len(found) == 1:
            return found[0]
        self.asked += 1
        scores = await self._call("prioritize", {"Pod": pod, "Nodes": None, "NodeNames": found})
        return max(scores, key=lambda one: one["Score"])["Host"]

    async def _bind(self, meta: Mapping[str, str], node: str) -> None:
        body = {"PodName": meta["name"], "PodNamespace": "default", "PodUID": meta["uid"], "Node": node}
        self.refused += bool((await self._call("bind", body))["Error"])  # full by what was still on its way

    async def _call(self, verb: str, body: object) -> Any:
        content = msgspec.json.encode(body)
        head = f"POST /scheduler/{verb} HTTP/1.1\r\nHost: h\r\nContent-Length: {len(content)}\r\n\r\n"
        reader, writer = self._idle.pop() if self._idle else await self._open()
        writer.write(head.encode() + content)
        status, answer = await _answer(reader)
        assert status == 200, answer
        if len(self._idle) < 2:
            self._idle.append((reader, writer))
        else:
            writer.close()
        return msgspec.json.decode(answer)

    async def _is_ready(self) -> bool:
        try:
            reader, writer = await self._open()
        except OSError:
            return False
        writer.write(b"GET /readyz HTTP/1.1\r\nHost: h\r\n\r\n")
        status, _ = await _answer(reader)
        writer.close()
        return status == 200

    async def _open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self._port, ssl=self._trust, server_hostname="127.0.0.1")


async def _answer(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
    length = next(int(line.partition(":")[2]) for line in head.splitlines() if line.startswith("content-length:"))
    return int(head.split(" ", 2)[1]), await reader.readexactly(length)
