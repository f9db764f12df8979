"""What plays kube-proxy: connections reach an endpoint that is ready, and follow it when another one is."""

import asyncio
import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from fractile.errors import SetupError
from fractile.kube.client import KubeClient
from fractile.lab.machine.service_proxy import (
    Endpoint,
    EndpointConditions,
    EndpointSlice,
    Forward,
    Port,
    ServiceProxy,
    addresses,
)
from fractile.lab.programs.service_proxy import forward_of
from tests.fakes.apiserver import FakeApiServer

SLICES = "/apis/discovery.k8s.io/v1/namespaces/team/endpointslices"


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port


@asynccontextmanager
async def endpoint(name: bytes) -> AsyncGenerator[int]:
    """Answers each line with its name and the line."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            writer.write(name + b" " + line)
            await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        yield server.sockets[0].getsockname()[1]


def slice_of(name: str, port: int, *, ready: bool) -> dict[str, Any]:
    return {
        "metadata": {"name": name, "labels": {"kubernetes.io/service-name": "web"}},
        "endpoints": [{"addresses": ["127.0.0.1"], "conditions": {"ready": ready}}],
        "ports": [{"port": port}],
    }


async def say(port: int, text: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        async with asyncio.timeout(10):
            writer.write(text)
            return await reader.readline()
    except ConnectionError:
        return b""
    finally:
        writer.close()


async def listening(port: int) -> None:
    async with asyncio.timeout(10):
        while True:
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", port)
            except OSError:
                await asyncio.sleep(0.02)
                continue
            writer.close()
            return


async def test_a_connection_reaches_the_endpoint_that_is_ready_and_follows_it() -> None:
    port = free_port()
    async with (
        FakeApiServer() as server,
        KubeClient(server.credentials()) as client,
        endpoint(b"one") as first,
        endpoint(b"two") as second,
        asyncio.TaskGroup() as tasks,
    ):
        running = tasks.create_task(ServiceProxy(client, [Forward(port, "team", "web")]).run())
        await listening(port)
        assert await say(port, b"none\n") == b""  # nobody is ready: closed, not kept waiting

        server.create(SLICES, slice_of("a", first, ready=True))
        server.create(SLICES, slice_of("b", second, ready=False))
        await asyncio.sleep(0.3)
        assert await say(port, b"hello\n") == b"one hello\n"

        server.delete(f"{SLICES}/a")
        server.delete(f"{SLICES}/b")
        server.create(SLICES, slice_of("c", second, ready=True))
        await asyncio.sleep(0.3)
        assert await say(port, b"again\n") == b"two again\n"
        running.cancel()


def test_endpoints_that_are_not_ready_are_passed_over_and_those_that_do_not_say_are_taken() -> None:
    found = EndpointSlice(
        endpoints=[
            Endpoint(addresses=("10.0.0.1",), conditions=EndpointConditions(ready=False)),
            Endpoint(addresses=("10.0.0.2",)),
        ],
        ports=[Port(port=8443)],
    )
    assert addresses(found) == [("10.0.0.2", 8443)]
    assert addresses(EndpointSlice()) == []


@pytest.mark.parametrize("text", ["", "8443", "8443=web", "x=team/web", "8443=/web", "8443=team/"])
def test_a_forward_that_makes_no_sense_is_told_so(text: str) -> None:
    with pytest.raises(SetupError, match="is not PORT=NAMESPACE/SERVICE"):
        forward_of(text)
