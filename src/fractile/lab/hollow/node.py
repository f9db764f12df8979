"""A node with a simulated kubelet: its Node object and Lease, and the pods that are bound to it.

For clusters without root or containerd: scheduler, extender, device plugin protocol and agent are real, containers are
not. Failure rule: like kubelet, it continues with what it knows while the API server is away, and retries its writes.
"""

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path

from fractile.errors import ApiError, FractileError
from fractile.kube import paths
from fractile.kube.client import KubeClient
from fractile.kube.events import EventRecorder
from fractile.kube.pacing import Sleep
from fractile.kube.reflector import Gone, Reflector
from fractile.lab.hollow.kubelet import Fate, HollowKubelet, KubeletTiming
from fractile.model.units import NodeName, PodUID
from fractile.wire.kubernetes.objects import Pod

_HEARTBEAT = 10.0  # seconds; the node controller waits for 40
_LOOK = 0.2
_RETRY = 1.0
_LEASES = "kube-node-lease"
_VERSION = "v1.36.3"

log = logging.getLogger(__name__)

Json = Mapping[str, object]


class HollowNode:
    """``run`` registers the node and serves until cancelled; the objects stay, as kubelet's do."""

    def __init__(
        self,
        client: KubeClient,
        *,
        node: NodeName,
        root: Path,
        rng: random.Random,
        timing: KubeletTiming | None = None,
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        self._client = client
        self._node = node
        self._sleep = sleep
        self._events = EventRecorder(client, "kubelet")
        self._todo: asyncio.Queue[PodUID] = asyncio.Queue()
        self._pods: dict[PodUID, Pod] = {}
        self._reported: dict[PodUID, str] = {}
        self.kubelet = HollowKubelet(root, report=self._report, rng=rng, timing=timing, sleep=sleep)

    async def run(self) -> None:
        """Serve until cancelled."""
        await self._persist(self._register)
        pods = Reflector(
            self._client,
            paths.pods(),
            Pod,
            changed=self._changed,
            gone=self._gone,
            field_selector=f"spec.nodeName={self._node}",
        )
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._events.run())
            tasks.create_task(pods.run())
            tasks.create_task(self._heartbeat())
            tasks.create_task(self._resources())
            tasks.create_task(self._settle())
            await pods.synced.wait()
            tasks.create_task(self.kubelet.run())

    # The node

    async def _register(self) -> None:
        labels = {"kubernetes.io/hostname": self._node, "kubernetes.io/os": "linux", "fractile.dev/hollow": "true"}
        node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": self._node, "labels": labels}}
        try:
            await self._client.create(paths.nodes(), node)
        except ApiError as e:
            if e.code != 409:  # it already exists
                raise
        await self._client.merge_patch(f"{paths.node(self._node)}/status", {"status": _node_status()})
        await self._renew()

    async def _heartbeat(self) -> None:
        while True:
            await self._sleep(_HEARTBEAT)
            await self._persist(self._renew)

    async def _renew(self) -> None:
        lease = {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": self._node, "namespace": _LEASES},
            "spec": {"holderIdentity": self._node, "leaseDurationSeconds": 40, "renewTime": _now(micro=True)},
        }
        await self._client.apply(paths.lease(_LEASES, self._node), lease, field_manager="kubelet")

    async def _resources(self) -> None:
        """Write the plugins' resources to the node's status, as kubelet does; level-triggered."""
        written: dict[str, tuple[int, int]] = {}
        while True:
            present = self.kubelet.capacity()
            if present != written:
                await self._persist(lambda: self._write_resources(self.kubelet.capacity()))
                written = present
            await self._sleep(_LOOK)

    async def _write_resources(self, resources: Mapping[str, tuple[int, int]]) -> None:
        status = {
            "capacity": {r: str(n) for r, (n, _) in resources.items()},
            "allocatable": {r: str(n) for r, (_, n) in resources.items()},
        }
        await self._client.merge_patch(f"{paths.node(self._node)}/status", {"status": status})
        log.info("node status node=%s resources=%s", self._node, dict(resources))

    # Its pods

    def _changed(self, pod: Pod) -> None:
        uid = PodUID(pod.metadata.uid)
        self._pods[uid] = pod
        if pod.metadata.deletion_timestamp:
            self._todo.put_nowait(uid)
        else:
            self.kubelet.add(pod)

    def _gone(self, gone: Gone) -> None:
        uid = PodUID(gone.uid)
        self._pods.pop(uid, None)
        self._reported.pop(uid, None)
        self.kubelet.remove(uid)

    def _report(self, fate: Fate) -> None:
        self._todo.put_nowait(PodUID(fate.pod.metadata.uid))

    async def _settle(self) -> None:
        """Update each pod in the API server according to its fate."""
        while True:
            uid = await self._todo.get()
            try:
                await self._settle_one(uid)
            except FractileError as e:
                if isinstance(e, ApiError) and e.code in (404, 409, 422):
                    continue  # the pod is gone, or another one has its name
                log.warning("pod not settled uid=%s reason=%s", uid, e)
                await self._sleep(_RETRY)
                self._todo.put_nowait(uid)

    async def _settle_one(self, uid: PodUID) -> None:
        pod = self._pods.get(uid)
        if pod is None:
            return
        path = paths.pod(pod.metadata.namespace, pod.metadata.name)
        if pod.metadata.deletion_timestamp:
            self.kubelet.remove(uid)
            await self._client.delete(path, uid=uid, grace_seconds=0)
            return
        fate = self.kubelet.fate(uid)
        if fate is None:
            return
        if not fate.phase:
            self._events.emit(pod, "Failed", f"Error: {fate.message}")
        elif fate.phase not in (self._reported.get(uid), pod.status.phase):
            if fate.phase == "Failed":
                self._events.emit(pod, "UnexpectedAdmissionError", fate.message)
            status = {"status": _pod_status(pod, fate)}
            await self._client.merge_patch(f"{path}/status", {"metadata": {"uid": uid}, **status})
            self._reported[uid] = fate.phase

    async def _persist(self, write: Callable[[], Awaitable[None]]) -> None:
        """Repeat ``write`` until the API server accepts it."""
        while True:
            try:
                await write()
                return
            except FractileError as e:
                log.warning("node not written node=%s reason=%s", self._node, e)
            await self._sleep(_RETRY)


