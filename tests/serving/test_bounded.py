"""What one connection may use up: over TLS, with and without a certificate, in the loop that the program has."""

import asyncio
import ssl
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import cast

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from fractile.door.places import PlaceLimits
from fractile.extender.verbs import MAX_BODY, USUAL_BODY, Verb
from fractile.serving.bounded import ConnectionLimits
from fractile.serving.clients import Clients
from fractile.serving.https_server import Options, serve
from tests.main.process import free_port
from tests.serving.scheduler_client import Authorities, SchedulerClient, answered

LIMITS = ConnectionLimits(first=1.0, head_seconds=0.5, body_seconds=0.5, taking_seconds=0.5, last=True)
LARGE = 4 * USUAL_BODY


class Server:
    """``/scheduler/echo`` answers bodies of any size by their length; ``/metrics`` is longer than all buffers."""

    def __init__(self, folder: Path) -> None:
        self.known = Authorities(folder)
        self.port = free_port()
        self.asked = 0

    @asynccontextmanager
    async def serving(
        self,
        *,
        closed: bool = True,
        rules: PlaceLimits | None = None,
        limits: ConnectionLimits = LIMITS,
        names: tuple[str, ...] = (),
    ) -> AsyncGenerator[None]:
        clients = Clients((self.known.ca,), names) if closed else None
        options = Options(f"127.0.0.1:{self.port}", self.known.cert, self.known.key, clients=clients)
        options.limits, options.rules = limits, rules
        verb = Verb("/scheduler/echo", self._echo, str.encode, self._large)
        app = Starlette(routes=[Route("/metrics", _page), Route("/readyz", _ready)])
        task = asyncio.create_task(serve(app, options, {b"/scheduler/echo": verb}.get))
        try:
            await self.client().until_ready(20)
            yield
        finally:
            task.cancel()
            await asyncio.wait([task], timeout=10)

    def client(self, name: str = "kube-scheduler") -> SchedulerClient:
        return SchedulerClient(self.port, self.known.trust(name))

    def _echo(self, body: bytes) -> bytes:
        self.asked += 1
        return b"%d" % len(body)

    async def _large(self, body: bytearray) -> bytes:
        return self._echo(bytes(body))


async def _page(_: Request) -> Response:
    return PlainTextResponse("x" * 32 * 2**20)


async def _ready(_: Request) -> Response:
    return PlainTextResponse("ok")


@pytest.fixture
def server(tmp_path: Path) -> Server:
    return Server(tmp_path)


def head(length: int) -> bytes:
    return f"POST /scheduler/echo HTTP/1.1\r\nHost: h\r\nContent-Length: {length}\r\n\r\n".encode()


async def ended(reader: asyncio.StreamReader, seconds: float = 10) -> bool:
    try:
        return await asyncio.wait_for(reader.read(), seconds) == b""
    except (ConnectionError, ssl.SSLError):
        return True


async def test_a_body_without_a_certificate_is_thrown_away_and_refused_with_the_reason(server: Server) -> None:
    async with server.serving():
        reader, writer = await server.client("").connect()
        writer.write(head(USUAL_BODY) + b"x" * USUAL_BODY)
        status, said = await answered(reader)
        assert (status, b"no client certificate: only callers with a certificate from a CA in --client-ca" in said) == (
            403,
            True,
        )
        assert await ended(reader)
        assert server.asked == 0


