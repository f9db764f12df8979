"""Connections reach the replica that says that it is ready, and follow it; one that is paused delays nobody."""

import asyncio
import ssl
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest
import trustme

from fractile.errors import SetupError
from fractile.lab.machine.replica_proxy import ReplicaFront, ReplicaProxy, first_ready
from fractile.lab.programs.replica_proxy import front_of
from tests.lab.machine.test_service_proxy import endpoint, free_port, listening, say


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def trust(authority: trustme.CA) -> ssl.SSLContext:
    return ssl.create_default_context(cadata=authority.cert_pem.bytes().decode())


class Replica:
    """Answers every question with ``status``; with None it says nothing."""

    def __init__(self) -> None:
        self.port = 0
        self.status: int | None = 503
        self.asked = 0

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert (await reader.readline()).startswith(b"GET /readyz ")
        self.asked += 1
        if self.status is None:
            await reader.read()  # until the other side gives up
        else:
            writer.write(f"HTTP/1.1 {self.status} \r\n\r\n".encode())
        writer.close()


@asynccontextmanager
async def replica(authority: trustme.CA) -> AsyncGenerator[Replica]:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    with authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.tempfile() as file:
        context.load_cert_chain(file)
    found = Replica()
    async with await asyncio.start_server(found.answer, "127.0.0.1", 0, ssl=context) as server:
        found.port = server.sockets[0].getsockname()[1]
        yield found


async def until_answered(port: int, wanted: bytes) -> None:
    async with asyncio.timeout(30):
        while await say(port, b"hello\n") != wanted:  # noqa: ASYNC110 - another program answers
            await asyncio.sleep(0.05)


async def test_a_connection_follows_the_leader_at_the_port_that_belongs_to_it(
    authority: trustme.CA, trust: ssl.SSLContext
) -> None:
    ports = free_port(), free_port()
    async with (
        replica(authority) as a,
        replica(authority) as b,
        endpoint(b"a") as of_a,
        endpoint(b"b") as of_b,
        asyncio.TaskGroup() as tasks,
    ):
        proxy = ReplicaProxy(ReplicaFront(ports, ((a.port, of_a), (b.port, of_b))), trust)
        running = tasks.create_task(proxy.run())
        await listening(ports[1])
        assert await say(ports[1], b"nobody\n") == b""  # closed, not kept waiting

        a.status = 200
        await until_answered(ports[1], b"a hello\n")
        asked = a.asked
        await asyncio.gather(*(say(ports[1], b"at once\n") for _ in range(20)))
        assert a.asked < asked + 20  # not each connection asks

        a.status, b.status = None, 200  # paused: it still takes connections
        await until_answered(ports[1], b"b hello\n")
        running.cancel()


async def test_one_that_nobody_has_signed_is_not_ready(authority: trustme.CA, trust: ssl.SSLContext) -> None:
    async with replica(trustme.CA()) as stranger, replica(authority) as known:
        stranger.status = known.status = 200
        assert await first_ready([(stranger.port,)], trust) == ()
        found = [await first_ready([(stranger.port,), (known.port,)], trust) for _ in range(3)]
        assert {*found} - {()} == {(known.port,)}  # a busy machine may need more than a second


async def test_one_that_does_not_run_or_says_nothing_is_not_ready(authority: trustme.CA, trust: ssl.SSLContext) -> None:
    async with replica(authority) as silent:
        silent.status = None
        async with asyncio.timeout(30):
            assert await first_ready([(free_port(),), (silent.port,)], trust) == ()


@pytest.mark.parametrize(
    ("ports", "one", "words"),
    [
        ("8443", "1,2", "does not have as many ports"),
        ("8443,x", "1,2", "is not a list of ports"),
        ("", "1", "is not a list of ports"),
        ("0", "1", "is not a list of ports"),
        ("8443", "65536", "is not a list of ports"),
    ],
)
def test_ports_that_make_no_sense_are_told_so(ports: str, one: str, words: str) -> None:
    with pytest.raises(SetupError, match=words):
        front_of(ports, (one,))
