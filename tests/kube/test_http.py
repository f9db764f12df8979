"""The HTTP client against a server that says exactly what the test wants, byte by byte."""

import asyncio
import gc
import gzip
import socket
import ssl
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

import pytest
import uvloop

from fractile.errors import Unreachable, WireError
from fractile.kube.connection import Connection
from fractile.kube.http import Cut, Http, HTTPRequest

GET = HTTPRequest("GET", "/api/v1/pods")
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


@dataclass
class Script:
    """Answers requests with ``answers``, one after the other, whatever is asked; then it keeps silent."""

    answers: list[bytes]
    closes: bool = False  # the connection, after each answer
    heads: list[str] = field(default_factory=list[str])
    connections: int = 0
    port: int = 0
    hang_up: asyncio.Event = field(default_factory=asyncio.Event)
    unasked: asyncio.Event = field(default_factory=asyncio.Event)
    written: int = 0  # answers that the client has taken

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        hanging = asyncio.ensure_future(self.hang_up.wait())
        talking: asyncio.Future[None] | None = None
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                reading = asyncio.ensure_future(reader.readuntil(b"\r\n\r\n"))
                await asyncio.wait({reading, hanging}, return_when=asyncio.FIRST_COMPLETED)
                if not reading.done():
                    reading.cancel()
                    break
                self.heads.append((await reading).decode())
                if self.answers:
                    writer.write(self.answers.pop(0))
                    await writer.drain()
                    self.written += 1
                    talking = talking or asyncio.ensure_future(self._talk(writer))
                    if self.closes:
                        break
        hanging.cancel()
        if talking is not None:
            talking.cancel()
        writer.close()

    async def _talk(self, writer: asyncio.StreamWriter) -> None:
        await self.unasked.wait()
        self.unasked.clear()
        writer.write(OK)


@dataclass
class Clock:
    now: float = 0.0

    def __call__(self) -> float:
        return self.now


@asynccontextmanager
async def scripted(
    *answers: bytes, closes: bool = False, prefix: str = "", clock: Clock | None = None
) -> AsyncGenerator[tuple[Http, Script]]:
    script = Script(list(answers), closes)
    server = await asyncio.start_server(script.serve, "127.0.0.1", 0)
    script.port = server.sockets[0].getsockname()[1]
    address = f"http://127.0.0.1:{script.port}{prefix}"
    http = Http(address, tls=None, server_name="", headers={"Accept": "application/json"}, clock=clock or Clock())
    try:
        async with asyncio.timeout(20):
            yield http, script
    finally:
        await http.close()
        server.close()


async def body(http: Http, request: HTTPRequest = GET) -> bytes:
    return await (await http.send(request)).read()


async def test_a_request_has_the_path_of_the_server_before_its_own_and_all_headers() -> None:
    async with scripted(OK, prefix="/k8s/clusters/c-1") as (http, script):
        await body(http, HTTPRequest("POST", "/api/v1/pods", {"a": "b c", "d": "é&"}, {"Content-Type": "text/x"}, b""))
        assert script.heads == [
            "POST /k8s/clusters/c-1/api/v1/pods?a=b+c&d=%C3%A9%26 HTTP/1.1\r\n"
            f"Host: 127.0.0.1:{script.port}\r\nAccept: application/json\r\nContent-Type: text/x\r\n"
            "Content-Length: 0\r\n\r\n"
        ]


async def test_a_connection_is_used_again_once_its_answer_was_read() -> None:
    async with scripted(OK, OK, OK) as (http, script):
        for _ in range(3):
            assert await body(http) == b"ok"
        assert script.connections == 1


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok", id="it says so"),
        pytest.param(b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok", id="HTTP 1.0"),
    ],
)
async def test_a_connection_that_the_server_will_close_is_not_used_again(answer: bytes) -> None:
    async with scripted(answer, answer) as (http, script):
        assert [await body(http), await body(http)] == [b"ok", b"ok"]
        assert script.connections == 2


async def test_a_connection_that_the_server_closed_while_it_was_idle_is_not_used_again() -> None:
    async with scripted(OK, OK) as (http, script):
        await body(http)
        script.hang_up.set()
        await asyncio.sleep(0.05)
        script.hang_up.clear()
        assert await body(http) == b"ok"
        assert script.connections == 2