async def test_a_certificate_with_another_name_is_refused_with_that_reason_and_both_are_in_the_log(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    async with server.serving(names=("system:kube-scheduler",)):
        for name, size, status, reason in (
            ("system:node:n1", 1, 403, b"'system:node:n1' is not among the names in --client-name"),
            ("system:node:n1", USUAL_BODY + 1, 413, b"'system:node:n1' is not among the names in --client-name"),
            ("", 1, 403, b"to give kube-scheduler a certificate, see docs/operate/install.md, section 3"),
        ):
            reader, writer = await server.client(name).connect()
            writer.write(head(size) + b"x")
            found, said = await answered(reader)
            assert (found, reason in said) == (status, True), said
    lines = [r.getMessage() for r in caplog.records if "caller refused" in r.getMessage()]
    assert len(lines) == 1, "a line at most every ten seconds"
    assert "path='/scheduler/echo'" in lines[0]
    assert "system:node:n1" in lines[0]


async def test_a_post_without_a_certificate_is_in_the_log(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    async with server.serving():
        reader, writer = await server.client("").connect()
        writer.write(head(1) + b"x")
        await answered(reader)
    assert any("caller refused path='/scheduler/echo'" in r.getMessage() for r in caplog.records)


async def test_a_larger_one_is_refused_by_its_head(server: Server) -> None:
    async with server.serving():
        reader, writer = await server.client("").connect()
        writer.write(head(USUAL_BODY + 1))
        assert (await answered(reader))[0] == 413
        assert await ended(reader)


@pytest.mark.parametrize("size", [0, 1, USUAL_BODY, USUAL_BODY + 1, LARGE])
async def test_a_caller_with_a_certificate_may_send_small_and_large_bodies(server: Server, size: int) -> None:
    async with server.serving():
        assert await server.client().ask("echo", b"x" * size) == size


@pytest.mark.parametrize(("name", "again"), [("", False), ("kube-scheduler", False), ("kube-scheduler", True)])
async def test_half_a_head_ends_the_connection_the_second_time_too(server: Server, name: str, *, again: bool) -> None:
    async with server.serving():
        for before in {False, again}:
            reader, writer = await server.client(name).connect()
            if before:
                writer.write(b"GET /readyz HTTP/1.1\r\nHost: h\r\n\r\n")
                assert (await answered(reader))[0] == 200
            writer.write(b"GET /readyz HTTP/1.1\r\nHost: ")
            assert await ended(reader, 5)


async def test_a_caller_with_a_certificate_may_keep_a_connection_that_it_has_not_used(server: Server) -> None:
    async with server.serving():
        reader, writer = await server.client().connect()
        await asyncio.sleep(1.5)
        writer.write(head(1) + b"x")
        assert (await answered(reader))[0] == 200


async def test_a_body_that_does_not_come_gives_its_bytes_back(server: Server) -> None:
    async with server.serving():
        for _ in range(3):
            first, writer = await server.client().connect()
            writer.write(head(MAX_BODY) + b"x")
            await asyncio.sleep(0.1)
            second, writer = await server.client().connect()
            writer.write(head(LARGE))
            assert (await answered(second))[0] == 503, "one large body at a time"
            assert await server.client().ask("echo", b"x") == 1, "and small ones beside it"
            assert await ended(first, 5)
        assert await server.client().ask("echo", b"x" * LARGE) == LARGE


async def test_an_open_extender_takes_no_more_bodies_together_than_a_closed_one(server: Server) -> None:
    async with server.serving(closed=False, limits=ConnectionLimits(body_seconds=3)):
        held = [await server.client("").connect() for _ in range(20)]
        for _, writer in held:
            writer.write(head(USUAL_BODY) + b"x")
        starts = [await asyncio.wait_for(reader.read(12), 10) for reader, _ in held]
        assert starts == [b""] * 16 + [b"HTTP/1.1 503"] * 4, "32 MiB are waited for, and then given up"
        assert await server.client("").ask("echo", b"x" * USUAL_BODY) == USUAL_BODY


async def test_a_page_that_nobody_takes_is_not_kept(server: Server) -> None:
    async with server.serving():
        reader, writer = await server.client("").connect()
        transport = cast(asyncio.Transport, writer.transport)
        transport.pause_reading()
        writer.write(b"GET /metrics HTTP/1.1\r\nHost: h\r\n\r\n")
        await asyncio.sleep(2)
        transport.resume_reading()
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
            await answered(reader)


async def test_of_too_many_strangers_the_oldest_goes_and_kube_scheduler_gets_in(server: Server) -> None:
    async with server.serving(rules=PlaceLimits(strangers=8, known=8, each=8)):
        kept = server.client()
        assert await kept.ask("echo", b"x") == 1
        strangers = [await server.client("").connect() for _ in range(9)]
        assert await ended(strangers[0][0], 3)
        assert await server.client().ask("echo", b"x") == 1, "one that was restarted"
        assert await kept.ask("echo", b"x") == 1
