"""The virtual manager: the files in ``/etc/vcuda`` for images made for gpu-manager, and their registration service.

    Allocate     makes and mounts the folder
    PreStart     waits until the limits are in the folder: the container's library uses them and does not register
    opened       a process reads it (inotify): from now on ``pids.config`` follows the container's cgroup
    registered   a library that registers all the same: checked (``claim``), answered, and linked under its own name
    gone         pids and names are removed with the cgroup, the folder is emptied with the pod

None of this enforces anything: the limits page does. A container whose folder is not read costs only the folder and its
socket. Level-triggered; after a restart of the agent sockets are opened again, and a container whose ``pids.config``
was not empty is followed again. Failure rule: open; what cannot be written is logged and retried, and no container
waits longer than ``_READY`` for it.
"""

import asyncio
import contextlib
import logging
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from asyncinotify import Event, Inotify, Mask, Watch

from fractile.agent.gpumanager.claim import ClaimRefused, Registered, judge
from fractile.agent.gpumanager.container import VcudaContainer, config_of, driver_version
from fractile.agent.gpumanager.vcuda_proxy import ClaimAnswer, VcudaProxy, Visitor
from fractile.agent.kubelet.api import vcuda_pb2 as vcuda
from fractile.agent.limits.journal import Journal
from fractile.agent.limits.running_limits import RunningLimits
from fractile.agent.node import unwatched
from fractile.agent.node.catalog import CurrentCatalog
from fractile.agent.node.cgroup_tree import CgroupTree
from fractile.agent.node.pods import NodePods
from fractile.agent.node.procfs import ProcFs
from fractile.errors import WireError
from fractile.kube.pacing import Clock, Sleep
from fractile.model.units import PodUID
from fractile.region.page import ContainerLimits
from fractile.wire.foreign.vcuda import CONFIG_NAME, PIDS_NAME

_ROUND = 2.0  # seconds
_READY = 2.0  # that a container waits for its files
_UNWATCHED = 30.0  # after inotify has failed
_DRIVER = Path("/proc/driver/nvidia/version")

log = logging.getLogger(__name__)


