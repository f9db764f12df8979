"""The hollow node against a fake API server, with the real agent beside it."""

import asyncio
import contextlib
import random
import shutil
import tempfile
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from fractile.kube import paths
from fractile.kube.client import KubeClient
from fractile.lab.hollow.kubelet import StartedContainer
from fractile.lab.hollow.node import HollowNode
from fractile.main import agent as agent_program
from fractile.main.node.options import AgentOptions
from fractile.model.units import MemoryUnit, NodeName
from fractile.nvml.simulated import SimulatedDriver
from tests.agent.world import CARDS, MEM
from tests.fakes.apiserver import FakeApiServer, Fault
from tests.fakes.kubelet import QUICK

NODE = NodeName("h1")
PLACEMENT = '{"version":1,"node":"h1","containers":{"main":{"role":"app","slices":[{"card":"%s","memoryMiB":4096}]}}}'


@dataclass
class Hollow:
    server: FakeApiServer
    root: Path
    client: KubeClient
    tasks: list[asyncio.Task[Any]]

    def start_node(self) -> asyncio.Task[None]:
        node = HollowNode(self.client, node=NODE, root=self.root, rng=random.Random(3), timing=QUICK)
        self.tasks.append(asyncio.create_task(node.run()))
        return self.tasks[-1]

    def start_agent(self) -> asyncio.Task[Any]:
        file = self.root / "cards.json"
        cards = [{"uuid": c.uuid, "index": c.index, "model": c.model, "memoryMiB": c.memory} for c in CARDS]
        file.write_bytes(msgspec.json.encode(cards))
        options = AgentOptions(
            node=NODE,
            kubeconfig=self.server.write_kubeconfig(self.root / "kubeconfig"),
            unit=MemoryUnit.GiB,
            plugins=self.root / "device-plugins",
            pod_resources=self.root / "pod-resources" / "kubelet.sock",
            state=self.root / "state",
        )
        coroutine = agent_program.run(SimulatedDriver(file), options)
        self.tasks.append(asyncio.create_task(coroutine))
        return self.tasks[-1]

    def node(self) -> dict[str, Any]:
        """As the API server has it; empty before it is registered."""
        found = self.server.all(paths.nodes())
        return found[0] if found else {}

    def allocatable(self, resource: str) -> str:
        return self.node().get("status", {}).get("allocatable", {}).get(resource, "")

    def pod(self, name: str) -> dict[str, Any]:
        return self.server.get(paths.pod("default", name))

    def create(self, name: str, *, amount: int, card: int | None) -> None:
        container = {"name": "main", "resources": {"limits": {MEM: str(amount), "cpu": "100m"}}}
        meta: dict[str, Any] = {"name": name}
        if card is not None:
            meta["annotations"] = {"fractile.dev/placement": PLACEMENT % CARDS[card].uuid}
        self.server.create(
            paths.pods("default"), {"metadata": meta, "spec": {"nodeName": NODE, "containers": [container]}}
        )

    def started(self, name: str) -> StartedContainer:
        file = self.root / "pods" / self.pod(name)["metadata"]["uid"] / "main.json"
        return msgspec.json.decode(file.read_bytes(), type=StartedContainer)

    async def until(self, true: Callable[[], bool]) -> None:
        async with asyncio.timeout(60):
            while not true():  # noqa: ASYNC110
                await asyncio.sleep(0.01)

    async def phase(self, name: str, phase: str) -> None:
        await self.until(lambda: self.pod(name)["status"].get("phase") == phase)


async def stop(task: asyncio.Task[None]) -> None:
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


@asynccontextmanager
async def hollow(*, agent: bool = True) -> AsyncGenerator[Hollow, None]:
    root = Path(tempfile.mkdtemp(prefix="fr-"))
    try:
        async with FakeApiServer() as server, KubeClient(server.credentials()) as client:
            made = Hollow(server, root, client, [])
            try:
                made.start_node()
                if agent:
                    await made.until(lambda: (root / "device-plugins" / "kubelet.sock").exists())
                    made.start_agent()
                    await made.until(lambda: made.allocatable(MEM) == "32")
                yield made
            finally:
                for task in reversed(made.tasks):
                    await stop(task)
    finally:
        shutil.rmtree(root)


