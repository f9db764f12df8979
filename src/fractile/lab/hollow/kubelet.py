"""A simulated kubelet: it admits pods one after the other, starts their containers, and serves pod-resources.

    add ─> queue ─> admit (device manager) ─┬─> Failed permanently (UnexpectedAdmissionError)
                                            └─> a worker per pod: init containers, then the rest: PreStart ─> Running
                                                                                    └─ refused: retried with backoff

There are no processes: a container "runs" once its devices are granted, and what it would have received (environment,
mounts) is written to ``<root>/pods/<uid>/<container>.json``. Rules and times: evidence/kubelet.md#admission-order and
evidence/kubelet.md#restart. It is used by ``fractile hollow-node`` and, without an API server, by the tests of the
agent.
"""

import asyncio
import logging
import random
from collections.abc import Callable
from pathlib import Path

import grpc.aio
import msgspec

from fractile.agent.kubelet import rpc
from fractile.agent.kubelet.api import podresources_pb2 as pr
from fractile.dialects.table import containers_in_order
from fractile.kube.pacing import Sleep
from fractile.lab.hollow.devices import DeviceManager, NotAdmitted, NotStarted
from fractile.model.request import Role
from fractile.model.units import ContainerName, PodUID
from fractile.wire.kubernetes.objects import Container, Pod

log = logging.getLogger(__name__)


class KubeletTiming(msgspec.Struct, frozen=True):
    """Times in seconds. ``admission``: measured on a real kubelet, from its socket to its first admission."""

    admission: float = 0.97
    retry_first: float = 0.5
    retry_most: float = 10.0


class StartedContainer(msgspec.Struct, frozen=True):
    """What a container received; the content of its file."""

    namespace: str
    pod: str
    container: str
    env: dict[str, str]
    mounts: dict[str, str]  # path in the container -> path on the host
    annotations: dict[str, str] = {}  # for the runtime; not annotations of the pod


class Fate(msgspec.Struct):
    """The state of a pod. ``phase``: "" while it waits, then as in Kubernetes. ``message``: the last error."""

    pod: Pod
    phase: str = ""
    message: str = ""
    admitted: bool = False


Report = Callable[[Fate], None]


