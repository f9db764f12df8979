"""Simulates kubelet's device manager: the same choices, calls, order and record as the real one, without containers.

    admit(pod): for each container in order, for each resource in random order
        recorded already? ─> reuse what a finished init container of the pod held ─> GetPreferredAllocation
        ─> honoured where it is a subset of the free ones, else random ─> Allocate ─> checkpoint
    pre_start(pod, container): PreStart where the plugin asked for it; what the container asks for and does not hold,
        since its plugin registered after the admission, is allocated now: by the pod's own worker, concurrently

Source: pkg/kubelet/cm/devicemanager of Kubernetes 1.36.3 (manager.go, pod_devices.go, plugin/v1beta1), reimplemented.
The behaviour of the real one in each case was read there and observed (evidence/kubelet.md#choice-of-ids);
tests/contract checks both against it.
"""

import asyncio
import logging
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc.aio
import msgspec

from fractile.agent.kubelet import rpc
from fractile.agent.kubelet.api import deviceplugin_pb2 as dp
from fractile.dialects.table import containers_in_order
from fractile.errors import FractileError, WireError
from fractile.lab.hollow.plugins import Plugins
from fractile.model.request import Role
from fractile.model.units import ContainerName, PodUID
from fractile.wire.foreign import kubelet_checkpoint
from fractile.wire.foreign.kubelet_checkpoint import Recorded
from fractile.wire.kubernetes.objects import Container, Pod
from fractile.wire.quantity import whole_number

_PRE_START = 30.0  # seconds; the only plugin call for which kubelet has a timeout

log = logging.getLogger(__name__)

Ids = set[str]


class NotAdmitted(FractileError):
    """Kubelet's admission fails: the pod is permanently Failed with the reason UnexpectedAdmissionError."""


class NotStarted(FractileError):
    """A container cannot start now; kubelet will retry."""


class Panicked(FractileError):
    """Kubelet crashes: "assignment to entry in nil map". When two pods are allocated at the same time, which happens
    only for late allocations, each deletes the other's record of init containers (devicesToReuse in manager.go; seen
    with 1.36.3)."""


class _Key(msgspec.Struct, frozen=True):
    uid: PodUID
    container: ContainerName
    resource: str


class _Held(msgspec.Struct, frozen=True):
    ids: frozenset[str]
    answer: dp.ContainerAllocateResponse


