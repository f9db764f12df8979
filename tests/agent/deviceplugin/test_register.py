"""Registration over the restarts of kubelet, at the instants that a whole kubelet hardly ever hits."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from fractile.agent.deviceplugin.register import Registrar
from fractile.agent.kubelet import rpc
from fractile.agent.kubelet.api import deviceplugin_pb2 as dp
from fractile.model.units import ContainerName, PodUID
from fractile.wire.foreign import kubelet_checkpoint
from fractile.wire.foreign.kubelet_checkpoint import Recorded
from fractile.wire.fractile.device_ids import device_id
from fractile.wire.fractile.resource_class import GPU_SLOT
from tests.agent.world import CARDS, COUNT, MEM, World, world


async def test_a_socket_that_a_starting_kubelet_has_deleted_is_never_registered() -> None:
    """kill -9 leaves kubelet.sock behind, and what the agent opens meanwhile is deleted by the next kubelet, which
    would dial the missing socket for 10 s and admit its pods without the plugin (seen on the real one)."""
    async with world() as w:
        directory = w.kubelet.plugin_directory
        await w.kubelet.stop()
        _leave_dead_socket(directory / rpc.KUBELET_SOCKET)
        await _until_served(directory)
        there: list[bool] = []

        async def register(request: dp.RegisterRequest, _: rpc.Context) -> dp.Empty:
            there.append((directory / request.endpoint).exists())
            return dp.Empty()

        server = await rpc.serve(directory / "elsewhere", rpc.unary(rpc.REGISTER, register))
        # What kubelet does in microseconds, in one step here: the agent sees only the end of it.
        for ours in directory.glob("fractile-*.sock"):
            ours.unlink()
        (directory / "elsewhere").rename(directory / rpc.KUBELET_SOCKET)
        async with asyncio.timeout(5):
            while len(there) < 2:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert all(there), "kubelet was told of a socket that does not exist"
        await server.stop(0)


async def test_the_resource_that_pods_hold_is_heard_before_the_others_register() -> None:
    """Kubelet fails running pods whose devices it has not heard when it admits them again."""
    async with world(agent=False) as w:
        await w.kubelet.stop()
        _record(w, GPU_SLOT)
        w.start_agent()
        async with _kubelet(w.kubelet.plugin_directory) as order:
            await _until(order, f"register {MEM}")
        assert order[:2] == [f"register {GPU_SLOT}", f"heard {GPU_SLOT}"], order


async def test_a_held_resource_that_kubelet_refuses_does_not_keep_the_others_waiting() -> None:
    async with world(agent=False) as w:
        await w.kubelet.stop()
        _record(w, GPU_SLOT)
        w.start_agent()
        async with _kubelet(w.kubelet.plugin_directory, refused=GPU_SLOT) as order:
            await _until(order, f"heard {MEM}")
            await _until(order, f"heard {COUNT}")
        assert f"heard {GPU_SLOT}" not in order


async def test_a_directory_that_cannot_be_watched_is_told_once_for_each_cause(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "fractile.agent.deviceplugin.register")
    directory = tmp_path / "plugins"
    waits: list[float] = []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 5:
            directory.mkdir()
        await asyncio.sleep(0)

    registrar = Registrar(directory, (), new_token=lambda: "t", sleep=sleep)
    running = asyncio.create_task(registrar.run())
    try:
        async with asyncio.timeout(5):
            while "watched again" not in caplog.text:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    said = [r.getMessage() for r in caplog.records]
    assert [m.partition(" path=")[0] for m in said] == ["directory not watched", "directory watched again"]
    assert "No such file or directory" in said[0]
    assert "a restart of kubelet is noticed within 2 s, not at once" in said[0]


def _record(w: World, resource: str) -> None:
    """Kubelet's checkpoint says that a container holds an id of the resource."""
    held = Recorded(PodUID("u"), ContainerName("c"), resource, frozenset({device_id(CARDS[0].uuid, 0)}))
    file = w.kubelet.plugin_directory / kubelet_checkpoint.FILE_NAME
    file.write_bytes(kubelet_checkpoint.encode([held], {resource: []}))


@asynccontextmanager
async def _kubelet(directory: Path, refused: str = "") -> AsyncGenerator[list[str]]:
    """A kubelet that does nothing but hear devices: what happens there, in order."""
    order: list[str] = []
    async with contextlib.AsyncExitStack() as closing, asyncio.TaskGroup() as tasks:

        async def listen(resource: str, channel: rpc.grpc.aio.Channel) -> None:
            with contextlib.suppress(rpc.RpcError):  # the agent ends a registration that came to nothing
                async for _ in rpc.stream(channel, rpc.LIST_AND_WATCH, dp.Empty()):
                    order.append(f"heard {resource}")

        async def register(request: dp.RegisterRequest, context: rpc.Context) -> dp.Empty:
            order.append(f"register {request.resource_name}")
            if request.resource_name == refused:
                await context.abort(rpc.grpc.StatusCode.UNKNOWN, "refused")
            channel = await closing.enter_async_context(rpc.channel(directory / request.endpoint))
            await rpc.call(channel, rpc.OPTIONS, dp.Empty(), timeout=5)
            listeners.append(tasks.create_task(listen(request.resource_name, channel)))
            return dp.Empty()

        listeners: list[asyncio.Task[None]] = []
        server = await rpc.serve(directory / rpc.KUBELET_SOCKET, rpc.unary(rpc.REGISTER, register))
        yield order
        for listener in listeners:
            listener.cancel()
        await server.stop(0)


async def _until(order: list[str], what: str) -> None:
    async with asyncio.timeout(5):
        while what not in order:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


def _leave_dead_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))


async def _until_served(directory: Path) -> None:
    async with asyncio.timeout(5):
        while not _served(directory):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    await asyncio.sleep(0.2)


def _served(directory: Path) -> list[Path]:
    return list(directory.glob(f"fractile-{MEM.rpartition('/')[2]}-*.sock"))