class HollowKubelet:
    """``report`` is called whenever the fate of a pod changes. ``run`` serves until cancelled. Running it again is a
    restart of kubelet, which running containers survive."""

    def __init__(
        self,
        root: Path,
        *,
        report: Report,
        rng: random.Random,
        timing: KubeletTiming | None = None,
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        self._root = root
        self._report = report
        self._rng = rng
        self._timing = timing or KubeletTiming()
        self._sleep = sleep
        self._fates: dict[PodUID, Fate] = {}
        self._waiting: asyncio.Queue[PodUID] = asyncio.Queue()
        self._workers: dict[PodUID, asyncio.Task[None]] = {}
        self._running: set[tuple[PodUID, ContainerName]] = set()
        self._busy: dict[tuple[PodUID, ContainerName], asyncio.Event] = {}  # init containers that are still working
        self._done: set[tuple[PodUID, ContainerName]] = set()  # containers that have ended permanently
        self._devices: DeviceManager | None = None
        self._tasks: asyncio.TaskGroup | None = None
        self.serving = asyncio.Event()  # set while both sockets exist
        for folder in ("device-plugins", "pod-resources", "pods"):
            (root / folder).mkdir(parents=True, exist_ok=True)

    @property
    def plugin_directory(self) -> Path:
        return self._root / "device-plugins"

    @property
    def pod_resources_socket(self) -> Path:
        return self._root / "pod-resources" / rpc.KUBELET_SOCKET

    def capacity(self) -> dict[str, tuple[int, int]]:
        """Capacity and allocatable amount of the plugins' resources."""
        return self._devices.plugins.capacity() if self._devices else {}

    def fate(self, uid: PodUID) -> Fate | None:
        return self._fates.get(uid)

    def started(self, uid: PodUID, container: str) -> StartedContainer | None:
        """What the container received; None when it has not started."""
        try:
            return msgspec.json.decode(self._started_file(uid, container).read_bytes(), type=StartedContainer)
        except FileNotFoundError:
            return None

    def add(self, pod: Pod) -> None:
        """Add a pod that is bound to this node; a known pod is left as it is."""
        uid = PodUID(pod.metadata.uid)
        if uid in self._fates:
            return
        self._fates[uid] = Fate(pod, phase="" if pod.status.phase == "Pending" else pod.status.phase)
        if pod.status.phase == "Running":  # its containers have outlived an earlier process of this kubelet
            self._running |= {(uid, ContainerName(c.name)) for r, c in containers_in_order(pod) if r is not Role.INIT}
        self._waiting.put_nowait(uid)

    def remove(self, uid: PodUID) -> None:
        """Delete the pod and stop its containers."""
        self._fates.pop(uid, None)
        worker = self._workers.pop(uid, None)
        if worker is not None:
            worker.cancel()
        self._running = {key for key in self._running if key[0] != uid}
        self._done = {key for key in self._done if key[0] != uid}
        self._busy = {key: event for key, event in self._busy.items() if key[0] != uid}
        folder = self._root / "pods" / uid
        for file in folder.glob("*.json"):
            file.unlink()
        if folder.is_dir():
            folder.rmdir()

    def keep_busy(self, uid: PodUID, container: str) -> None:
        """Let this init container run until ``end_container``, instead of ending immediately."""
        self._busy[uid, ContainerName(container)] = asyncio.Event()

    def end_container(self, uid: PodUID, container: str, *, for_good: bool = False) -> None:
        """End a container. In a running pod it is restarted, beginning with PreStart, unless ``for_good`` (restart
        policy Never). When the last container ends permanently, the pod's devices are released."""
        fate = self._fates.get(uid)
        busy = self._busy.pop((uid, ContainerName(container)), None)
        if busy is not None:
            busy.set()
            return
        if fate is None or fate.phase != "Running":
            return
        if for_good:
            self._end_for_good(uid, fate, ContainerName(container))
            return
        fate.phase = ""
        self._running.discard((uid, ContainerName(container)))
        self._started_file(uid, container).unlink(missing_ok=True)
        if self._tasks is not None and self._devices is not None and fate.admitted:
            self._workers[uid] = self._tasks.create_task(self._start(uid, fate, self._devices))

    def _end_for_good(self, uid: PodUID, fate: Fate, container: ContainerName) -> None:
        self._running.discard((uid, container))
        self._done.add((uid, container))
        apps = {c.name for role, c in containers_in_order(fate.pod) if role is Role.APP}
        if all((uid, name) in self._done for name in apps):
            self._set(fate, "Succeeded", "")

    def power_off(self) -> None:
        """Simulate a power cut between two calls of ``run``: no container runs, and every pod is started again."""
        for uid, fate in self._fates.items():
            for _, container in containers_in_order(fate.pod):
                self._started_file(uid, container.name).unlink(missing_ok=True)
            fate.phase = "" if fate.phase == "Running" else fate.phase
        self._running.clear()

    async def run(self) -> None:
        """Run kubelet until cancelled."""
        devices = self._devices = DeviceManager(
            self.plugin_directory,
            active=self._active,
            running=lambda uid, container: (uid, container) in self._running,
            rng=self._rng,
        )
        self._waiting = asyncio.Queue()
        for fate in self._fates.values():
            fate.admitted = False
        server: grpc.aio.Server | None = None
        try:
            async with asyncio.TaskGroup() as tasks:
                self._tasks = tasks
                await devices.start(tasks)
                self.pod_resources_socket.unlink(missing_ok=True)
                server = await rpc.serve(
                    self.pod_resources_socket, rpc.unary(rpc.LIST, self._list), rpc.unary(rpc.GET, self._get)
                )
                self.serving.set()
                await self._sleep(self._timing.admission)
                await self._admit_all(tasks, devices)
        finally:
            self._tasks = None
            self.serving.clear()
            self._workers.clear()
            if server is not None:
                await server.stop(0)
            await devices.stop()

    # Admission

    async def _admit_all(self, tasks: asyncio.TaskGroup, devices: DeviceManager) -> None:
        """Admit the pods that exist when kubelet starts, in one batch by age, then the others as they arrive."""
        for uid in sorted(self._fates, key=lambda u: self._fates[u].pod.metadata.creation_timestamp or ""):
            await self._admit(uid, tasks, devices)
        devices.ready = True
        while True:
            await self._admit(await self._waiting.get(), tasks, devices)

    async def _admit(self, uid: PodUID, tasks: asyncio.TaskGroup, devices: DeviceManager) -> None:
        fate = self._fates.get(uid)
        if fate is None or fate.phase in ("Failed", "Succeeded") or uid in self._workers:
            return
        fate.admitted = True  # from here on it is in the pod-resources list
        try:
            await devices.admit(fate.pod)
        except NotAdmitted as e:
            self._set(fate, "Failed", f"Allocate failed due to {e}, which is unexpected")
            return
        if uid in self._fates:
            self._workers[uid] = tasks.create_task(self._start(uid, fate, devices))

    # Containers

    async def _start(self, uid: PodUID, fate: Fate, devices: DeviceManager) -> None:
        """Start the init containers one after the other (they end immediately unless kept busy), then all others."""
        if fate.phase == "Running":
            return  # from before kubelet's restart
        wait = self._timing.retry_first
        for role, container in containers_in_order(fate.pod):
            if self.started(uid, container.name) is None:  # otherwise it runs or has finished
                while not await self._start_container(uid, fate, container, role, devices):
                    await self._sleep(wait)
                    wait = min(wait * 2, self._timing.retry_most)
            busy = self._busy.get((uid, ContainerName(container.name)))
            if busy is not None:
                await busy.wait()
        self._set(fate, "Running", "")

    async def _start_container(
        self, uid: PodUID, fate: Fate, container: Container, role: Role, devices: DeviceManager
    ) -> bool:
        if (uid, container.name) in self._running:
            return True
        try:
            await devices.pre_start(fate.pod, container)
        except NotStarted as e:
            self._set(fate, "", str(e))
            return False
        meta = fate.pod.metadata
        answers = devices.answers(uid, container.name)
        started = StartedContainer(
            meta.namespace,
            meta.name,
            container.name,
            env={k: v for answer in answers for k, v in answer.envs.items()},
            mounts={m.container_path: m.host_path for answer in answers for m in answer.mounts},
            annotations={k: v for answer in answers for k, v in answer.annotations.items()},
        )
        file = self._started_file(uid, container.name)
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(msgspec.json.encode(started))
        if role is not Role.INIT:
            self._running.add((uid, ContainerName(container.name)))
        return True

    def _set(self, fate: Fate, phase: str, message: str) -> None:
        fate.phase, fate.message = phase, message
        self._report(fate)

    def _started_file(self, uid: PodUID, container: str) -> Path:
        return self._root / "pods" / uid / f"{container}.json"

    # pod-resources

    def _active(self) -> set[PodUID]:
        return {uid for uid, fate in self._fates.items() if fate.admitted and fate.phase not in ("Failed", "Succeeded")}

    async def _list(self, request: pr.ListPodResourcesRequest, context: rpc.Context) -> pr.ListPodResourcesResponse:
        assert self._devices is not None
        self._devices.forget_finished()
        active = self._active()
        return pr.ListPodResourcesResponse(
            pod_resources=[
                self._resources(fate.pod, self._devices) for uid, fate in self._fates.items() if uid in active
            ]
        )

    async def _get(self, request: pr.GetPodResourcesRequest, context: rpc.Context) -> pr.GetPodResourcesResponse:
        assert self._devices is not None
        for fate in self._fates.values():
            meta = fate.pod.metadata
            if (meta.name, meta.namespace) == (request.pod_name, request.pod_namespace):
                return pr.GetPodResourcesResponse(pod_resources=self._resources(fate.pod, self._devices))
        missing = f"pod {request.pod_name} in namespace {request.pod_namespace} not found"
        return await context.abort(grpc.StatusCode.UNKNOWN, missing)

    def _resources(self, pod: Pod, devices: DeviceManager) -> pr.PodResources:
        """What the pod's sidecars and app containers hold; ordinary init containers are not shown."""
        answer = pr.PodResources(name=pod.metadata.name, namespace=pod.metadata.namespace)
        for role, container in containers_in_order(pod):
            if role is Role.INIT:
                continue
            shown = answer.containers.add(name=container.name)
            for resource, ids in devices.held(PodUID(pod.metadata.uid), container.name):
                for one in sorted(ids):  # kubelet 1.36.3 makes one entry per id
                    shown.devices.add(resource_name=resource, device_ids=[one])
        return answer
