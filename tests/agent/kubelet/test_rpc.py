"""The kept connection to kubelet's socket, over a relay that counts who connects."""

import asyncio
import contextlib
import subprocess
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import grpc.aio
import pytest

from fractile.agent.kubelet import rpc
from fractile.agent.kubelet.api import podresources_pb2 as pr

ASK = pr.ListPodResourcesRequest()


class Relay:
    """Listens at one socket and passes everything to another."""

    def __init__(self, socket: Path, behind: Path) -> None:
        self.socket = socket
        self._behind = behind
        self.connections = 0

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        there, back = await asyncio.open_unix_connection(self._behind)
        with contextlib.suppress(OSError):
            await asyncio.gather(_pass(reader, back), _pass(there, writer))


async def _pass(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    while piece := await source.read(65536):
        target.write(piece)
        await target.drain()
    target.close()


@asynccontextmanager
async def listening(folder: Path, name: str) -> AsyncGenerator[Relay]:
    """A kubelet that lists one pod of that name, at ``kubelet.sock`` of the folder."""

    async def answer(request: pr.ListPodResourcesRequest, context: rpc.Context) -> pr.ListPodResourcesResponse:
        return pr.ListPodResourcesResponse(pod_resources=[pr.PodResources(name=name)])

    server = await rpc.serve(folder / f"{name}.sock", rpc.unary(rpc.LIST, answer))
    relay = Relay(folder / "kubelet.sock", folder / f"{name}.sock")
    relay.socket.unlink(missing_ok=True)
    listener = await asyncio.start_unix_server(relay, relay.socket)
    try:
        yield relay
    finally:
        listener.close()
        await server.stop(0)


async def names(line: rpc.KubeletChannel) -> list[str]:
    answer = await line.call(rpc.LIST, ASK, timeout=5)
    return [pod.name for pod in answer.pod_resources]


async def test_one_connection_serves_all_calls(tmp_path: Path) -> None:
    line = rpc.KubeletChannel(tmp_path / "kubelet.sock")
    async with listening(tmp_path, "a") as relay:
        assert [await names(line) for _ in range(5)] == [["a"]] * 5
        assert relay.connections == 1
        await line.close()


async def test_a_server_that_took_the_place_is_asked_at_once(tmp_path: Path) -> None:
    line = rpc.KubeletChannel(tmp_path / "kubelet.sock")
    async with listening(tmp_path, "a"):
        assert await names(line) == ["a"]
        async with listening(tmp_path, "b"):  # the first still listens, and nobody reaches it
            assert await names(line) == ["b"]
    await line.close()


async def test_a_connection_that_broke_is_made_anew_for_the_same_call(tmp_path: Path) -> None:
    line = rpc.KubeletChannel(tmp_path / "kubelet.sock")
    async with listening(tmp_path, "a"):
        assert await names(line) == ["a"]
        kept = line._kept  # pyright: ignore[reportPrivateUsage]
        assert kept is not None
        await kept[1].close(None)
        line._kept = kept[0], rpc.channel(tmp_path / "nobody.sock")  # pyright: ignore[reportPrivateUsage]
        assert await names(line) == ["a"]
        await line.close()


async def test_without_a_socket_a_call_fails_and_later_ones_do_not(tmp_path: Path) -> None:
    line = rpc.KubeletChannel(tmp_path / "kubelet.sock")
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await names(line)
    assert error.value.code() is grpc.StatusCode.UNAVAILABLE
    async with listening(tmp_path, "a"):
        assert await names(line) == ["a"]
        await line.close()


LEFT = """
import asyncio, gc, sys
from pathlib import Path
from fractile.agent.kubelet import rpc
from fractile.agent.kubelet.api import deviceplugin_pb2 as dp

async def without_end(request, context):
    while True:
        yield dp.ListAndWatchResponse()
        await asyncio.sleep(0.001)

async def listen(socket):
    kept.append(await rpc.serve(socket, rpc.streaming(rpc.LIST_AND_WATCH, without_end)))
    kept.append(rpc.channel(socket))
    kept.append(rpc.stream(kept[-1], rpc.LIST_AND_WATCH, dp.Empty()))
    async for _ in kept[-1]:
        return

for number in range(3):
    kept = []
    asyncio.run(listen(Path(sys.argv[1]) / str(number)))
    kept.clear()
    gc.collect()
"""


def test_a_program_that_leaves_a_server_and_its_caller_behind_ends_all_the_same(tmp_path: Path) -> None:
    """An agent that fails would else never end, and so never be started again."""
    done = subprocess.run([sys.executable, "-c", LEFT, str(tmp_path)], timeout=60, check=False, stderr=subprocess.PIPE)
    assert done.returncode == 0, done.stderr


async def test_a_call_to_exactly_one_server_never_reaches_the_next_one(tmp_path: Path) -> None:
    """Between a look at the socket and the connection another kubelet may open its own, on a busy machine above all."""
    async with listening(tmp_path, "first") as relay:
        first = rpc.identity(relay.socket)
        assert first is not None
        with rpc.exactly(relay.socket, first) as path:
            assert path is not None
            async with listening(tmp_path, "second"):
                assert (await rpc.call_socket(path, rpc.LIST, ASK, timeout=10)).pod_resources[0].name == "first"
                with rpc.exactly(relay.socket, first) as late:
                    assert late is None
