"""A node whose use of cards outside the ledger is judged, for the tests of the audit."""

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec

from fractile.agent.audit.audit import OutsideAudit
from fractile.agent.audit.ending import Ender
from fractile.agent.audit.spared import SYSTEM, Spared
from fractile.agent.audit.unaccounted import Finding
from fractile.agent.kubelet.api import deviceplugin_pb2 as dp
from fractile.agent.kubelet.kubelet_state import Kubelet
from fractile.agent.limits.slices import Granted
from fractile.agent.node.cgroup import CgroupPlace
from fractile.agent.node.owners import Owners
from fractile.agent.node.pods import NodePods
from fractile.agent.node.procfs import Process
from fractile.kube import paths
from fractile.kube.client import KubeClient
from fractile.kube.events import EventRecorder
from fractile.model.units import CardUUID, ContainerName, MemoryUnit, NodeName, PodUID
from fractile.policy.outside import Policy
from fractile.region import directory
from fractile.wire.foreign import kubelet_checkpoint
from fractile.wire.foreign.kubelet_checkpoint import Recorded
from fractile.wire.kubernetes.objects import ALLOWED, Pod
from tests.agent.audit.test_unaccounted import granted
from tests.fakes.apiserver import FakeApiServer

CARD = CardUUID("GPU-a")


ID = "ab" * 32


MIB = 2**20


SERVED = frozenset({"aliyun.com/gpu-mem"})


@dataclass
class World:
    server: FakeApiServer
    audit: OutsideAudit
    events: EventRecorder
    pods: NodePods
    checkpoint: Path
    time: float = 100.0

    def pod(self, name: str, *, container_id: str = "", namespace: str = "ns", **more: dict[str, Any]) -> Pod:
        """``more``: parts of its metadata and its spec."""
        made = self.server.create(
            paths.pods(namespace),
            {"metadata": {"name": name} | more.get("metadata", {}), "spec": {"nodeName": "n1"} | more.get("spec", {})},
        )
        if container_id:
            statuses = [{"name": "main", "containerID": f"containerd://{container_id}"}]
            self.server.merge(f"{paths.pod('ns', name)}/status", {"status": {"containerStatuses": statuses}})
        pod = msgspec.convert(made, Pod, strict=False)
        self.pods.changed(pod)
        return pod

    def told(self) -> list[tuple[str, str, str]]:
        """Reason, pod and message of the events."""
        found: list[dict[str, Any]] = self.server.all("/api/v1/events")
        return [(e["reason"], e["involvedObject"]["name"], e["message"]) for e in found]

    async def act(self) -> None:
        await self.audit.act()
        await self.events.flush(5)

    async def seen_twice(self, *findings: Finding) -> None:
        self.audit.observe(findings)
        self.audit.observe(findings)
        await self.act()


@asynccontextmanager
async def folder() -> AsyncGenerator[Path]:
    with TemporaryDirectory() as made:
        yield Path(made)


@asynccontextmanager
async def world(
    policy: Policy = "warn", grace: float = 0.0, around: tuple[str, ...] = (), proc: Path = Path("/proc")
) -> AsyncGenerator[World]:
    async with FakeApiServer() as server, KubeClient(server.credentials()) as client, folder() as made_for:
        for name in ("ns", SYSTEM):
            server.create(paths.namespaces(), {"metadata": {"name": name}})
        there = {"metadata": {"name": "n1"}, "status": {"allocatable": {"nvidia.com/gpu": "4", "cpu": "8"}}}
        server.create(paths.nodes(), there)
        pods = NodePods(client, node=NodeName("n1"), unit=MemoryUnit.GiB)
        events = EventRecorder(client, "test")
        running = asyncio.create_task(events.run())

        def clock() -> float:
            return made.time

        owners = Owners(client, pods, around=[PodUID(uid) for uid in around], clock=clock)
        checkpoint = made_for / kubelet_checkpoint.FILE_NAME
        judge = Spared(client, SERVED, Kubelet(made_for / "none.sock", checkpoint).record)
        ender = Ender(proc=proc)
        audit = OutsideAudit(
            client, events, owners, judge, ender, policy=policy, grace=grace, clock=clock, now=lambda: 5.0
        )
        made = World(server, audit, events, pods, checkpoint)
        try:
            yield made
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)


def stranger(pid: int = 100, *, uid: str = "", container_id: str = "", start: int = 1) -> Finding:
    places = (CgroupPlace(PodUID(uid), container_id),) if uid or container_id else ()
    process = Process(pid, start, "miner", pid, 1, places, "")
    return Finding("no-slice" if places else "not-a-pod", CARD, process, None, 300 * MIB)


def unrecorded(uid: str, token: str = "t1") -> Finding:
    """A process that has a directory of ours in its view, in a pod of which this node knows no page."""
    return Finding(
        "no-slice", CARD, Process(100, 1, "job", 100, 1, (CgroupPlace(PodUID(uid), ID),), token), None, 300 * MIB
    )


def placement(node: str, card: str) -> str:
    """The annotation by which a container holds the card."""
    main = {"role": "app", "slices": [{"card": card, "memoryMiB": 1000}]}
    return json.dumps({"version": 1, "node": node, "containers": {"main": main}})


def over(pod: Pod) -> Finding:
    base = granted()
    limits = msgspec.structs.replace(
        base.limits, pod_uid=PodUID(pod.metadata.uid), namespace="ns", pod=pod.metadata.name
    )
    own: Granted = msgspec.structs.replace(base, limits=limits)
    return Finding("over-ledger", CARD, None, own, 900 * MIB, 300 * MIB)


def deletions(w: World) -> list[str]:
    return [call for call in w.server.writes() if call.startswith("DELETE ")]


def miner(pod: Pod, pid: int = 100) -> Finding:
    return stranger(pid, uid=pod.metadata.uid)


def limits(resource: str) -> dict[str, Any]:
    return {"containers": [{"name": "main", "resources": {"limits": {resource: "1"}}}]}


LABELLED = {"metadata": {"labels": {ALLOWED: "allow"}}}


IS_LABELLED = f"would leave it too: it is in a namespace that has the label {ALLOWED}=allow"


NVIDIA = dp.ContainerAllocateResponse(envs={"NVIDIA_VISIBLE_DEVICES": "GPU-a"})


OURS = dp.ContainerAllocateResponse(mounts=[dp.Mount(container_path=directory.MOUNT, host_path="/state/slices/t")])


def recorded(w: World, uid: str, resource: str, answer: dp.ContainerAllocateResponse) -> None:
    """Kubelet has written down that a container holds an id, and what the plugin answered."""
    entry = Recorded(PodUID(uid), ContainerName("main"), resource, frozenset({"GPU-a"}), answer.SerializeToString())
    w.checkpoint.write_bytes(kubelet_checkpoint.encode([entry], {}))


def blind(pod: Pod, *, known: bool = True) -> Finding:
    """``known``: the process sees the directory of its container's slice."""
    places = (CgroupPlace(PodUID(pod.metadata.uid), ID),)
    if known:
        process = Process(100, 1, "probe", 7, 1, places, "t1")
        return Finding("no-library", CARD, process, over(pod).granted, 300 * MIB, unseen="/etc/ld.so.preload")
    process = Process(100, 1, "probe", 7, 1, places, "")
    names = frozenset({"main"})
    return Finding("not-in-ledger", CARD, process, None, 300 * MIB, unseen="/etc/ld.so.preload", containers=names)