def _node_status() -> Json:
    amounts = {"cpu": "64", "memory": "256Gi", "pods": "110", "ephemeral-storage": "100Gi"}
    condition = {"type": "Ready", "status": "True", "reason": "HollowNode", "message": "no kubelet, no containers"}
    times = {"lastHeartbeatTime": _now(), "lastTransitionTime": _now()}
    info = {"kubeletVersion": _VERSION, "operatingSystem": "linux", "architecture": "amd64", "osImage": "hollow"}
    empty = ("machineID", "systemUUID", "bootID", "kernelVersion", "containerRuntimeVersion", "kubeProxyVersion")
    return {
        "capacity": amounts,
        "allocatable": amounts,
        "conditions": [{**condition, **times}],
        "nodeInfo": {**info, **dict.fromkeys(empty, "")},
    }


def _pod_status(pod: Pod, fate: Fate) -> Json:
    if fate.phase == "Failed":
        return {"phase": "Failed", "reason": "UnexpectedAdmissionError", "message": fate.message}
    now = _now()
    conditions = [
        {"type": kind, "status": "True", "lastTransitionTime": now}
        for kind in ("PodScheduled", "Initialized", "ContainersReady", "Ready")
    ]
    states = [
        {
            "name": c.name,
            "ready": True,
            "started": True,
            "restartCount": 0,
            "image": "hollow",
            "imageID": "",
            "state": {"running": {"startedAt": now}},
        }
        for c in pod.spec.containers or ()
    ]
    return {"phase": "Running", "startTime": now, "conditions": conditions, "containerStatuses": states}


def _now(*, micro: bool = False) -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ" if micro else "%Y-%m-%dT%H:%M:%SZ")
