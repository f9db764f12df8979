"""Registers the plugins with kubelet, whenever needed: within milliseconds after kubelet has (re)started.

A kubelet that starts deletes all sockets, opens kubelet.sock and admits its pods a second later; pods that it finds
without a registered plugin fail permanently (evidence/kubelet.md#restart). So the directory is watched with inotify,
and checked every few seconds in case an event is lost. Level-triggered: the present state is compared with what was
registered.

- Every registration has its own socket name: gRPC unlinks the path of a server that stops, which would remove the
  successor's socket (evidence/kubelet.md#sockets).
- A socket's file outlives a kubelet that is killed: a registration belongs to a known kubelet only if the file was the
  same before and after the call.
- Resources that pods of the node hold come first: for those kubelet fails running pods (docs/operate/recovery.md), for
  others only pods that are on their way. The others follow when kubelet has read the ids of the first, or soon.
- While one kubelet lives, the old server stops before the new one registers: kubelet, when the old stream ends,
  disconnects whatever is registered for the resource then (pkg/kubelet/cm/devicemanager/plugin/v1beta1/handler.go).

Failure rule: it never gives up; without kubelet it waits.
"""

import asyncio
import logging
import socket
import time
from collections.abc import Callable, Collection, Coroutine, Sequence
from pathlib import Path

import grpc
import grpc.aio
import msgspec
from asyncinotify import Inotify, Mask

from fractile.agent.deviceplugin.plugin import Plugin, Watch, options
from fractile.agent.kubelet import rpc
from fractile.agent.kubelet.api import deviceplugin_pb2 as dp
from fractile.agent.node import unwatched
from fractile.kube.pacing import Clock, Sleep

_LOOK = 2.0  # seconds between two checks without an event
_CALL = 12.0  # kubelet calls us back inside Register and allows that 10 s
_REFUSED = 0.005  # kubelet.sock exists a moment before kubelet listens on it
_SLOWEST = 1.0
_GIVE_WAY = 0.1  # the longest that a resource not in use waits for those that pods hold
_LATE = (
    f"a restart of kubelet is noticed within {_LOOK:.0f} s, not at once; kubelet may meanwhile fail pods that have GPUs"
)
_SETTLE = 0.2  # for kubelet to notice that the old stream has ended
_EVENTS = Mask.CREATE | Mask.DELETE | Mask.MOVED_TO | Mask.DELETE_SELF | Mask.MOVE_SELF

log = logging.getLogger(__name__)


class _Replaced(Exception):
    """Another kubelet replaced the one that was called."""


class _Registration(msgspec.Struct, frozen=True):
    """A plugin as registered with one kubelet."""

    kubelet: rpc.Identity
    socket: Path
    server: grpc.aio.Server
    watch: Watch

    @property
    def alive(self) -> bool:
        return not self.watch.ended.is_set() and self.socket.exists()


