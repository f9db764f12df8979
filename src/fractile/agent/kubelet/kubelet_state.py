"""Kubelet's records: which container holds which ids, from its pod-resources API and from its checkpoint file.

pod-resources names the pods, with sidecars and apps, but has neither UIDs nor ordinary init containers; the checkpoint
has UIDs, init containers and our answers to Allocate, but no names. Together they are exact
(evidence/kubelet.md#pod-resources, evidence/kubelet.md#checkpoint).
Failure rule: without pod-resources ``state`` raises KubeletStateMissing; without the checkpoint less is known.
"""

import asyncio
import logging
from collections.abc import Container, Iterable, Sequence, Set
from functools import cached_property
from pathlib import Path

import grpc
import grpc.aio
import msgspec
from google.protobuf.message import DecodeError

from fractile.agent.kubelet import rpc
from fractile.agent.kubelet.api import deviceplugin_pb2 as dp
from fractile.agent.kubelet.api import podresources_pb2 as pr
from fractile.errors import FractileError, WireError
from fractile.model.units import ContainerName, PodUID
from fractile.region import directory
from fractile.wire.foreign import kubelet_checkpoint
from fractile.wire.foreign.kubelet_checkpoint import Recorded
from fractile.wire.fractile.device_ids import compact

_CALL = 5.0  # seconds; measured 1-9 ms
_AT_ONCE = 1024 * 1024  # bytes of a checkpoint that is decoded faster than a thread may take to start
_TRIES = 4  # kubelet allows 100 calls a second, 10 at once, and answers RESOURCE_EXHAUSTED above

log = logging.getLogger(__name__)

Held = dict[ContainerName, dict[str, Set[str]]]


class KubeletStateMissing(FractileError):
    """Kubelet's pod-resources API does not answer."""


class ListedPod(msgspec.Struct, frozen=True):
    """A pod of the list: what each of its containers holds, by resource. Containers that hold nothing are included."""

    namespace: str
    name: str
    held: Held


class KubeletState(msgspec.Struct, frozen=True, dict=True):
    """Both records, read one after the other; ``recorded`` is None when the checkpoint could not be read. ``listed`` is
    empty if only the checkpoint was read."""

    listed: tuple[ListedPod, ...]
    recorded: tuple[Recorded, ...] | None

    def entry(self, uid: PodUID, container: str, resource: str) -> Recorded | None:
        """The checkpoint's entry of that container."""
        return self._entries.get((uid, container, resource))

    @cached_property
    def _entries(self) -> dict[tuple[PodUID, str, str], Recorded]:
        """Built once per read: every container of every candidate pod is looked up."""
        return {(e.uid, e.container, e.resource): e for e in reversed(self.recorded or ())}

    def recorded_holders(self, resource: str, ids: Set[str]) -> list[Recorded]:
        """The checkpoint's containers that hold exactly these ids."""
        wanted = compact(ids)
        return [e for e in self.recorded or () if e.resource == resource and e.ids == wanted]

    def listed_holders(self, resource: str, ids: Set[str]) -> list[tuple[ListedPod, ContainerName]]:
        """The listed containers that hold exactly these ids."""
        wanted = compact(ids)
        return [
            (pod, container)
            for pod in self.listed
            for container, held in pod.held.items()
            if held.get(resource) == wanted
        ]