class VirtualManager:
    """Call ``ready`` before a container starts; ``run`` does the rest."""

    def __init__(
        self,
        journal: Journal,
        pods: NodePods,
        current_catalog: CurrentCatalog,
        *,
        state: Path,
        processes: ProcFs | None = None,
        cgroups: CgroupTree | None = None,
        driver: Path = _DRIVER,
        clock: Clock = time.monotonic,
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        self._journal = journal
        self._running = RunningLimits(journal, pods)
        self._current_catalog = current_catalog
        self._processes = processes or ProcFs()
        self._cgroups = cgroups or CgroupTree()
        self._driver = driver_version(driver)
        self._clock = clock
        self._sleep = sleep
        self._doors = VcudaProxy(state / "vcuda", self._called, clock=clock, sleep=sleep)
        self._containers: dict[str, VcudaContainer] = {}
        self._others: set[str] = set()  # tokens without such a folder, which never get one later
        self._watches: dict[str, Watch] = {}
        self._busy = asyncio.Lock()  # held while containers or their folders are changed
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
        """When this returns, the limits are in the folders of the pod's containers, or the log says why not."""
        try:
            async with asyncio.timeout(_READY), self._busy:
                for token, limits in (await self._running()).items():
                    if limits.pod_uid == uid:
                        self._others.discard(token)
                        await asyncio.to_thread(self._keep, token, limits)
                        self._settle(token)
        except (OSError, TimeoutError) as e:
            log.warning("vcuda folder not ready uid=%s reason=%s", uid, e or "it takes too long")

    def outcomes(self) -> dict[str, int]:
        """Registrations so far: the accepted ones, and the refused ones by what was wrong."""
        return dict(self._outcomes)

    async def round(self) -> None:
        """Bring all folders in line with the limits and the existing processes."""
        async with self._busy:
            try:
                live = await self._running()
            except OSError as e:
                log.warning("vcuda folders not kept reason=%s", e)
                return
            for token in self._containers.keys() - live.keys():
                self._doors.close(token)
                self._unwatch(token)
                await asyncio.to_thread(self._end, token)
            self._others &= live.keys()
            new = {token: limits for token, limits in live.items() if token not in self._others}
            if new:
                await asyncio.to_thread(self._keep_all, new)
            for token in self._containers:
                self._settle(token)

    def _keep_all(self, live: Mapping[str, ContainerLimits]) -> None:
        for token, limits in live.items():
            self._keep(token, limits)

    def _keep(self, token: str, limits: ContainerLimits) -> None:
        """Update the folder of one container."""
        try:
            container = self._known(token, limits)
            if container is None:
                return
            container.limits = limits
            container.keep(config_of(limits, bus_ids=self._bus_ids(limits), driver=self._driver))
        except (OSError, WireError) as e:
            log.warning("vcuda folder not kept token=%s reason=%s", token, e)

    def _known(self, token: str, limits: ContainerLimits) -> VcudaContainer | None:
        """None when the container is not made for gpu-manager."""
        container = self._containers.get(token)
        if container is None:
            try:
                container = VcudaContainer(self._journal.path(token), limits, self._cgroups, clock=self._clock)
            except (FileNotFoundError, NotADirectoryError):
                self._others.add(token)
                return None
            self._containers[token] = container
        return container

    def _end(self, token: str) -> None:
        """Empty the folder: the pod has ended."""
        try:
            self._containers.pop(token).end()
        except OSError as e:
            log.warning("vcuda folder not emptied token=%s reason=%s", token, e)

    def _settle(self, token: str) -> None:
        """Open the container's socket, and watch its folder until a process has read it."""
        container = self._containers.get(token)
        if container is None:
            return
        try:
            if self._doors.running and not self._doors.is_open(token):
                self._doors.open(token, container.folder.listen())
            if container.is_read:
                self._unwatch(token)
            elif self._inotify is not None and token not in self._watches:
                # asyncinotify's path argument has no full type
                watch = self._inotify.add_watch(container.folder.path, Mask.OPEN)  # pyright: ignore[reportUnknownMemberType]
                self._watches[token] = watch
        except OSError as e:
            log.warning("vcuda folder not served token=%s reason=%s", token, e)

    def _unwatch(self, token: str) -> None:
        watch = self._watches.pop(token, None)
        if watch is not None and self._inotify is not None:
            with contextlib.suppress(OSError):
                self._inotify.rm_watch(watch)

    async def _watch(self) -> None:
        told = ""
        while True:
            try:
                with Inotify() as self._inotify:
                    told = ""
                    self._wake.set()
                    async for event in self._inotify:
                        self._opened(event)
            except OSError as e:
                if told != (told := unwatched.reason(e)):
                    log.warning("vcuda folders not watched reason=%s", told)
            finally:
                self._inotify = None
                self._watches.clear()
            await self._sleep(_UNWATCHED)

    def _opened(self, event: Event) -> None:
        """A folder was opened: follow its container, if it was one of the two files. One event is enough, so a
        container that opens files endlessly causes only one."""
        if event.name is None or event.name.name not in (CONFIG_NAME, PIDS_NAME):
            return
        token = next((token for token, watch in self._watches.items() if watch is event.watch), None)
        container = self._containers.get(token) if token is not None else None
        if token is None or container is None:
            return
        self._unwatch(token)
        container.opened()
        self._wake.set()
        log.info("vcuda folder is read token=%s container=%s", token, container.limits.container)

    async def _pause(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_ROUND):
                await self._wake.wait()

    def _bus_ids(self, limits: ContainerLimits) -> tuple[str, ...]:
        found = (self._current_catalog.catalog.card(c.uuid) for c in limits.cards)
        return tuple(card.pci_bus_id for card in found if card is not None)

    async def _called(self, visitor: Visitor, claim: vcuda.VDeviceRequest) -> ClaimAnswer:
        """Handle a registration."""
        async with self._busy:
            container = self._containers.get(visitor.token)
            if container is None:
                return ClaimAnswer("the container has ended", error=True)
            verdict = await asyncio.to_thread(self._judge, visitor, claim, container)
            name = f"{container.limits.namespace}/{container.limits.pod}"
            who = f"token={visitor.token} pid={visitor.pid} pod={name} container={container.limits.container}"
            if isinstance(verdict, ClaimRefused):
                self._outcomes[verdict.kind] += 1
                log.warning("registration refused %s reason=%r", who, verdict.reason)
                return ClaimAnswer(f"rejected: it {verdict.reason}")
            try:
                linked = await asyncio.to_thread(container.register, verdict.name, verdict.container_id)
            except (OSError, WireError) as e:
                log.warning("registration failed %s reason=%s", who, e)
                return ClaimAnswer("the node could not write the files; try again", error=True)
            self._outcomes["registered" if linked else "container"] += 1
            log.info("registered %s as=%s", who, verdict.name)
            return ClaimAnswer("" if linked else f"{verdict.name[:80]!r} is not a valid name for a folder")

    def _judge(
        self, visitor: Visitor, claim: vcuda.VDeviceRequest, container: VcudaContainer
    ) -> Registered | ClaimRefused:
        peer = self._processes.look([visitor.pid] if visitor.pid else []).get(visitor.pid)
        return judge(claim, peer, container.limits, token=visitor.token, bus_ids=self._bus_ids(container.limits))
