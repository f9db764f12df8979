"""Registration over the restarts of kubelet, at the instants that a whole kubelet hardly ever hits."""

import asyncio
import socket
from pathlib import Path

from fractile.agent import rpc
from fractile.agent.api import deviceplugin_pb2 as dp
from tests.agent.world import MEM, world


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
