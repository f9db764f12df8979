"""The virtual manager: what images made for gpu-manager find in ``/etc/vcuda``, and whom they can register with.

    Allocate     makes and mounts the folder
    PreStart     waits until the folder says what the container may use: its library takes that and registers nowhere
    opened       somebody reads it (inotify): from now on ``pids.config`` follows the container's cgroup
    registered   a library that asks all the same: checked (``vcuda_claim``), answered, and linked under its own name
    gone         pids and names are forgotten with the cgroup, the folder is emptied with the pod

Nothing of this enforces anything: the limits page does. A container of whose folder nobody reads costs nothing but the
folder and its socket. Level-triggered; after a restart of the agent sockets are opened anew, and a container whose
``pids.config`` was not empty goes on. Failure rule: open; what cannot be written is logged and tried again, and no
container waits longer than ``_READY`` for it.
"""

import asyncio
import contextlib
import logging
import re
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import msgspec
from asyncinotify import Event, Inotify, Mask, Watch

from fractile.agent.api import vcuda_pb2 as vcuda
from fractile.agent.catalog import Stock
from fractile.agent.cgroup_tree import CgroupTree
from fractile.agent.journal import Journal
from fractile.agent.pods import NodePods
from fractile.agent.procfs import ProcFs
from fractile.agent.vcuda_claim import Refused, Registered, bus_address, judge
from fractile.agent.vcuda_doors import Answer, Doors, Visitor
from fractile.agent.vcuda_folder import VcudaFolder
from fractile.errors import WireError
from fractile.kube.pacing import Clock, Sleep
from fractile.model.units import WHOLE, PodUID
from fractile.region.page import FLAG_OFF, Limits
from fractile.wire.vcuda import CONFIG_NAME, PIDS_NAME, VcudaConfig, encode_config, encode_pids

_ROUND = 2.0  # seconds
_READY = 2.0  # that a container waits for its files
_SEARCH = 30.0  # until a cgroup that was not found is searched again; less in the beginning
_DRIVER = Path("/proc/driver/nvidia/version")
_VERSION = re.compile(r"^NVRM version:.*?\s(\d{1,4})\.(\d{1,4})", re.MULTILINE)

log = logging.getLogger(__name__)


class _Container(msgspec.Struct):
    """One container. ``pids`` is what was written last, None while nobody reads it."""

    folder: VcudaFolder
    limits: Limits
    config: bytes = b""
    pids: tuple[int, ...] | None = None
    cgroup: Path | None = None
    container_id: str = ""
    watch: Watch | None = None
    search_at: float = 0.0
    searched: int = 0


