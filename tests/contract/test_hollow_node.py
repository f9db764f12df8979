"""The hollow node and the agent write what a real API server takes; the fake of the other tests must not be kinder."""

import asyncio
import contextlib
import random
import shutil
import tempfile
from collections.abc import AsyncGenerator, Awaitable, Callable
from pathlib import Path

import msgspec
import pytest

from fractile.agent.deviceplugin.allocate import Allocator
from fractile.agent.deviceplugin.assigned import Assigned
from fractile.agent.deviceplugin.plugin import Plugin
from fractile.agent.deviceplugin.preferred_allocation import PreferredAllocation
from fractile.agent.deviceplugin.prestart import PreStart
from fractile.agent.deviceplugin.register import Registrar
from fractile.agent.kubelet.kubelet_state import Kubelet
from fractile.agent.limits.journal import Journal
from fractile.agent.limits.limits_writer import LimitsWriter
from fractile.agent.node.catalog import Catalog, CurrentCatalog
from fractile.agent.node.pods import NodePods
from fractile.errors import ApiError
from fractile.kube import paths
from fractile.lab.hollow.kubelet import StartedContainer
from fractile.lab.hollow.node import HollowNode
from fractile.model.units import MemoryUnit, NodeName
from fractile.region import directory
from fractile.wire.foreign.kubelet_checkpoint import FILE_NAME
from fractile.wire.kubernetes.objects import Node, Pod
from tests.agent.world import CARDS, MEM
from tests.contract.conftest import Api
from tests.fakes.kubelet import QUICK

PLACEMENT = '{"version":1,"node":"%s","containers":{"main":{"role":"app","slices":[{"card":"%s","memoryMiB":4096}]}}}'


@pytest.fixture
async def root() -> AsyncGenerator[Path, None]:
    made = Path(tempfile.mkdtemp(prefix="fr-"))  # pytest's own paths are too long for sockets
    yield made
    shutil.rmtree(made)


async def agent(api: Api, node: NodeName, root: Path) -> None:
    """The agent with the test's credentials."""
    current_catalog = CurrentCatalog(Catalog.of(CARDS, MemoryUnit.GiB))
    tokens = iter(range(10**6))
    journal = Journal(root / "slices", new_token=lambda: f"{next(tokens):08x}")
    kubelet = Kubelet(root / "pod-resources" / "kubelet.sock", root / "device-plugins" / FILE_NAME)
    pods = NodePods(api.client, node=node, unit=MemoryUnit.GiB)
    preferred_allocation, assigned = PreferredAllocation(kubelet, pods), Assigned(pods)
    prestart = PreStart(kubelet, pods, LimitsWriter(journal, current_catalog), assigned, current_catalog)
    plugin = Plugin(
        MEM,
        current_catalog=current_catalog,
        preferred_allocation=preferred_allocation,
        allocator=Allocator(journal, preferred_allocation),
        prestart=prestart,
    )
    registrar = Registrar(root / "device-plugins", [plugin], new_token=lambda: f"{next(tokens):08x}")
    async with asyncio.TaskGroup() as tasks:
        for coroutine in (registrar.run(), pods.follow().run(), assigned.run()):
            tasks.create_task(coroutine)


async def until(true: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(20):
        while not await true():  # noqa: ASYNC110
            await asyncio.sleep(0.05)


async def test_a_pod_runs_is_marked_assigned_and_is_finished_when_deleted(api: Api, root: Path) -> None:
    node = NodeName(f"hollow-{api.namespace}")
    playing = asyncio.create_task(
        HollowNode(api.client, node=node, root=root, rng=random.Random(1), timing=QUICK).run()
    )
    serving: asyncio.Task[None] | None = None
    try:

        async def allocatable() -> bool:
            with contextlib.suppress(ApiError):
                status = (await api.client.get(paths.node(node), Node)).status
                return (status.allocatable or {}).get(MEM) == "32" and bool((status.capacity or {}).get("cpu"))
            return False

        async def pod() -> Pod:
            return await api.client.get(paths.pod(api.namespace, "a"), Pod)

        async def running_and_assigned() -> bool:
            seen = await pod()
            marked = (seen.metadata.annotations or {}).get("ALIYUN_COM_GPU_MEM_ASSIGNED") == "true"
            return seen.status.phase == "Running" and marked

        async def gone() -> bool:
            with contextlib.suppress(ApiError):
                await pod()
                return False
            return True

        serving = asyncio.create_task(agent(api, node, root))
        await until(allocatable)
        container = {"name": "main", "image": "none", "resources": {"limits": {MEM: "4"}}}
        annotations = {"fractile.dev/placement": PLACEMENT % (node, CARDS[1].uuid)}
        body = {
            "metadata": {"name": "a", "annotations": annotations},
            "spec": {"nodeName": node, "containers": [container]},
        }
        await api.client.create(paths.pods(api.namespace), body)
        await until(running_and_assigned)
        file = root / "pods" / (await pod()).metadata.uid / "main.json"
        started = msgspec.json.decode(file.read_bytes(), type=StartedContainer)
        assert started.env["NVIDIA_VISIBLE_DEVICES"] == CARDS[1].uuid
        granted = directory.read(Path(started.mounts[directory.MOUNT]))
        assert granted is not None
        assert granted.pod_uid == (await pod()).metadata.uid
        await api.client.delete(paths.pod(api.namespace, "a"))
        await until(gone)
    finally:
        for task in (playing, serving):
            if task is not None:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
