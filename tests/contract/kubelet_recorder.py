"""A node's kubelet as the scenarios see it, and a device plugin that writes down what kubelet asks of it."""

import asyncio
import itertools
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import grpc
import grpc.aio

from fractile.agent.kubelet import rpc
from fractile.agent.kubelet.api import deviceplugin_pb2 as dp
from fractile.agent.kubelet.api import podresources_pb2 as pr
from fractile.model.units import CardUUID, PodUID
from fractile.wire.fractile.device_ids import device_ids

PATIENCE = 60.0  # seconds; a real kubelet updates its node's status every 10 s
numbers = itertools.count(1)  # of what each run names again

Containers = Sequence[tuple[str, int]]  # name and amount; amount 0 asks for nothing


class KubeletWorld(Protocol):
    """A node with a kubelet, and the means to run pods on it."""

    @property
    def plugin_directory(self) -> Path: ...

    @property
    def pod_resources_socket(self) -> Path: ...

    async def allocatable(self, resource: str) -> int:
        """What the node offers; 0 when it does not know the resource."""
        ...

    async def create(
        self,
        name: str,
        *,
        resource: str,
        init: Containers,
        containers: Containers,
        restarts: bool = False,
        busy: Sequence[str] = (),
    ) -> PodUID:
        """Bind a pod of these containers to the node. Init containers end at once, less the ``busy`` ones; the others
        run on. ``restarts``: those that end are started again."""
        ...

    async def end(self, name: str, container: str) -> None:
        """Until the container, which runs or will soon, has ended; with success."""
        ...

    async def restart_kubelet(self, *, forgets: bool = False) -> None:
        """Kubelet dies, and another one starts; without the checkpoint if it ``forgets``. Containers run on."""
        ...

    async def phase(self, name: str) -> str:
        """Pending, Running or Failed."""
        ...

    async def message(self, name: str) -> str:
        """What the pod's status or its events say about errors."""
        ...

    async def delete(self, name: str) -> None:
        """Until the pod is gone."""
        ...


@dataclass(frozen=True)
class Call:
    """One call of kubelet; ``waiting``: the listed containers (pod/container) that hold none of the resource then."""

    kind: str  # prefer, allocate, start
    ids: frozenset[str]
    must: frozenset[str] = frozenset()
    size: int = 0
    waiting: frozenset[str] = frozenset()