class VirtualManager:
    """``ready`` before a container starts; ``run`` does the rest."""

    def __init__(
        self,
        journal: Journal,
        pods: NodePods,
        stock: Stock,
        *,
        state: Path,
        processes: ProcFs | None = None,
        cgroups: CgroupTree | None = None,
        driver: Path = _DRIVER,
        clock: Clock = time.monotonic,
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        self._journal = journal
        self._pods = pods
        self._stock = stock
        self._processes = processes or ProcFs()
        self._cgroups = cgroups or CgroupTree()
        self._driver = driver_version(driver)
        self._clock = clock
        self._sleep = sleep
        self._doors = Doors(state / "vcuda", self._called, clock=clock, sleep=sleep)
        self._containers: dict[str, _Container] = {}
        self._busy = asyncio.Lock()  # held by who changes containers or their folders
        self._wake = asyncio.Event()
        self._inotify: Inotify | None = None
        self._outcomes: Counter[str] = Counter()

    async def run(self) -> None:
        """Work forever."""
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._doors.run(tasks), name="vcuda doors")
                tasks.create_task(self._watch(), name="vcuda inotify")
                while True:
                    self._wake.clear()
                    await self.round()
                    await self._pause()
        finally:
            for container in self._containers.values():
                container.folder.close()

    async def ready(self, uid: PodUID) -> None:
        """When this returns, the folders of the pod's containers say what they may use, or the log why not."""
        try:
            async with asyncio.timeout(_READY), self._busy:
                for token, limits in (await self._live()).items():
                    if limits.pod_uid == uid:
                        await asyncio.to_thread(self._keep, token, limits)
                        self._settle(token)
        except (OSError, TimeoutError) as e:
            log.warning("vcuda folder not ready uid=%s reason=%s", uid, e or "it takes too long")

    def outcomes(self) -> dict[str, int]:
        """Registrations so far: those that were believed, and the others by what was not."""
        return dict(self._outcomes)

    async def round(self) -> None:
        """Compare all folders with the limits and with the processes that there are."""
        async with self._busy:
            try:
                live = await self._live()
            except OSError as e:
                log.warning("vcuda folders not kept reason=%s", e)
                return
            for token in self._containers.keys() - live.keys():
                self._doors.close(token)
                self._unwatch(self._containers[token])
                await asyncio.to_thread(self._end, token)
            await asyncio.to_thread(self._keep_all, live)
            for token in self._containers:
                self._settle(token)

    async def _live(self) -> Mapping[str, Limits]:
        """The limits of all containers that may still run, by token."""
        granted = await asyncio.to_thread(self._journal.granted)
        if not await self._pods.synced(0.0):
            return granted
        active = self._pods.active()
        return {token: limits for token, limits in granted.items() if limits.pod_uid in active}

    def _keep_all(self, live: Mapping[str, Limits]) -> None:
        for token, limits in live.items():
            self._keep(token, limits)

    def _keep(self, token: str, limits: Limits) -> None:
        """Make the folder of one container say what is."""
        try:
            container = self._known(token, limits)
            if container is None:
                return
            container.limits = limits
            config = encode_config(self._config(limits))
            if config != container.config:
                container.folder.write(CONFIG_NAME, config)
                container.config = config
            self._follow(token, container)
        except (OSError, WireError) as e:
            log.warning("vcuda folder not kept token=%s reason=%s", token, e)

    def _known(self, token: str, limits: Limits) -> _Container | None:
        """The container, with its door and its watch; None when it is not from gpu-manager's world."""
        container = self._containers.get(token)
        if container is None:
            try:
                folder = VcudaFolder(self._journal.path(token))
            except (FileNotFoundError, NotADirectoryError):
                return None
            container = self._containers[token] = _Container(folder, limits)
            if folder.size(PIDS_NAME):
                container.pids = ()  # it was read before this agent started
            else:
                folder.write(PIDS_NAME, b"")
        return container

    def _follow(self, token: str, container: _Container) -> None:
        """Write the container's processes down, if somebody reads it."""
        if container.pids is None:
            return
        if container.cgroup is None and self._clock() >= container.search_at:
            container.searched += 1
            container.search_at = self._clock() + min(_SEARCH, _ROUND * container.searched)
            container.cgroup = self._cgroups.find(
                container.limits.pod_uid, token=token, container_id=container.container_id
            )
        if container.cgroup is None:
            return
        pids = self._cgroups.pids(container.cgroup)
        if pids is None:
            self._forget(token, container)
        elif pids != container.pids:
            container.folder.write(PIDS_NAME, encode_pids(pids))
            container.pids = pids

    def _forget(self, token: str, container: _Container) -> None:
        """The container has ended; its pod may start it again."""
        container.folder.forget()
        container.pids, container.cgroup, container.container_id = None, None, ""
        container.search_at, container.searched = 0.0, 0
        log.info("container ended token=%s pod=%s/%s", token, container.limits.namespace, container.limits.pod)

    def _end(self, token: str) -> None:
        """The pod has ended."""
        container = self._containers.pop(token)
        try:
            container.folder.clear()
        except OSError as e:
            log.warning("vcuda folder not emptied token=%s reason=%s", token, e)
        container.folder.close()

    def _settle(self, token: str) -> None:
        """A door for the container, and a watch over its folder until somebody has read it."""
        container = self._containers.get(token)
        if container is None:
            return
        try:
            if self._doors.running and not self._doors.is_open(token):
                self._doors.open(token, container.folder.listen())
            if container.pids is not None:
                self._unwatch(container)
            elif self._inotify is not None and container.watch is None:
                container.watch = self._inotify.add_watch(container.folder.path, Mask.OPEN)  # pyright: ignore[reportUnknownMemberType]
        except OSError as e:
            log.warning("vcuda folder not served token=%s reason=%s", token, e)

    def _unwatch(self, container: _Container) -> None:
        watch, container.watch = container.watch, None
        if watch is not None and self._inotify is not None:
            with contextlib.suppress(OSError):
                self._inotify.rm_watch(watch)

    async def _watch(self) -> None:
        while True:
            try:
                with Inotify() as self._inotify:
                    self._wake.set()
                    async for event in self._inotify:
                        self._opened(event)
            except OSError as e:
                log.warning("vcuda folders not watched reason=%s", e)
            finally:
                self._inotify = None
                for container in self._containers.values():
                    container.watch = None
            await self._sleep(_SEARCH)

    def _opened(self, event: Event) -> None:
        """Somebody looks at a folder: follow its container, if it was one of the two files."""
        if event.name is None or event.name.name not in (CONFIG_NAME, PIDS_NAME):
            return
        for token, container in self._containers.items():
            if container.watch is not None and container.watch is event.watch and container.pids is None:
                self._unwatch(container)
                container.pids = ()
                self._wake.set()
                log.info("vcuda folder is read token=%s container=%s", token, container.limits.container)

    async def _pause(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_ROUND):
                await self._wake.wait()

    def _config(self, limits: Limits) -> VcudaConfig:
        cores = sum(c.cores for c in limits.cards)
        soft = {c.cores_limit for c in limits.cards if c.cores_limit > c.cores}
        return VcudaConfig(
            pod_uid=limits.pod_uid,
            container=limits.container,
            memory=sum(c.memory for c in limits.cards),
            cores=cores,
            limit=max(soft, default=0),
            bus_id=_short(next(iter(self._bus_ids(limits)), "")),
            driver=self._driver,
            enabled=cores < WHOLE and not limits.flags & FLAG_OFF,
        )

    def _bus_ids(self, limits: Limits) -> tuple[str, ...]:
        found = (self._stock.catalog.card(c.uuid) for c in limits.cards)
        return tuple(card.pci_bus_id for card in found if card is not None)

    async def _called(self, visitor: Visitor, claim: vcuda.VDeviceRequest) -> Answer:
        """A registration."""
        async with self._busy:
            container = self._containers.get(visitor.token)
            if container is None:
                return Answer("the container has ended", error=True)
            verdict = await asyncio.to_thread(self._judge, visitor, claim, container)
            name = f"{container.limits.namespace}/{container.limits.pod}"
            who = f"token={visitor.token} pid={visitor.pid} pod={name} container={container.limits.container}"
            if isinstance(verdict, Refused):
                self._outcomes[verdict.kind] += 1
                log.warning("registration refused %s reason=%r", who, verdict.reason)
                return Answer(f"not believed: it {verdict.reason}")
            try:
                linked = await asyncio.to_thread(
                    self._register, visitor.token, container, verdict.name, verdict.container_id
                )
            except (OSError, WireError) as e:
                log.warning("registration failed %s reason=%s", who, e)
                return Answer("the node could not write the files; try again", error=True)
            self._outcomes["registered" if linked else "container"] += 1
            log.info("registered %s as=%s", who, verdict.name)
            return Answer("" if linked else f"{verdict.name[:80]!r} is no name for a folder")

    def _judge(self, visitor: Visitor, claim: vcuda.VDeviceRequest, container: _Container) -> Registered | Refused:
        peer = self._processes.look([visitor.pid] if visitor.pid else []).get(visitor.pid)
        return judge(claim, peer, container.limits, token=visitor.token, bus_ids=self._bus_ids(container.limits))

    def _register(self, token: str, container: _Container, name: str, container_id: str) -> bool:
        if container_id != container.container_id:
            container.container_id, container.cgroup = container_id, None
        container.pids = container.pids or ()
        container.search_at = 0.0
        self._follow(token, container)
        return container.folder.link(name)


def driver_version(file: Path) -> tuple[int, int]:
    """Major and minor version of NVIDIA's driver, as its kernel module says; zeros without one."""
    try:
        found = _VERSION.search(file.read_text("utf-8", "replace"))
    except OSError:
        return 0, 0
    return (int(found[1]), int(found[2])) if found else (0, 0)


def _short(bus_id: str) -> str:
    """As NVML's first interface has it, with a domain of four digits: it must fit in 16 bytes. "" when it cannot."""
    address = bus_address(bus_id)
    return f"{address[0]:04x}:{address[1]}" if address is not None and address[0] <= 0xFFFF else ""