class Registrar:
    """Keeps all plugins registered with the kubelet that serves ``directory``."""

    def __init__(
        self,
        directory: Path,
        plugins: Sequence[Plugin],
        *,
        new_token: Callable[[], str],
        in_use: Callable[[], Collection[str]] = frozenset,
        clock: Clock = time.monotonic,
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        self._directory = directory
        self._kubelet = directory / rpc.KUBELET_SOCKET
        self._plugins = plugins
        self._new_token = new_token
        self._in_use = in_use
        self._clock = clock
        self._sleep = sleep
        self._registered: dict[str, _Registration] = {}
        self.registered = asyncio.Event()  # kubelet has accepted every plugin
        self._wake = asyncio.Event()
        self._progress = asyncio.Event()  # kubelet has accepted one more plugin

    def known(self) -> frozenset[str]:
        """The resources that the present kubelet watches."""
        return frozenset(resource for resource, present in self._registered.items() if present.alive)

    async def run(self) -> None:
        """Work until cancelled; then all servers are stopped."""
        _remove_dead_sockets(self._directory)
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._watch_directory(), name="inotify")
                for plugin in self._plugins:
                    tasks.create_task(self._keep(plugin), name=f"register {plugin.resource}")
        finally:
            for registration in self._registered.values():
                await registration.server.stop(0)

    async def _keep(self, plugin: Plugin) -> None:
        """Level-triggered: register whenever the present kubelet does not watch this plugin."""
        while True:
            wake = self._wake
            kubelet = rpc.identity(self._kubelet)
            present = self._registered.get(plugin.resource)
            if kubelet is None or (present and present.kubelet == kubelet and present.alive):
                await _either(wake, present.watch.ended if present and present.alive else None, timeout=_LOOK)
            elif not await self._register(plugin, present) and kubelet == rpc.identity(self._kubelet):
                await _either(wake, None, timeout=_SLOWEST)

    async def _register(self, plugin: Plugin, old: _Registration | None) -> bool:
        started = self._clock()
        self._registered.pop(plugin.resource, None)
        if old is not None and old.kubelet == rpc.identity(self._kubelet):
            await old.server.stop(0)
            await _either(self._wake, None, timeout=_SETTLE)
        await self._give_way(plugin)
        kubelet = rpc.identity(self._kubelet)  # before our socket is there: see _announce
        socket, watch, server = await self._serve(plugin)
        try:
            if kubelet is None or not await self._announce(plugin, socket.name, kubelet):
                return False
            if not await self._listened(kubelet, watch):
                await server.stop(0)
                await _either(self._wake, None, timeout=_SETTLE)
                return False
            self._registered[plugin.resource] = _Registration(kubelet, socket, server, watch)
            self._progress = _told(self._progress)
            if len(self._registered) == len(self._plugins):
                self.registered.set()
        except grpc.aio.AioRpcError as e:
            log.warning("not registered resource=%s reason=%s", plugin.resource, e.details())
            return False
        finally:
            if old is not None:
                await old.server.stop(0)
            if plugin.resource not in self._registered:
                await server.stop(0)
        ms = (self._clock() - started) * 1000
        log.info("registered resource=%s socket=%s ms=%.1f", plugin.resource, socket.name, ms)
        return True

    async def _give_way(self, plugin: Plugin) -> None:
        """Wait until kubelet watches the resources that pods hold, at most ``_GIVE_WAY``: a resource that fails must
        not block the others."""
        until = self._clock() + _GIVE_WAY
        while (left := until - self._clock()) > 0:
            first = {p.resource for p in self._plugins}.intersection(self._in_use())
            if plugin.resource in first or first <= self._taken():
                return
            await _either(self._progress, None, timeout=left)

    def _taken(self) -> frozenset[str]:
        """The resources that the kubelet of this moment watches."""
        kubelet = rpc.identity(self._kubelet)
        return frozenset(r for r, present in self._registered.items() if present.kubelet == kubelet and present.alive)

    async def _serve(self, plugin: Plugin) -> tuple[Path, Watch, grpc.aio.Server]:
        name = plugin.resource.rpartition("/")[2]
        path = self._directory / f"fractile-{name}-{self._new_token()[:8]}.sock"
        watch = Watch()
        return path, watch, await rpc.serve(path, *plugin.handlers(watch))

    async def _announce(self, plugin: Plugin, endpoint: str, kubelet: rpc.Identity | None) -> bool:
        """Call Register until ``kubelet`` accepts it; False when another kubelet has come, or none is there.

        A kubelet deletes all sockets, ours included, before it opens its own: only one that was there before our socket
        can find it, and any other would try in vain for 10 s and lose its first pods. AioRpcError when it refuses.
        Waits for a kubelet that is about to listen, and also for one that was killed: its socket stays until the next
        comes.
        """
        request = dp.RegisterRequest(
            version=rpc.VERSION, endpoint=endpoint, resource_name=plugin.resource, options=options(plugin.resource)
        )
        if kubelet is None:
            return False
        with rpc.exactly(self._kubelet, kubelet) as exact:
            return exact is not None and await self._called(exact, request, kubelet)

    async def _called(self, exact: Path, request: dp.RegisterRequest, kubelet: rpc.Identity) -> bool:
        """``exact``: a path that leads to this kubelet, even if it is replaced between a check and the call."""
        wait = _REFUSED
        while kubelet == rpc.identity(self._kubelet):
            wake = self._wake
            try:
                await self._unless_replaced(rpc.call_socket(exact, rpc.REGISTER, request, timeout=_CALL), kubelet)
                return kubelet == rpc.identity(self._kubelet)
            except _Replaced:
                return False
            except grpc.aio.AioRpcError as e:
                if e.code() is not grpc.StatusCode.UNAVAILABLE:
                    raise
            wait = _REFUSED if await _either(wake, None, timeout=wait) else min(wait * 1.5, _SLOWEST)
        return False

    async def _unless_replaced(self, call: Coroutine[object, object, object], kubelet: rpc.Identity) -> None:
        """The call's end; _Replaced as soon as another kubelet has opened its socket meanwhile."""
        calling = asyncio.ensure_future(call)
        try:
            while not calling.done():
                waking = asyncio.ensure_future(self._wake.wait())
                await asyncio.wait({calling, waking}, timeout=_LOOK, return_when=asyncio.FIRST_COMPLETED)
                waking.cancel()
                if not calling.done() and kubelet != rpc.identity(self._kubelet):
                    raise _Replaced
            calling.result()
        finally:
            calling.cancel()

    async def _listened(self, kubelet: rpc.Identity, watch: Watch) -> bool:
        """Whether this kubelet calls ListAndWatch."""
        deadline = self._clock() + _CALL
        while not watch.began.is_set():
            if rpc.identity(self._kubelet) != kubelet or self._clock() > deadline:
                log.warning("not registered reason=%s", "kubelet accepted the registration but did not ask for devices")
                return False
            await _either(watch.began, self._wake, timeout=_LOOK)
        return True

    async def _watch_directory(self) -> None:
        told = ""
        while True:
            try:
                with Inotify() as inotify:
                    inotify.add_watch(self._directory, _EVENTS)  # pyright: ignore[reportUnknownMemberType]
                    if told:
                        log.info("directory watched again path=%s", self._directory)
                    told = ""
                    self._awaken()
                    await self._follow(inotify)
            except OSError as e:
                if told != (told := unwatched.reason(e)):
                    log.warning("directory not watched path=%s reason=%s; %s", self._directory, told, _LATE)
            await self._sleep(_SLOWEST)

    async def _follow(self, inotify: Inotify) -> None:
        """Wake on changes of kubelet.sock until the directory itself goes."""
        async for event in inotify:
            if event.mask & (Mask.DELETE_SELF | Mask.MOVE_SELF | Mask.IGNORED):
                return
            if event.name is not None and event.name.name == rpc.KUBELET_SOCKET:
                self._awaken()

    def _awaken(self) -> None:
        self._wake = _told(self._wake)


def _told(event: asyncio.Event) -> asyncio.Event:
    """Set the event for its waiters; returns a new event for later ones."""
    event.set()
    return asyncio.Event()


async def _either(first: asyncio.Event, second: asyncio.Event | None, *, timeout: float) -> bool:
    """Wait for one of two events; False when neither came in time."""
    waits = [asyncio.ensure_future(e.wait()) for e in (first, second) if e is not None]
    try:
        done, _ = await asyncio.wait(waits, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        return bool(done)
    finally:
        for wait in waits:
            wait.cancel()


def _remove_dead_sockets(directory: Path) -> None:
    """Remove sockets without a listener, left by an agent that was killed."""
    for path in directory.glob("fractile-*.sock"):
        with socket.socket(socket.AF_UNIX) as probe:
            try:
                probe.connect(str(path))
            except ConnectionRefusedError:
                path.unlink(missing_ok=True)
            except OSError as e:
                log.warning("socket ignored path=%s reason=%s", path, e)
