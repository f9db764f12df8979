"""One socket per container, one gRPC server behind all of them.

gRPC tells a handler neither on which of its sockets a call came nor from which container. So this module owns the
containers' sockets:

    container ── vcuda.sock ──> door: kernel-given pid, limits ──> a connection of our own ──> gRPC server ──> visit

The connection to the server starts at a socket with a name, which the server shows to the handler; only root can use
the folder of these names. A container's cost is bounded at its door: a number of connections at the same time and per
minute, and bytes and seconds for each; others wait in the kernel's queue, which is short and the container's own.
"""

import asyncio
import contextlib
import itertools
import logging
import os
import shutil
import socket
import struct
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import grpc
import msgspec

from fractile.agent.kubelet import rpc
from fractile.agent.kubelet.api import vcuda_pb2 as vcuda
from fractile.kube.pacing import Clock, Sleep
from fractile.region import plain

_AT_ONCE = 4  # connections of one container
_BURST = 16.0  # connections that a container may make in a burst ...
_RATE = 1.0  # ... and how many more each second
_VISIT = 5.0  # seconds for one connection
_BYTES = 16 * 1024  # that a client may send; a registration takes less than 1 KB
_CHUNK = 4096
_PAUSE = 1.0  # after an error of the system
_CREDENTIALS = struct.Struct("3i")  # of SO_PEERCRED: pid, uid, gid
_OPTIONS: rpc.Options = (
    ("grpc.max_receive_message_length", 4096),
    ("grpc.max_concurrent_streams", 4),
    ("grpc.so_reuseport", 0),
)

log = logging.getLogger(__name__)


class Visitor(msgspec.Struct, frozen=True):
    """The container whose door a call came through, and the process that connected; pid 0 outside our pid namespace."""

    token: str
    pid: int


class ClaimAnswer(msgspec.Struct, frozen=True):
    """``refused``: the error message for the client, "" when all is well. ``error``: the fault is ours."""

    refused: str = ""
    error: bool = False


class _Ended(Exception):
    """One side of a connection has ended, so the other may end."""


class VcudaProxy:
    """``run`` it; then ``open`` and ``close``. ``called`` answers a registration."""

    def __init__(
        self,
        folder: Path,
        called: Callable[[Visitor, vcuda.VDeviceRequest], Awaitable[ClaimAnswer]],
        *,
        clock: Clock = time.monotonic,
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        self._folder = folder
        self._called = called
        self._clock = clock
        self._sleep = sleep
        self._visitors: dict[str, Visitor] = {}
        self._numbers = itertools.count()
        self._open: dict[str, asyncio.Task[None]] = {}
        self._tasks: asyncio.TaskGroup | None = None
        self._fd = -1

    async def run(self, tasks: asyncio.TaskGroup) -> None:
        """Serve until cancelled; the connections are tasks of ``tasks``."""
        plain.make_room_for_folder(self._folder)
        shutil.rmtree(self._folder, ignore_errors=True)  # names of an earlier agent
        self._folder.mkdir(mode=0o700)
        self._fd = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        server = await rpc.serve(
            self._name("server"), rpc.unary(rpc.REGISTER_VDEVICE, self._registered), options=_OPTIONS
        )
        self._tasks = tasks
        try:
            await asyncio.Event().wait()
        finally:
            self._tasks = None
            await server.stop(0)
            os.close(self._fd)
            self._fd = -1

    @property
    def running(self) -> bool:
        return self._tasks is not None

    def is_open(self, token: str) -> bool:
        return token in self._open

    def open(self, token: str, listener: socket.socket) -> None:
        """Accept connections of the token's container; takes over the listener."""
        assert self._tasks is not None, "run it first"
        self._open[token] = self._tasks.create_task(self._keep(token, listener), name=f"vcuda {token}")

    def close(self, token: str) -> None:
        task = self._open.pop(token, None)
        if task is not None:
            task.cancel()

    def _name(self, name: str) -> Path:
        return Path(f"/proc/self/fd/{self._fd}/{name}")  # short, however long the path is

    async def _keep(self, token: str, listener: socket.socket) -> None:
        """Accept one connection after the other, at the container's rate."""
        here, credit, last = asyncio.Semaphore(_AT_ONCE), _BURST, self._clock()
        with listener:
            while True:
                await here.acquire()
                connection = await self._accept(listener)
                if connection is None or self._tasks is None:
                    here.release()
                    await self._sleep(_PAUSE)
                    continue
                visitor = Visitor(token, _pid(connection))
                self._tasks.create_task(self._visit(visitor, connection, here))
                now = self._clock()
                credit, last = min(_BURST, credit + (now - last) * _RATE) - 1, now
                if credit < 0:
                    await self._sleep(-credit / _RATE)

    async def _accept(self, listener: socket.socket) -> socket.socket | None:
        try:
            return (await asyncio.get_running_loop().sock_accept(listener))[0]
        except OSError as e:
            log.warning("connection not accepted reason=%s", e)
            return None

    async def _visit(self, visitor: Visitor, outer: socket.socket, here: asyncio.Semaphore) -> None:
        """Serve one connection from beginning to end."""
        name = self._name(f"c{next(self._numbers)}")
        self._visitors[f"unix:{name}"] = visitor
        try:
            with outer, socket.socket(socket.AF_UNIX) as inner:
                async with asyncio.timeout(_VISIT):
                    await self._connect(inner, name)
                    async with asyncio.TaskGroup() as both:
                        both.create_task(_carry(outer, inner, _BYTES))
                        both.create_task(_carry(inner, outer, _BYTES))
        except* _Ended:
            pass
        except* (OSError, TimeoutError) as e:
            log.info("connection cut token=%s pid=%d reason=%s", visitor.token, visitor.pid, e.exceptions[0])
        finally:
            del self._visitors[f"unix:{name}"]
            here.release()

    async def _connect(self, inner: socket.socket, name: Path) -> None:
        inner.setblocking(False)
        inner.bind(str(name))
        try:
            await asyncio.get_running_loop().sock_connect(inner, str(self._name("server")))
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(name.name, dir_fd=self._fd)

    async def _registered(self, request: vcuda.VDeviceRequest, context: rpc.Context) -> vcuda.VDeviceResponse:
        visitor = self._visitors.get(context.peer())
        answer = ClaimAnswer("unknown connection", error=True)
        if visitor is not None:
            answer = await self._called(visitor, request)
        if answer.refused:
            code = grpc.StatusCode.UNAVAILABLE if answer.error else grpc.StatusCode.PERMISSION_DENIED
            await context.abort(code, answer.refused)
        return vcuda.VDeviceResponse()


async def _carry(source: socket.socket, target: socket.socket, limit: int) -> None:
    loop = asyncio.get_running_loop()
    while limit and (data := await loop.sock_recv(source, min(_CHUNK, limit))):
        limit -= len(data)
        await loop.sock_sendall(target, data)
    raise _Ended


def _pid(connection: socket.socket) -> int:
    connection.setblocking(False)
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return _CREDENTIALS.unpack(raw)[0]