async def test_the_node_is_ready_and_reports_what_the_agent_registered() -> None:
    async with hollow() as h:
        status = h.node()["status"]
        assert [c["status"] for c in status["conditions"] if c["type"] == "Ready"] == ["True"]
        registered = {
            "cpu": "64",
            "memory": "256Gi",
            "pods": "110",
            "ephemeral-storage": "100Gi",
            "aliyun.com/gpu-mem": "32",
            "aliyun.com/gpu-count": "2",
            "tencent.com/vcuda-core": "200",
            "tencent.com/vcuda-memory": "128",
            "nvidia.com/gpu": "20",
            "fractile.dev/gpu": "512",
            "fractile.dev/device": "0",
        }
        with suppress(TimeoutError):  # one resource after the other
            await h.until(lambda: h.node()["status"]["capacity"] == registered)
        assert h.node()["status"]["capacity"] == registered
        lease = h.server.get(paths.lease("kube-node-lease", NODE))
        assert lease["spec"]["holderIdentity"] == NODE


async def test_a_bound_pod_runs_with_its_environment_recorded() -> None:
    async with hollow() as h:
        h.create("a", amount=4, card=1)
        await h.phase("a", "Running")
        assert h.started("a").env["NVIDIA_VISIBLE_DEVICES"] == CARDS[1].uuid
        assert (Path(h.started("a").mounts["/etc/fractile"]) / "limits").exists()
        assert h.pod("a")["status"]["containerStatuses"][0]["ready"]


async def test_a_deleted_pod_is_finished_and_its_devices_are_free_again() -> None:
    async with hollow() as h:
        for name in ("a", "b", "c", "d"):
            h.create(name, amount=4, card=0)
            await h.phase(name, "Running")
        h.server.merge(paths.pod("default", "a"), {"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}})
        await h.until(lambda: "a" not in {p["metadata"]["name"] for p in h.server.all(paths.pods("default"))})
        await h.until(
            lambda: all(r.status for r in h.server.requests if r.method == "DELETE")
        )  # answered a moment later
        assert not [r for r in h.server.requests if r.method == "DELETE" and r.status != 200]
        h.create("e", amount=4, card=0)
        await h.phase("e", "Running")


async def test_a_pod_that_kubelet_cannot_admit_fails_for_good_with_an_event() -> None:
    async with hollow() as h:
        h.create("big", amount=33, card=0)
        await h.phase("big", "Failed")
        status = h.pod("big")["status"]
        assert status["reason"] == "UnexpectedAdmissionError"
        assert "Requested: 33, Available: 32" in status["message"]
        await h.until(lambda: any(e["reason"] == "UnexpectedAdmissionError" for e in h.server.all("/api/v1/events")))


async def test_a_refused_start_is_an_event_and_is_tried_again() -> None:
    async with hollow() as h:
        h.create("a", amount=4, card=None)
        await h.until(lambda: any("has no placement" in e["message"] for e in h.server.all("/api/v1/events")))
        assert h.pod("a")["status"]["phase"] == "Pending"
        # Without a placement the first of equally free cards was preferred, so this placement agrees with it.
        placed = {"metadata": {"annotations": {"fractile.dev/placement": PLACEMENT % CARDS[0].uuid}}}
        h.server.merge(paths.pod("default", "a"), placed)
        await h.phase("a", "Running")


async def test_a_pod_without_gpu_just_runs() -> None:
    async with hollow() as h:
        h.create("a", amount=0, card=None)
        await h.phase("a", "Running")
        assert h.started("a").env == {}


async def test_the_program_may_be_restarted_over_running_pods() -> None:
    async with hollow() as h:
        h.create("a", amount=4, card=1)
        await h.phase("a", "Running")
        env = h.started("a").env
        await stop(h.tasks[0])
        h.create("b", amount=4, card=1)
        h.start_node()
        await h.phase("b", "Running")
        assert h.pod("a")["status"]["phase"] == "Running"
        assert h.started("a").env == env
        assert Path(h.started("a").mounts["/etc/fractile"]) != Path(h.started("b").mounts["/etc/fractile"])


async def test_an_api_server_that_fails_is_waited_for() -> None:
    async with hollow(agent=False) as h:
        h.server.inject(Fault(method="PATCH", times=4, status=403))
        h.start_agent()
        await h.until(lambda: h.allocatable(MEM) == "32")
        h.server.inject(Fault(method="PATCH", path="/status", times=2, status=500))
        h.create("a", amount=4, card=0)
        await h.phase("a", "Running")
