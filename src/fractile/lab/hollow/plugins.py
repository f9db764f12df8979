"""The plugins that registered with a simulated kubelet: connections, options, and the devices they list.

Kubelet's rules (pkg/kubelet/cm/devicemanager/plugin/v1beta1 of 1.36.3): kubelet removes all sockets when it starts;
Register dials the plugin and gets its options before it answers; when a plugin's stream ends, all its devices become
unhealthy; this also disconnects the plugin that is then registered for the resource, even if it is a successor.
"""

import asyncio
import contextlib
import logging
import stat
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeVar

import grpc
import grpc.aio
import msgspec
from google.protobuf.message import Message

from fractile.agent.kubelet import rpc
from fractile.agent.kubelet.api import deviceplugin_pb2 as dp

_DIAL = 10.0  # seconds, as kubelet's

Q = TypeVar("Q", bound=Message)
R = TypeVar("R", bound=Message)

log = logging.getLogger(__name__)


class _Plugin(msgspec.Struct, frozen=True):
    resource: str
    channel: grpc.aio.Channel
    options: dp.DevicePluginOptions


class Stopped(grpc.aio.AioRpcError):
    """The plugin of a resource is not connected."""

    def __init__(self, resource: str) -> None:
        super().__init__(
            grpc.StatusCode.UNAVAILABLE, grpc.aio.Metadata(), grpc.aio.Metadata(), f"endpoint {resource} is stopped", ""
        )


class Plugins:
    """``changed`` is called after each list of devices."""

    def __init__(self, directory: Path, *, changed: Callable[[], None]) -> None:
        self._directory = directory
        self._changed = changed
        self._plugins: dict[str, _Plugin] = {}
        self._options: dict[str, dp.DevicePluginOptions] = {}  # of all plugins that have registered
        self._healthy: dict[str, set[str]] = {}
        self._unhealthy: dict[str, set[str]] = {}
        self._server: grpc.aio.Server | None = None
        self._tasks: asyncio.TaskGroup | None = None
        self._readers: set[asyncio.Task[None]] = set()

    async def start(self, tasks: asyncio.TaskGroup) -> None:
        """Serve kubelet.sock; the readers of the plugins' lists run in ``tasks``."""
        self._tasks = tasks
        for path in self._directory.iterdir():
            with contextlib.suppress(FileNotFoundError):  # a starting agent also removes sockets of its predecessor
                if stat.S_ISSOCK(path.lstat().st_mode):
                    path.unlink()
        socket = self._directory / rpc.KUBELET_SOCKET
        self._server = await rpc.serve(socket, rpc.unary(rpc.REGISTER, self._register))

    async def stop(self) -> None:
        """Stop as when kubelet dies: all connections break, and its own socket is removed."""
        if self._server is not None:
            await self._server.stop(0)
        for reader in list(self._readers):
            reader.cancel()
        await asyncio.gather(*self._readers, return_exceptions=True)
        for plugin in self._plugins.values():
            await plugin.channel.close(None)
        self._plugins.clear()

    def expect(self, resources: Iterable[str]) -> None:
        """Add resources from the record: they are known, but have no devices until they register again."""
        for resource in resources:
            self._healthy[resource] = set()
            self._unhealthy[resource] = set()

    def knows(self, resource: str) -> bool:
        return resource in self._healthy

    def healthy(self, resource: str) -> set[str] | None:
        """The healthy ids; None when the resource was never registered."""
        return self._healthy.get(resource)

    def options(self, resource: str) -> dp.DevicePluginOptions | None:
        """The plugin's options; None when it is not connected."""
        plugin = self._plugins.get(resource)
        return plugin.options if plugin else None

    def last_options(self, resource: str) -> dp.DevicePluginOptions | None:
        """The plugin's options, even after it disconnected; None if it has not registered since kubelet's start."""
        return self._options.get(resource)

    def registered(self) -> dict[str, list[str]]:
        return {resource: sorted(ids) for resource, ids in self._healthy.items()}

    def capacity(self) -> dict[str, tuple[int, int]]:
        """Capacity and allocatable of each resource, as in the node's status."""
        return {r: (len(ids) + len(self._unhealthy.get(r, ())), len(ids)) for r, ids in self._healthy.items()}

    async def call(self, resource: str, method: rpc.Method[Q, R], request: Q, *, timeout: float | None) -> R:
        """Call the plugin; AioRpcError when the call fails or the plugin is not connected."""
        plugin = self._plugins.get(resource)
        if plugin is None:
            raise Stopped(resource)
        try:
            return await rpc.call(plugin.channel, method, request, timeout=timeout)
        except (asyncio.CancelledError, grpc.aio.UsageError):
            # Closing a channel cancels its calls; that must not look like a cancellation of this task.
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            raise Stopped(resource) from None

    async def _register(self, request: dp.RegisterRequest, context: rpc.Context) -> dp.Empty:
        if request.version != rpc.VERSION:
            await context.abort(grpc.StatusCode.UNKNOWN, f"requested API version {request.version!r} is not supported")
        if "/" not in request.resource_name:
            await context.abort(grpc.StatusCode.UNKNOWN, f"invalid resource name {request.resource_name!r}")
        channel = rpc.channel(self._directory / request.endpoint)
        try:
            options = await rpc.call(channel, rpc.OPTIONS, dp.Empty(), timeout=_DIAL)
        except grpc.aio.AioRpcError as e:
            await channel.close(None)
            await context.abort(grpc.StatusCode.UNKNOWN, f"failed to dial device plugin: {e.details()}")
        plugin = _Plugin(request.resource_name, channel, options)
        if not self._follow(plugin):
            await channel.close(None)
            await context.abort(grpc.StatusCode.UNAVAILABLE, "kubelet ends")
        self._plugins[request.resource_name] = plugin
        self._options[request.resource_name] = options
        log.info("registered resource=%s endpoint=%s", request.resource_name, request.endpoint)
        return dp.Empty()

    def _follow(self, plugin: _Plugin) -> bool:
        """Start reading the plugin's lists; False when kubelet, and with it the task group, is stopping."""
        assert self._tasks is not None
        reading = self._read(plugin)
        try:
            reader = self._tasks.create_task(reading)
        except RuntimeError:
            reading.close()
            return False
        self._readers.add(reader)
        reader.add_done_callback(self._readers.discard)
        return True

    async def _read(self, plugin: _Plugin) -> None:
        try:
            async for answer in rpc.stream(plugin.channel, rpc.LIST_AND_WATCH, dp.Empty()):
                self._healthy[plugin.resource] = {d.ID for d in answer.devices if d.health == "Healthy"}
                self._unhealthy[plugin.resource] = {d.ID for d in answer.devices if d.health != "Healthy"}
                self._changed()
        except grpc.aio.AioRpcError as e:
            log.info("disconnected resource=%s reason=%s", plugin.resource, e.details())
        await self._disconnect(plugin.resource)

    async def _disconnect(self, resource: str) -> None:
        plugin = self._plugins.pop(resource, None)
        if plugin is None:
            return
        self._unhealthy.setdefault(resource, set()).update(self._healthy.get(resource, set()))
        self._healthy[resource] = set()
        await plugin.channel.close(None)
