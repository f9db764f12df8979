"""The gRPC service of one resource: kubelet's messages as calls of our preferred_allocation, allocate and prestart.

It makes no decisions itself. A request may hold several containers, although kubelet sends one at a time.
"""

import asyncio
import logging
from collections.abc import AsyncIterator

import grpc

from fractile.agent.deviceplugin.allocate import Allocator
from fractile.agent.deviceplugin.preferred_allocation import PreferredAllocation
from fractile.agent.deviceplugin.prestart import PreStart
from fractile.agent.kubelet import rpc
from fractile.agent.kubelet.api import deviceplugin_pb2 as dp
from fractile.agent.node.catalog import Catalog, CurrentCatalog
from fractile.dialects import table
from fractile.dialects.dialect import ResourceKind
from fractile.errors import WireError
from fractile.wire.foreign import device_list

log = logging.getLogger(__name__)


class Plugin:
    """The handlers of one resource."""

    def __init__(
        self,
        resource: str,
        *,
        current_catalog: CurrentCatalog,
        preferred_allocation: PreferredAllocation,
        allocator: Allocator,
        prestart: PreStart,
    ) -> None:
        self.resource = resource
        self._current_catalog = current_catalog
        self._preferred_allocation = preferred_allocation
        self._allocator = allocator
        self._prestart = prestart

    def handlers(self, watch: "Watch") -> tuple[rpc.Handler, ...]:
        """The methods of one registration; ``watch`` records when kubelet's ListAndWatch begins and ends."""

        async def list_and_watch(request: dp.Empty, context: rpc.Context) -> AsyncIterator[bytes]:
            async for answer in self._list_and_watch(watch):
                yield answer

        return (
            rpc.unary(rpc.OPTIONS, self._options),
            rpc.streaming(rpc.LIST_AND_WATCH, list_and_watch),
            rpc.unary(rpc.PREFER, self._prefer),
            rpc.unary(rpc.ALLOCATE, self._allocate),
            rpc.unary(rpc.PRE_START, self._pre_start),
        )

    async def _options(self, request: dp.Empty, context: rpc.Context) -> dp.DevicePluginOptions:
        return options(self.resource)

    async def _list_and_watch(self, watch: "Watch") -> AsyncIterator[bytes]:
        watch.began.set()
        try:
            while True:
                catalog = self._current_catalog.catalog
                yield _devices(catalog, self.resource)
                await self._current_catalog.changed(catalog)
        finally:
            watch.ended.set()

    async def _prefer(
        self, request: dp.PreferredAllocationRequest, context: rpc.Context
    ) -> dp.PreferredAllocationResponse:
        answer = dp.PreferredAllocationResponse()
        for asked in request.container_requests:
            chosen = await self._preferred_allocation.prefer(
                self.resource,
                available=list(asked.available_deviceIDs),
                must_include=list(asked.must_include_deviceIDs),
                size=asked.allocation_size,
                distinct=self._current_catalog.catalog.distinct(self.resource),
            )
            answer.container_responses.add(deviceIDs=chosen)
        return answer

    async def _allocate(self, request: dp.AllocateRequest, context: rpc.Context) -> dp.AllocateResponse:
        answer = dp.AllocateResponse()
        for asked in request.container_requests:
            try:
                given = await self._allocator.allocate(
                    self.resource, list(asked.devices_ids), self._current_catalog.catalog
                )
            except WireError as e:
                log.warning("allocate refused resource=%s reason=%s", self.resource, e)
                await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(e))
            answer.container_responses.append(given)
        return answer

    async def _pre_start(
        self, request: dp.PreStartContainerRequest, context: rpc.Context
    ) -> dp.PreStartContainerResponse:
        if table.kind(self.resource) is ResourceKind.COUNTED:
            return dp.PreStartContainerResponse()
        denied = await self._prestart.check(self.resource, frozenset(request.devices_ids))
        if denied is not None:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, denied.reason)
        return dp.PreStartContainerResponse()


class Watch:
    """Whether kubelet's ListAndWatch of one registration has begun, and has ended."""

    def __init__(self) -> None:
        self.began = asyncio.Event()
        self.ended = asyncio.Event()


def options(resource: str) -> dp.DevicePluginOptions:
    """The options that kubelet gets in Register and from GetDevicePluginOptions.

    PreStart is required for resources that are only counted, too, although nothing is granted then. Otherwise kubelet
    allocates them late, from the pods' own workers, if it did not know the resource when it admitted them, and two of
    these at a time make kubelet 1.36.3 panic (evidence/kubelet.md#late-allocation). With it kubelet refuses to start
    such a container.
    """
    return dp.DevicePluginOptions(pre_start_required=True, get_preferred_allocation_available=True)


def _devices(catalog: Catalog, resource: str) -> bytes:
    counts = catalog.counts(resource)
    return device_list.encode((c.uuid, counts.get(c.uuid, 0), c.healthy) for c in catalog.all)