@dataclass
class Recorder:
    """A device plugin that takes the highest free ids and writes down what it is asked."""

    world: KubeletWorld
    resource: str
    devices: list[str]
    preferring: bool = True
    refuse_starts: int = 0
    refuse_allocate: bool = False
    starting: bool = True  # whether it wants to be asked before a container starts
    slow: float = 0.0  # seconds for an answer to prefer
    at_once: int = 0  # how many such answers were under way at a time, at most
    calls: list[Call] = field(default_factory=list[Call])
    order: list[str] = field(default_factory=list[str])  # options, list: as they came at registration
    server: grpc.aio.Server | None = None
    preparing: int = 0

    def kinds(self) -> list[str]:
        return [c.kind for c in self.calls]

    async def register(self) -> None:
        endpoint = f"rec-{next(numbers)}.sock"
        handlers = (
            rpc.unary(rpc.OPTIONS, self._options),
            rpc.streaming(rpc.LIST_AND_WATCH, self._list),
            rpc.unary(rpc.PREFER, self._prefer),
            rpc.unary(rpc.ALLOCATE, self._allocate),
            rpc.unary(rpc.PRE_START, self._start),
        )
        self.server = await rpc.serve(self.world.plugin_directory / endpoint, *handlers)
        request = dp.RegisterRequest(version=rpc.VERSION, endpoint=endpoint, resource_name=self.resource)
        async with asyncio.timeout(PATIENCE):
            while not await self._told(request):  # noqa: ASYNC110
                await asyncio.sleep(0.002)
        self.order.append("registered")

    async def _told(self, request: dp.RegisterRequest) -> bool:
        """Whether kubelet has heard it. The socket of one that starts is there a moment before anybody listens, and a
        kubelet that is just letting the plugin before go may take the connection to the new one along."""
        try:
            await rpc.call_socket(self.world.plugin_directory / rpc.KUBELET_SOCKET, rpc.REGISTER, request, timeout=15)
        except grpc.aio.AioRpcError as e:
            passing = ("onnection refused", "client connection is closing")
            if not any(reason in (e.details() or "") for reason in passing):
                raise
            return False
        return True

    async def _options(self, request: dp.Empty, context: rpc.Context) -> dp.DevicePluginOptions:
        self.order.append("options")
        return dp.DevicePluginOptions(
            pre_start_required=self.starting, get_preferred_allocation_available=self.preferring
        )

    async def _list(self, request: dp.Empty, context: rpc.Context) -> AsyncIterator[dp.ListAndWatchResponse]:
        self.order.append("list")
        yield dp.ListAndWatchResponse(devices=[dp.Device(ID=i, health="Healthy") for i in self.devices])
        await asyncio.Event().wait()

    async def _prefer(
        self, request: dp.PreferredAllocationRequest, context: rpc.Context
    ) -> dp.PreferredAllocationResponse:
        (asked,) = request.container_requests
        self.preparing += 1
        self.at_once = max(self.at_once, self.preparing)
        await asyncio.sleep(self.slow)
        self.preparing -= 1
        must = frozenset(asked.must_include_deviceIDs)
        chosen = [*must, *sorted(set(asked.available_deviceIDs) - must, reverse=True)][: asked.allocation_size]
        waiting = await self.waiting()
        self.calls.append(Call("prefer", frozenset(chosen), must, asked.allocation_size, waiting))
        answer = dp.PreferredAllocationResponse()
        answer.container_responses.add(deviceIDs=chosen)
        return answer

    async def _allocate(self, request: dp.AllocateRequest, context: rpc.Context) -> dp.AllocateResponse:
        (asked,) = request.container_requests
        ids = frozenset(asked.devices_ids)
        self.calls.append(Call("allocate", ids, size=len(ids), waiting=await self.waiting()))
        if self.refuse_allocate:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "refused by the test")
        answer = dp.AllocateResponse()
        answer.container_responses.add(envs={"RECORDED": str(len(self.calls))})
        return answer

    async def _start(self, request: dp.PreStartContainerRequest, context: rpc.Context) -> dp.PreStartContainerResponse:
        self.calls.append(Call("start", frozenset(request.devices_ids)))
        if self.refuse_starts:
            self.refuse_starts -= 1
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, "not yet, says the test")
        return dp.PreStartContainerResponse()

    async def held(self) -> dict[str, frozenset[str]]:
        """What pod-resources says that each listed container (pod/container) has of the resource."""
        request = pr.ListPodResourcesRequest()
        listed = await rpc.call_socket(self.world.pod_resources_socket, rpc.LIST, request, timeout=15)
        return {
            f"{pod.name}/{container.name}": frozenset(
                one for d in container.devices if d.resource_name == self.resource for one in d.device_ids
            )
            for pod in listed.pod_resources
            for container in pod.containers
        }

    async def waiting(self) -> frozenset[str]:
        return frozenset(name for name, ids in (await self.held()).items() if not ids)

    async def over_a_restart(self, *, forgets: bool = False) -> None:
        """Kubelet restarts, and the plugin registers again as soon as the new one listens, before it admits a pod."""
        socket = self.world.plugin_directory / rpc.KUBELET_SOCKET
        before = _made(socket)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.world.restart_kubelet(forgets=forgets))
            async with asyncio.timeout(PATIENCE):
                while _made(socket) in (None, before):  # noqa: ASYNC110
                    await asyncio.sleep(0.002)
            old, self.server = self.server, None
            if old is not None:
                await old.stop(0)
            await self.register()
        await until(lambda: offers(self, len(self.devices)))


@asynccontextmanager
async def recording(
    world: KubeletWorld, *, devices: int = 8, preferring: bool = True, registered: bool = True
) -> AsyncGenerator[Recorder, None]:
    """A recorder of a fresh resource; ``registered``: its devices are allocatable."""
    number = next(numbers)
    ids: list[str] = [*device_ids(_card(number), devices)]
    recorder = Recorder(world, f"contract{number}.fractile.dev/slot", ids, preferring=preferring)
    try:
        if registered:
            await recorder.register()
            await until(lambda: offers(recorder, devices))
        yield recorder
    finally:
        if recorder.server is not None:
            await recorder.server.stop(0)


async def offers(recorder: Recorder, count: int) -> bool:
    return await recorder.world.allocatable(recorder.resource) == count


async def until(true: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not await true():  # noqa: ASYNC110
            await asyncio.sleep(0.05)


def _made(path: Path) -> int | None:
    """When, in ns; inodes are used again."""
    try:
        return path.stat().st_ctime_ns
    except FileNotFoundError:
        return None


def _card(number: int) -> CardUUID:
    return CardUUID(f"GPU-c0{number:06x}-0000-4000-8000-000000000000")