@pytest.mark.parametrize(("seconds", "connections"), [(44, 1), (46, 2)])
async def test_a_connection_is_kept_for_45_seconds(seconds: float, connections: int) -> None:
    clock = Clock()
    async with scripted(OK, OK, clock=clock) as (http, script):
        await body(http)
        clock.now += seconds
        await body(http)
        assert script.connections == connections


async def test_calls_at_once_have_a_connection_each_and_twenty_are_kept() -> None:
    async with scripted(*[OK] * 50) as (http, script):
        await asyncio.gather(*(body(http) for _ in range(25)))
        assert script.connections == 25
        await asyncio.gather(*(body(http) for _ in range(25)))
        assert script.connections == 30


async def test_an_answer_that_was_not_read_to_its_end_gives_its_connection_up() -> None:
    async with scripted(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nok", OK) as (http, script):
        answer = await http.send(GET)
        answer.close()
        assert await body(http) == b"ok"
        assert script.connections == 2


async def test_a_cancelled_call_gives_its_connection_up() -> None:
    async with scripted() as (http, script):
        call = asyncio.create_task(body(http))
        while not script.heads:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        script.answers.append(OK)
        assert await body(http) == b"ok"
        assert script.connections == 2


async def test_a_body_may_come_in_chunks_after_other_heads() -> None:
    answer = b"HTTP/1.1 103 Early Hints\r\nLink: <x>\r\n\r\n" + CHUNKED + b"3\r\nabc\r\n2;x=y\r\nde\r\n0\r\n\r\n"
    async with scripted(answer, OK) as (http, script):
        assert [await body(http), await body(http)] == [b"abcde", b"ok"]
        assert script.connections == 1


async def test_a_body_may_end_with_its_connection() -> None:
    async with scripted(b"HTTP/1.1 200 OK\r\n\r\nall of it", closes=True) as (http, _):
        assert await body(http) == b"all of it"


async def test_a_compressed_body_is_unpacked_and_one_cut_short_is_damaged() -> None:
    packed = gzip.compress(b"x" * 100_000)

    def answer(content: bytes) -> bytes:
        return b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(content) + content

    async with scripted(answer(packed), answer(packed[:-9]), answer(b"not gzip at all")) as (http, _):
        assert await body(http) == b"x" * 100_000
        for _ in range(2):
            with pytest.raises(WireError, match=r"the answer of GET http://127\.0\.0\.1:\d+/api/v1/pods is damaged"):
                await body(http)


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(b"", id="no answer"),
        pytest.param(b"HTTP/1.1 200 OK\r\nContent-Le", id="half a head"),
        pytest.param(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nok", id="half a body"),
        pytest.param(CHUNKED + b"5\r\nabc", id="half a chunk"),
        pytest.param(CHUNKED + b"nonsense\r\n", id="no chunk"),
        pytest.param(b"220 mail.example.org ESMTP\r\n\r\n", id="no HTTP"),
        pytest.param(b"HTTP/1.1 200 OK\r\nX: " + b"x" * 200_000 + b"\r\n\r\n", id="a head without end"),
    ],
)
async def test_a_broken_answer_is_a_cut_that_names_the_request(answer: bytes) -> None:
    async with scripted(answer, closes=True) as (http, _):
        with pytest.raises(Cut, match=r"no answer from GET http://127\.0\.0\.1:\d+/api/v1/pods: ."):
            await body(http)


async def test_nobody_listening_is_a_cut() -> None:
    async with scripted() as (_, script):
        port = script.port
    http = Http(f"http://127.0.0.1:{port}", tls=None, server_name="", headers={})
    with pytest.raises(Cut, match="no answer from GET"):
        await http.send(GET)


async def test_a_host_name_that_cannot_be_one_is_a_cut() -> None:
    http = Http(f"http://{'x' * 300}", tls=None, server_name="", headers={})
    with pytest.raises(Cut, match="no answer from GET"):
        await http.send(GET)


async def test_a_server_that_speaks_no_tls_is_a_cut() -> None:
    async with scripted(OK) as (_, script):
        http = Http(f"https://127.0.0.1:{script.port}", tls=ssl.create_default_context(), server_name="", headers={})
        with pytest.raises(Cut, match="no answer from GET https"):
            await http.send(GET)