class Kubelet:
    """Reads the records of this node's kubelet.

    One read at a time, since each may hold 60,000 ids; all calls that come during one share the next one.
    """

    def __init__(self, pod_resources: Path, checkpoint: Path) -> None:
        self._line = rpc.KubeletChannel(pod_resources)
        self._socket = pod_resources
        self._checkpoint = checkpoint
        self._reading = asyncio.Lock()
        self._asked = 0  # calls of ``state`` so far
        self._last: tuple[int, KubeletState] | None = None  # a read, and the number of calls when it began
        self._known: dict[bytes, ListedPod] = {}  # of the last list, by encoding: most pods are unchanged
        self._in_use: frozenset[str] = frozenset()

    def in_use(self) -> frozenset[str]:
        """The resources of which some container held ids when the checkpoint was last read."""
        return self._in_use

    async def state(self) -> KubeletState:
        """Kubelet's records, read after this call was made, perhaps for another caller."""
        self._asked += 1
        mine = self._asked
        async with self._reading:
            if self._last is not None and self._last[0] >= mine:
                began, state = self._last
                self._last = None if mine == began else self._last  # the last caller that shares it
                return state
            began = self._asked
            self._last = None
            # The list comes first: what it shows is in the checkpoint by then, or soon.
            listed = await self._list()
            state = KubeletState(listed, await self._recorded())
            if began > mine:
                self._last = began, state
            return state

    async def record(self) -> KubeletState:
        """The checkpoint alone. Kubelet writes it before it admits a container, so a container about to start is in it
        (pkg/kubelet/cm/devicemanager/manager.go: a container that cannot be recorded is not admitted)."""
        return KubeletState((), await self._recorded())

    async def close(self) -> None:
        """Close the connection; the next read opens another."""
        await self._line.close()

    async def _list(self) -> tuple[ListedPod, ...]:
        for attempt in range(_TRIES):
            try:
                answer = await self._line.call(rpc.LIST_ENCODED, pr.ListPodResourcesRequest(), timeout=_CALL)
                return self._decoded(answer.pod_resources)
            except DecodeError:
                raise KubeletStateMissing(
                    f"kubelet's pod-resources API at {self._socket} sent an answer that cannot be decoded"
                ) from None
            except grpc.aio.AioRpcError as e:
                if attempt == _TRIES - 1 or e.code() is not grpc.StatusCode.RESOURCE_EXHAUSTED:
                    raise KubeletStateMissing(
                        f"kubelet's pod-resources API at {self._socket} does not answer ({e.code().name}); check "
                        "whether kubelet runs"
                    ) from None
            await asyncio.sleep(0.05 * 2**attempt)
        raise AssertionError("unreachable")

    def _decoded(self, encoded: Iterable[bytes]) -> tuple[ListedPod, ...]:
        found = [(kubelet_checkpoint.key_of(pod), pod) for pod in encoded]
        listed = [self._known.get(key) or listed_pod(pr.PodResources.FromString(pod)) for key, pod in found]
        self._known = dict(zip((key for key, _ in found), listed, strict=True))
        return tuple(listed)

    async def _recorded(self) -> tuple[Recorded, ...] | None:
        """A thread costs more the busier the node is, so only a file with very many ids is read in one."""
        try:
            if self._checkpoint.stat().st_size <= _AT_ONCE:
                return self._read()
            return await asyncio.to_thread(self._read)
        except FileNotFoundError:
            return ()  # a kubelet that has not given out devices yet
        except (OSError, WireError) as e:
            log.warning("checkpoint unreadable reason=%s", e)
            return None

    def _read(self) -> tuple[Recorded, ...]:
        recorded = kubelet_checkpoint.decode(self._checkpoint.read_bytes())
        self._in_use = frozenset(e.resource for e in recorded)
        return recorded


def mounted(entry: Recorded) -> Path | None:
    """The token directory that our answer to Allocate mounted; None when the answer is not ours."""
    return next((Path(m.host_path) for m in _answered(entry) if m.container_path == directory.MOUNT), None)


def mounted_at(entry: Recorded) -> frozenset[str]:
    """The container's paths at which the answer to Allocate mounted something."""
    return frozenset(m.container_path for m in _answered(entry))


def mounts(entry: Recorded) -> list[Path]:
    """All paths of the node that the answer to Allocate mounted."""
    return [Path(m.host_path) for m in _answered(entry)]


def sources(entry: Recorded, places: Container[str]) -> list[Path]:
    """The node's paths that our answer to Allocate mounted at these paths of the container."""
    return [Path(m.host_path) for m in _answered(entry) if m.container_path in places]


def _answered(entry: Recorded) -> Sequence[dp.Mount]:
    try:
        return dp.ContainerAllocateResponse.FromString(entry.answer).mounts
    except DecodeError:
        return ()


def listed_pod(pod: pr.PodResources) -> ListedPod:
    held: Held = {ContainerName(c.name): _by_resource(c) for c in pod.containers}
    return ListedPod(pod.namespace, pod.name, held)


def _by_resource(container: pr.ContainerResources) -> dict[str, Set[str]]:
    # Kubelet makes an entry for every single id (pkg/kubelet/cm/devicemanager/pod_devices.go), so 16,276 MiB are 16,276
    # entries: they are gathered in place, since a new set for each entry takes seconds.
    held: dict[str, set[str]] = {}
    for devices in container.devices:
        held.setdefault(devices.resource_name, set()).update(devices.device_ids)
    return {resource: compact(ids) for resource, ids in held.items()}
