"""Ten thousand classes on a real kube-apiserver: what they cost the control plane, and when their statuses stand.

Only when it is named (``python -m tests.perf many-classes``): statuses are written 25 times a second, so it takes
about eight minutes. The server is started for it, with our manifests; the nodes are objects only.
"""

import asyncio
import sys
import tempfile
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import msgspec

from fractile.kube import credentials, paths
from fractile.kube.client import KubeClient
from fractile.wire.fractile.extended_resource import API_VERSION, from_card
from fractile.wire.fractile.resource_class import GPU_SLOT, RESOURCE_PREFIX, ResourceClass
from fractile.wire.kubernetes.objects import Pod
from tests.builders import container, pod
from tests.classes.class_world import gpu
from tests.contract import real_apiserver
from tests.contract.kubectl import with_manifests
from tests.main.process import Running, control_plane
from tests.perf.measuring.report import Row
from tests.perf.memory import memory_of, processor_of

CLASSES = 10_000
NODES, CARDS = 4, 8
LIMIT = 900.0  # seconds
_AT_ONCE = 16
_LOOK = 5.0


async def measure() -> list[Row]:
    with tempfile.TemporaryDirectory() as folder, real_apiserver.running(Path(folder)) as server:
        if with_manifests(server) is None:
            raise SystemExit("kubectl is not built; `fractile up` builds it")
        async with (
            KubeClient(credentials.load(server.kubeconfig), page_size=500) as client,
            _program(server.kubeconfig, Path(folder)) as running,
        ):
            await _make_nodes(client)
            making = await _make_classes(client)
            created = time.monotonic()
            asked = await _filter(running)
            told = await _until_told(client, created)
            memory, most = memory_of(running.pid)
            processor = processor_of(running.pid)
            return [
                Row("classes made by 16 clients at once", CLASSES / making, "/s"),
                Row("a pod by the last of them, filtered at once", asked * 1000, "ms"),
                Row("all statuses stand, after the last class", told, "s", note="25 writes a second"),
                Row("control plane with 10,000 classes, resident; most", memory, "MB", note=f"{most:.0f} at most"),
                Row("its processor time until then", processor, "s"),
            ]


@asynccontextmanager
async def _program(kubeconfig: Path, folder: Path) -> AsyncGenerator[Running]:
    async with control_plane(kubeconfig, folder, "--log-level", "warning") as running:
        await running.ready(60)
        try:
            yield running
        except BaseException:
            print(running.log.read_text()[-4000:], file=sys.stderr)
            raise


async def _make_nodes(client: KubeClient) -> None:
    ready = {"type": "Ready", "status": "True", "lastTransitionTime": "2026-11-21T10:00:00Z"}
    for n in range(NODES):
        name = f"n{n}"
        await client.create(paths.nodes(), {"metadata": {"name": name}})
        await client.merge_patch(f"{paths.node(name)}/status", {"status": {"conditions": [ready]}})
        for index in range(CARDS):
            card = gpu(name, index, model=f"Model {n}")
            await client.apply(
                paths.extended_resource(card.uuid.lower()), from_card(card, card.node), field_manager="fractile-agent"
            )


async def _make_classes(client: KubeClient) -> float:
    """Each another name; a quarter of them for each model. How long it took."""
    started = time.monotonic()
    numbers = iter(range(CLASSES))

    async def make() -> None:
        for n in numbers:
            body = {
                "apiVersion": API_VERSION,
                "kind": "ResourceClass",
                "metadata": {"name": _name(n)},
                "spec": {"selector": {"matchLabels": {"model": f"Model {n % NODES}"}}, "memory": f"{1 + n % 8}Gi"},
            }
            await client.create(paths.resource_classes(), body)

    async with asyncio.TaskGroup() as tasks:
        for _ in range(_AT_ONCE):
            tasks.create_task(make())
    return time.monotonic() - started


async def _filter(running: Running) -> float:
    """Seconds for a pod that asks by the last class; the watch may still be on its way."""
    limits = {f"{RESOURCE_PREFIX}{_name(CLASSES - 1)}": "1", GPU_SLOT: "1"}
    asked: Pod = pod("p", container(limits=limits))
    body = msgspec.json.encode({"Pod": asked, "NodeNames": [f"n{n}" for n in range(NODES)]})
    async with httpx2.AsyncClient(base_url=running.url, trust_env=False, timeout=30) as http:
        async with asyncio.timeout(60):
            while True:
                started = time.monotonic()
                answer: dict[str, Any] = (await http.post("/scheduler/filter", content=body)).json()
                if answer.get("NodeNames"):
                    assert answer["NodeNames"] == [f"n{(CLASSES - 1) % NODES}"], answer
                    return time.monotonic() - started
                await asyncio.sleep(0.1)


async def _until_told(client: KubeClient, since: float) -> float:
    async with asyncio.timeout(LIMIT):
        while True:
            found, _ = await client.list(paths.resource_classes(), ResourceClass)
            if sum(c.status.devices.total == CARDS for c in found) == CLASSES:
                return time.monotonic() - since
            await asyncio.sleep(_LOOK)


def _name(n: int) -> str:
    return f"class-{n:05}"