async def test_silence_ends_a_stream_and_is_no_cut() -> None:
    async with scripted(CHUNKED + b"2\r\nok\r\n") as (http, _):
        answer = await http.send(GET)
        pieces = answer.pieces(silence=0.05)
        assert await anext(pieces) == b"ok"
        with pytest.raises(Unreachable, match=r"not a byte within 0\.05 s") as error:
            await anext(pieces)
        assert not isinstance(error.value, Cut)


async def test_what_the_server_sends_beyond_its_answer_is_not_taken_for_the_next() -> None:
    async with scripted(OK + OK, OK.replace(b"ok", b"no")) as (http, script):
        assert await body(http) == b"ok"
        await asyncio.sleep(0.05)
        assert await body(http) == b"no"
        assert script.connections == 2


async def test_what_a_server_says_unasked_gives_its_connection_up() -> None:
    async with scripted(OK, OK) as (http, script):
        assert await body(http) == b"ok"
        script.unasked.set()
        await asyncio.sleep(0.05)
        assert await body(http) == b"ok"
        assert script.connections == 2


@pytest.mark.parametrize(
    "request_",
    [
        pytest.param(HTTPRequest("GET", "/a\r\nX: y"), id="path"),
        pytest.param(HTTPRequest("GET", "/a b"), id="blank"),
        pytest.param(HTTPRequest("GET", "/a", {}, {"Authorization": "Bearer x\r\nX: y"}), id="header"),
        pytest.param(HTTPRequest("GET", "/a", {}, {"Authorization": "Bearer é"}), id="no ASCII"),
    ],
)
async def test_nothing_is_sent_that_would_be_read_as_something_else(request_: HTTPRequest) -> None:
    async with scripted(OK) as (http, script):
        with pytest.raises(Cut):
            await body(http, request_)
        assert script.heads == []


async def test_a_stream_that_nobody_reads_makes_the_server_wait() -> None:
    piece = b"%x\r\n" % 100_000 + b"x" * 100_000 + b"\r\n"
    async with scripted(CHUNKED + piece * 200) as (http, script):
        answer = await http.send(GET)
        await asyncio.sleep(0.3)
        assert not script.written, "twenty MB are in nobody's memory"
        pieces = answer.pieces()
        size = 0
        while size < 20_000_000:
            size += len(await anext(pieces))
        assert size == 20_000_000


def test_a_server_is_reached_in_uvloop_too() -> None:
    async def test() -> None:
        async with scripted(OK, CHUNKED + b"2\r\nok\r\n0\r\n\r\n") as (http, script):
            assert [await body(http), await body(http)] == [b"ok", b"ok"]
            assert script.connections == 1

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(test())


async def test_the_next_address_is_tried_when_one_refuses_and_when_one_is_silent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with scripted(OK, OK) as (_, script):
        silent = socket.create_server(("127.0.0.1", 0), backlog=0)
        addresses = [("127.0.0.1", 1), ("127.0.0.1", script.port)]
        filling = [await _begun(silent.getsockname()) for _ in range(8)]  # its queue is full: it answers no more

        async def found(*_: object, **__: object) -> list[tuple[int, int, int, str, tuple[str, int]]]:
            return [(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", one) for one in addresses]

        monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", found)
        for _ in range(2):
            http = Http("http://several.example", tls=None, server_name="", headers={})
            assert await body(http) == b"ok"
            await http.close()
            addresses[0] = silent.getsockname()
        for one in filling:
            one.close()
        silent.close()


async def _begun(address: tuple[str, int]) -> socket.socket:
    opened = socket.socket()
    opened.setblocking(False)
    opened.connect_ex(address)
    await asyncio.sleep(0)
    return opened


async def test_a_connection_that_ended_is_gone_without_the_collector() -> None:
    """It has 90 kB of TLS buffers; the collector never looks at what was there when a program became ready."""
    gc.collect()
    gc.disable()
    try:
        async with scripted(*[OK] * 5, closes=True) as (http, script):
            for _ in range(5):
                assert await body(http) == b"ok"
                await asyncio.sleep(0.05)
            assert script.connections == 5
            ended = [c for c in gc.get_objects() if isinstance(c, Connection) and not c.alive]
            assert len(ended) <= 1, "the last one is looked at when there is a next request"
    finally:
        gc.enable()