class DeviceManager:
    """``active``: returns the UIDs of the pods that are not finished. ``running``: says whether a container already
    runs, which kubelet asks the runtime when it starts."""

    def __init__(
        self,
        directory: Path,
        *,
        active: Callable[[], set[PodUID]],
        running: Callable[[PodUID, ContainerName], bool],
        rng: random.Random,
    ) -> None:
        self._file = directory / kubelet_checkpoint.FILE_NAME
        self._active = active
        self._running = running
        self._rng = rng
        self._held: dict[_Key, _Held] = {}
        self._in_use: dict[str, Ids] = {}
        self._reusable: tuple[PodUID, dict[str, Ids]] = (PodUID(""), {})
        self.plugins = Plugins(directory, changed=self.write_checkpoint)
        self.ready = False  # whether all pods from the API have been seen since the start

    async def start(self, tasks: asyncio.TaskGroup) -> None:
        """Remove all sockets, read the record, serve kubelet.sock. Recorded resources have 0 devices until
        registered."""
        self._read_checkpoint()
        await self.plugins.start(tasks)

    async def stop(self) -> None:
        await self.plugins.stop()

    # The data for pod-resources and the node's status

    def held(self, uid: PodUID, container: str) -> Iterator[tuple[str, frozenset[str]]]:
        """The resources and ids that a container holds."""
        for key, held in self._held.items():
            if key.uid == uid and key.container == container:
                yield key.resource, held.ids

    def answers(self, uid: PodUID, container: str) -> list[dp.ContainerAllocateResponse]:
        """The plugins' answers to Allocate for a container."""
        return [h.answer for k, h in self._held.items() if k.uid == uid and k.container == container]

    # Admission

    async def admit(self, pod: Pod) -> None:
        """Allocate devices for all containers of the pod, in order. NotAdmitted when one cannot get its devices."""
        for role, container in containers_in_order(pod):
            await self._admit_container(PodUID(pod.metadata.uid), container, role)

    async def _admit_container(self, uid: PodUID, container: Container, role: Role) -> None:
        if self._reusable[0] != uid:
            self._reusable = (uid, {})
        reusable = self._reusable[1]
        name = ContainerName(container.name)
        await self._allocate_all(uid, name, container, reusable)
        if self._reusable[0] != uid:
            raise Panicked(f"another pod was allocated beside container {name}")
        for resource, ids in self.held(uid, name):
            before = reusable.setdefault(resource, set())
            reusable[resource] = before | ids if role is Role.INIT else before - ids

    async def _allocate_all(
        self, uid: PodUID, name: ContainerName, container: Container, reusable: dict[str, Ids]
    ) -> None:
        limits = self._shuffled(limits_of(container))
        wanted = [(r, n) for r, n in limits if self.plugins.knows(r) or r in self._in_use]
        if wanted:
            self.forget_finished()
        allocated = False
        for resource, count in wanted:
            key = _Key(uid, name, resource)
            ids = await self._choose(key, count, reusable.get(resource, set()))
            if ids:
                await self._allocate(key, ids)
                allocated = True
        if allocated:
            self.write_checkpoint()

    async def _choose(self, key: _Key, required: int, reusable: Ids) -> Ids:
        held = self._held.get(key)
        present: frozenset[str] = held.ids if held else frozenset()
        if held and len(present) != required:
            raise NotAdmitted(f"container {key.container} changed its request of {key.resource}")
        if not self.ready and self._running(key.uid, key.container):
            return set()  # after a kubelet restart: the container has its devices
        healthy = self.plugins.healthy(key.resource)
        if healthy is None:
            raise NotAdmitted(f"cannot allocate unregistered device {key.resource}")
        if not healthy:
            raise NotAdmitted(f"no healthy devices present; cannot allocate unhealthy devices {key.resource}")
        if not healthy >= present:
            raise NotAdmitted(f"previously allocated devices are no longer healthy; {key.resource}")
        if held or not required:
            return set()
        try:
            return await self._pick(key.resource, required, reusable, healthy)
        except NotAdmitted:
            self._in_use = self._recorded_use()
            raise

    async def _pick(self, resource: str, required: int, reusable: Ids, healthy: Ids) -> Ids:
        """Choose ids in kubelet's order: reusable ones, then free preferred ones, then any free ones."""
        chosen = set(self._some(reusable, required))
        self._in_use.setdefault(resource, set()).update(chosen)
        if len(chosen) == required:
            return chosen
        free = healthy - self._in_use[resource]
        if len(free) < required - len(chosen):
            raise NotAdmitted(
                f"requested number of devices unavailable for {resource}. Requested: {required - len(chosen)}, "
                f"Available: {len(free)}"
            )
        preferred = await self._preferred(resource, available=free | chosen, must=set(chosen), size=required)
        for source in (preferred & free, free):
            more = self._some(source - chosen, required - len(chosen))
            chosen.update(more)
            self._in_use.setdefault(resource, set()).update(more)
        return chosen

    def _some(self, ids: Ids, count: int) -> list[str]:
        return self._rng.sample(sorted(ids), min(count, len(ids)))

    async def _preferred(self, resource: str, *, available: Ids, must: Ids, size: int) -> Ids:
        request = dp.PreferredAllocationRequest()
        request.container_requests.add(
            available_deviceIDs=self._some(available, len(available)),
            must_include_deviceIDs=self._some(must, len(must)),
            allocation_size=size,
        )
        options = self.plugins.options(resource)
        if options is None or not options.get_preferred_allocation_available:
            return set()
        try:
            answer = await self.plugins.call(resource, rpc.PREFER, request, timeout=None)
        except grpc.aio.AioRpcError as e:
            raise NotAdmitted(f"device plugin GetPreferredAllocation rpc failed with err: {e.details()}") from None
        return set(answer.container_responses[0].deviceIDs) if answer.container_responses else set()

    async def _allocate(self, key: _Key, ids: Ids) -> None:
        request = dp.AllocateRequest()
        request.container_requests.add(devices_ids=self._some(ids, len(ids)))
        try:
            answer = await self.plugins.call(key.resource, rpc.ALLOCATE, request, timeout=None)
        except grpc.aio.AioRpcError as e:
            self._in_use = self._recorded_use()
            raise NotAdmitted(f"rpc error: code = {e.code().name} desc = {e.details()}") from None
        if not answer.container_responses:
            raise NotAdmitted("no containers return in allocation response")
        self._held[key] = _Held(frozenset(ids), answer.container_responses[0])

    # Start of a container

    async def pre_start(self, pod: Pod, container: Container) -> None:
        """Run before each start of a container, once for each of its resources. NotStarted when a plugin refuses.

        As in GetDeviceRunContainerOptions, a resource that kubelet knows only from its record, since its plugin has not
        come back, has no options, so no plugin is called, and the container starts with the recorded answer.
        """
        uid, name = PodUID(pod.metadata.uid), ContainerName(container.name)
        lacking = False
        for resource, count in self._shuffled(limits_of(container)):
            if not count or not (self.plugins.knows(resource) or resource in self._in_use):
                continue
            if not self.plugins.knows(resource):
                raise NotStarted(f"endpoint not found in cache for a registered resource: {resource}")
            held = self._held.get(_Key(uid, name, resource))
            options = self.plugins.last_options(resource)
            if options is not None and options.pre_start_required:
                if held is None:
                    raise NotStarted(
                        f"no devices found allocated in local cache for container {name}, resource {resource}"
                    )
                await self._pre_start(resource, held.ids)
            lacking = lacking or held is None
        if lacking and uid in self._active():
            await self._again(pod, container)

    async def _again(self, pod: Pod, container: Container) -> None:
        log.info("allocated late pod=%s container=%s", pod.metadata.name, container.name)
        role = next(r for r, c in containers_in_order(pod) if c.name == container.name)
        try:
            await self._admit_container(PodUID(pod.metadata.uid), container, role)
        except NotAdmitted as e:
            raise NotStarted(str(e)) from None

    def _shuffled(self, limits: dict[str, int]) -> list[tuple[str, int]]:
        """The limits in random order, in which Go iterates over maps."""
        return self._rng.sample(list(limits.items()), len(limits))

    async def _pre_start(self, resource: str, ids: frozenset[str]) -> None:
        request = dp.PreStartContainerRequest(devices_ids=self._some(set(ids), len(ids)))
        try:
            await self.plugins.call(resource, rpc.PRE_START, request, timeout=_PRE_START)
        except grpc.aio.AioRpcError as e:
            raise NotStarted(
                "device plugin PreStartContainer rpc failed with err: rpc error: "
                f"code = {e.code().name} desc = {e.details()}"
            ) from None

    # The record

    def forget_finished(self) -> None:
        """Free the ids of inactive pods; kubelet does so before each allocation and each List."""
        active = self._active()
        if not self.ready or all(k.uid in active for k in self._held):
            return
        self._held = {k: h for k, h in self._held.items() if k.uid in active}
        self._in_use = self._recorded_use()

    def write_checkpoint(self) -> None:
        """Write the checkpoint, as kubelet does after each allocation and each list of devices."""
        entries = [
            Recorded(k.uid, k.container, k.resource, h.ids, h.answer.SerializeToString()) for k, h in self._held.items()
        ]
        staging = self._file.with_suffix(".new")
        staging.write_bytes(kubelet_checkpoint.encode(entries, self.plugins.registered()))
        staging.rename(self._file)

    def _read_checkpoint(self) -> None:
        try:
            text = self._file.read_bytes()
            for e in kubelet_checkpoint.decode(text):
                answer = dp.ContainerAllocateResponse.FromString(e.answer)
                self._held[_Key(e.uid, e.container, e.resource)] = _Held(frozenset(e.ids), answer)
            self.plugins.expect(kubelet_checkpoint.registered(text))
        except FileNotFoundError:
            return
        except WireError as e:
            log.warning("checkpoint ignored reason=%s", e)
        self._in_use = self._recorded_use()

    def _recorded_use(self) -> dict[str, Ids]:
        use: dict[str, Ids] = {}
        for key, held in self._held.items():
            use.setdefault(key.resource, set()).update(held.ids)
        return use


def limits_of(container: Container) -> dict[str, int]:
    """The container's limits on extended resources, which are whole numbers; other limits are ignored."""
    amounts: dict[str, int] = {}
    for resource, value in ((container.resources and container.resources.limits) or {}).items():
        if "/" not in resource:
            continue
        try:
            amounts[resource] = whole_number(value)
        except WireError:
            continue
    return amounts
