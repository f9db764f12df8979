"""The agent's HTTP server: strict with requests, patient with nobody, and alive after all of them."""

import asyncio
import os
import socket
import ssl
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

import httpx2
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fractile.admission.certificates import Material, renewed
from fractile.admission.keeper import ServedCertificate
from fractile.agent.usage import http
from fractile.agent.usage.http import Address, Handler, HttpServer, PageRequest, Response
from fractile.errors import SetupError
from tests.region.strange import folder, full, link, pipe

LOCAL = Address("127.0.0.1", 0)
EACH = 32  # connections of one address
MATERIAL = renewed(Material(), ["localhost", "127.0.0.1"], now=datetime.now(UTC), published=False)


async def echo(request: PageRequest) -> Response:
    return Response(f"{request.path} {request.headers.get('x-word', '')}".encode())


async def broken(request: PageRequest) -> Response:
    raise RuntimeError("a bug")


@asynccontextmanager
async def serving(
    address: Address = LOCAL, *, page: Handler = echo, tls: ssl.SSLContext | None = None
) -> AsyncGenerator[HttpServer]:
    server = HttpServer(address, {"/echo": page, "/broken": broken}, tls=tls)
    running = asyncio.create_task(server.run())
    try:
        await asyncio.wait_for(server.listening.wait(), 10)
        yield server
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def talk(server: HttpServer, sent: bytes, *, end: bool = True) -> bytes:
    """The whole answer to these bytes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    try:
        writer.write(sent)
        if end and writer.can_write_eof():
            writer.write_eof()
        async with asyncio.timeout(20):
            return await reader.read()
    except ConnectionResetError:
        return b""
    finally:
        writer.close()


def status(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1])


async def test_pages_are_answered_to_a_usual_client() -> None:
    async with (
        serving() as server,
        httpx2.AsyncClient(base_url=f"http://127.0.0.1:{server.port}", trust_env=False) as c,
    ):
        got = await c.get("/echo?x=1", headers={"X-Word": "hello"})
        assert (got.status_code, got.text) == (200, "/echo hello")
        assert got.headers["content-length"] == "11"
        head = await c.head("/echo")
        assert (head.status_code, head.content, head.headers["content-length"]) == (200, b"", "6")
        missing = await c.get("/other")
        assert (missing.status_code, "/echo" in missing.text) == (404, True)
        assert (await c.post("/echo", content=b"x")).status_code == 405


async def test_a_page_that_fails_is_an_error_and_the_next_one_is_answered() -> None:
    async with serving() as server:
        assert status(await talk(server, b"GET /broken HTTP/1.1\r\n\r\n")) == 500
        assert status(await talk(server, b"GET /echo HTTP/1.1\r\n\r\n")) == 200


@pytest.mark.parametrize(
    ("sent", "wanted"),
    [
        pytest.param(b"GET /echo HTTP/1.1\r\n\r\n", 200, id="no headers"),
        pytest.param(b"GET /echo HTTP/1.0\r\nHost: a\r\n\r\n", 200, id="1.0"),
        pytest.param(b"GET  /echo HTTP/1.1\r\n\r\n", 400, id="two blanks"),
        pytest.param(b"GET http://a/echo HTTP/1.1\r\n\r\n", 400, id="absolute form"),
        pytest.param(b"GET /echo\r\n\r\n", 400, id="0.9"),
        pytest.param(b"GET /echo HTTP/2.0\r\n\r\n", 400, id="2"),
        pytest.param(b"GET /echo HTTP/1.1\r\nno colon\r\n\r\n", 400, id="a header without a colon"),
        pytest.param(b"GET /echo HTTP/1.1\r\nA: b\r\n folded\r\n\r\n", 400, id="a folded line"),
        pytest.param(b"GET /echo HTTP/1.1\r\nA : b\r\n\r\n", 400, id="a blank before the colon"),
        pytest.param(b"GET /echo HTTP/1.1\r\nA: b\nC: d\r\n\r\n", 400, id="a lonely line feed"),
        pytest.param(b"GET /echo HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400, id="two hosts"),
        pytest.param(b"GET /echo HTTP/1.1\r\nContent-Length: 5\r\n\r\nhello", 400, id="a body"),
        pytest.param(b"GET /echo HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400, id="chunks"),
        pytest.param(b"GET /\xc3\xa9 HTTP/1.1\r\n\r\n", 400, id="not ASCII"),
        pytest.param(b"DELETE /echo HTTP/1.1\r\n\r\n", 405, id="DELETE"),
        pytest.param(b"GET /" + b"a" * 9000 + b" HTTP/1.1\r\n\r\n", 431, id="a long path"),
        pytest.param(b"GET /echo HTTP/1.1\r\n" + b"A: b\r\n" * 3000 + b"\r\n", 431, id="many headers"),
        pytest.param(b"GET /echo HTTP/1.1\r\n", 400, id="it ends too early"),
    ],
)
async def test_requests_are_taken_strictly(sent: bytes, wanted: int) -> None:
    async with serving() as server:
        answer = await talk(server, sent)
        assert answer == b"" or status(answer) == wanted  # a peer that still sends may be cut off first
        if wanted != 431:
            assert answer != b""
        assert status(await talk(server, b"GET /echo HTTP/1.1\r\n\r\n")) == 200


async def test_who_is_slow_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "_READ", 0.2)
    async with serving() as server:
        assert status(await talk(server, b"GET /echo HT", end=False)) == 408


async def test_who_takes_no_answer_is_cut_off_and_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    size = 16 * 2**20  # more than the kernel keeps for a connection

    async def large(request: PageRequest) -> Response:
        return Response(bytes(size))

    monkeypatch.setattr(http, "_WRITE", 0.2)
    async with serving(page=large) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port, limit=1024)
        writer.write(b"GET /echo HTTP/1.1\r\n\r\n")
        await asyncio.sleep(1.0)  # and only then it reads
        got = 0
        with suppress(ConnectionError):
            async with asyncio.timeout(20):
                while data := await reader.read(2**20):
                    got += len(data)
        writer.close()
        assert got < size


SLOW = [pytest.param(b"", id="silent"), pytest.param(b"GET /echo HTTP/1.1\r\nA: ", id="half a head")]


async def slow(server: HttpServer, count: int, sent: bytes, *, host: str = "127.0.0.1") -> list[asyncio.StreamWriter]:
    """Connections that never end their request, all open or closed by the server."""
    made: list[asyncio.StreamWriter] = []
    for _ in range(count):
        _, writer = await asyncio.open_connection("127.0.0.1", server.port, local_addr=(host, 0))
        writer.write(sent)
        made.append(writer)
    return made


@pytest.mark.parametrize("sent", SLOW)
async def test_a_thousand_slow_connections_keep_nobody_from_an_answer(sent: bytes) -> None:
    async with serving() as server:
        made = await slow(server, 1000, sent)
        for _ in range(20):
            made += await slow(server, 20, sent)
            began = time.monotonic()
            assert status(await talk(server, b"GET /echo HTTP/1.1\r\n\r\n")) == 200
            assert time.monotonic() - began < 2
        for writer in made:
            writer.close()


async def test_slow_connections_of_one_address_cost_those_of_another_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "_READ", 60.0)
    async with serving() as server:
        reader, patient = await asyncio.open_connection("127.0.0.1", server.port, local_addr=("127.0.0.2", 0))
        patient.write(b"GET /echo HTTP/1.1\r\n")
        made = await slow(server, 500, b"")
        patient.write(b"\r\n")
        assert status(await asyncio.wait_for(reader.read(), 20)) == 200
        for writer in (*made, patient):
            writer.close()


async def test_a_slow_connection_is_not_kept_for_ever_and_leaves_no_descriptor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "_READ", 0.3)
    async with serving() as server:
        before = len(os.listdir("/proc/self/fd"))
        made = await slow(server, 200, b"")
        for writer in made:
            writer.transport.abort()
        await asyncio.sleep(1.0)
        assert len(os.listdir("/proc/self/fd")) <= before


def contexts() -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """Of the server, and of its clients."""
    served = ServedCertificate()
    served.load(MATERIAL.cert, MATERIAL.key, MATERIAL.bundle)
    return served.context, ssl.create_default_context(cadata=MATERIAL.bundle.decode())


def accepted(port: int) -> int:
    """Connections to the port that a program still has open on the listening side, also while it closes them."""
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return sum(int(f[1].rpartition(":")[2], 16) == port and f[3] != "0A" and f[9] != "0" for f in lines)


def never_closing(port: int, trust: ssl.SSLContext, count: int, more: bytes) -> list[socket.socket]:
    """Clients that ask over TLS, and read no more when the answer comes: that the server closes has no answer.
    ``more``: what they send then."""
    made = list[socket.socket]()
    for _ in range(count):
        with suppress(OSError):
            one = trust.wrap_socket(socket.create_connection(("127.0.0.1", port), 10), server_hostname="localhost")
            one.sendall(b"GET /echo HTTP/1.1\r\n\r\n")
            one.recv(1)
            one.sendall(more)
            made.append(one)
    return made


@pytest.mark.parametrize("more", [pytest.param(b"", id="silent"), pytest.param(b"\r\n", id="one record more")])
async def test_connections_that_are_being_closed_over_tls_count_as_connections(more: bytes) -> None:
    tls, trust = contexts()
    async with serving(tls=tls) as server:
        hostile = asyncio.create_task(asyncio.to_thread(never_closing, server.port, trust, 1000, more))
        most = 0
        while not hostile.done():
            most = max(most, accepted(server.port))
            await asyncio.sleep(0.25)
        print(f"most={most}")
        assert most <= 2 * EACH  # the rest waits for its handshake to begin
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port, ssl=trust)
        writer.write(b"GET /echo HTTP/1.1\r\n\r\n")
        assert status(await asyncio.wait_for(reader.read(), 5)) == 200
        writer.close()
        clients = await hostile
        assert len(clients) > 900
        for one in clients:
            one.close()


def until_the_end(port: int, trust: ssl.SSLContext) -> tuple[bytes, float]:
    """What a client reads over TLS that sends nothing after its request; how long that took, in seconds."""
    began, found = time.monotonic(), b""
    with trust.wrap_socket(socket.create_connection(("127.0.0.1", port), 20), server_hostname="localhost") as one:
        one.sendall(b"GET /echo HTTP/1.1\r\n\r\n")
        while more := one.recv(1000):
            found += more
    return found, time.monotonic() - began


async def test_an_answer_over_tls_ends_when_it_is_sent() -> None:
    tls, trust = contexts()
    async with serving(tls=tls) as server:
        found, seconds = await asyncio.to_thread(until_the_end, server.port, trust)
        assert status(found) == 200
        assert seconds < 4


async def test_a_connection_over_tls_that_its_client_closes_leaves_at_once() -> None:
    tls, trust = contexts()
    async with serving(tls=tls) as server:
        for _ in range(3):
            _, writer = await asyncio.open_connection("127.0.0.1", server.port, ssl=trust)
            writer.write(b"GET /echo HTTP/1.1\r\n\r\n")
            writer.close()
            await writer.wait_closed()
        async with asyncio.timeout(2):
            while accepted(server.port):  # noqa: ASYNC110
                await asyncio.sleep(0.02)


async def test_a_port_that_is_taken_is_tried_again() -> None:
    waits: list[float] = []
    freed = asyncio.Event()

    async def wait(seconds: float) -> None:
        waits.append(seconds)
        await freed.wait()

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        server = HttpServer(Address("127.0.0.1", taken.getsockname()[1]), {"/echo": echo}, sleep=wait)
        running = asyncio.create_task(server.run())
        await asyncio.sleep(0.1)
        assert waits
        assert not server.listening.is_set()
    freed.set()
    try:
        await asyncio.wait_for(server.listening.wait(), 10)
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(raw=st.binary(max_size=200))
async def test_any_bytes_get_an_answer_or_an_end(raw: bytes) -> None:
    async with serving() as server:
        answer = await talk(server, raw)
        assert answer == b"" or status(answer) in (200, 400, 404, 405, 431)


@pytest.mark.parametrize(
    ("text", "address"),
    [
        (":5678", Address("", 5678)),
        ("127.0.0.1:1", Address("127.0.0.1", 1)),
        ("[::1]:80", Address("::1", 80)),
        ("", None),
    ],
)
def test_addresses_are_read(text: str, address: Address | None) -> None:
    assert Address.parse(text) == address


@pytest.mark.parametrize("text", ["5678", ":", ":x", "a:70000", "::1", ":-1", "::1:80", ":５"])
def test_what_is_no_address_is_a_sentence(text: str) -> None:
    with pytest.raises(SetupError, match="not an address to listen on"):
        Address.parse(text)


@pytest.mark.parametrize("harm", [folder, full, link, pipe])
async def test_what_lies_in_the_place_of_a_unix_socket_goes(tmp_path: Path, harm: Callable[[Path], None]) -> None:
    harm(tmp_path / "s")
    server = HttpServer(tmp_path / "s", {"/echo": echo})
    running = asyncio.create_task(server.run())
    await asyncio.wait_for(server.listening.wait(), 5)
    assert (tmp_path / "s").is_socket()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
