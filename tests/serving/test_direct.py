"""Verbs that are answered without an application, byte by byte over plain TCP; in asyncio's loop and in uvloop's."""

import asyncio
import os
import signal
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any

import pytest
import uvloop
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from fractile.extender.verbs import USUAL_BODY, Verb
from fractile.serving import https_server
from fractile.serving.connections import KeptConnections
from fractile.serving.https_server import Options, serve
from tests.main.process import free_port

Answer = Callable[[bytes], bytes | Awaitable[bytes]]

LOOPS = [pytest.param(asyncio.new_event_loop, id="asyncio"), pytest.param(uvloop.new_event_loop, id="uvloop")]


@pytest.fixture(params=LOOPS)
def in_loop(request: pytest.FixtureRequest) -> Callable[[Coroutine[Any, Any, None]], None]:
    def run(test: Coroutine[Any, Any, None]) -> None:
        with asyncio.Runner(loop_factory=request.param) as runner:
            runner.run(asyncio.wait_for(test, 60))

    return run


class World:
    """``/echo`` at once, ``/slow`` when ``go`` is set, ``/bug`` never; ``/app`` and all else is the application's."""

    def __init__(self) -> None:
        self.go = asyncio.Event()
        self.asked = 0
        self.port = free_port()
        answers: dict[str, Answer] = {"/echo": self._echo, "/slow": self._slow, "/bug": self._bug}
        self._verbs = {path.encode(): Verb(path, answer, str.encode) for path, answer in answers.items()}

    @asynccontextmanager
    async def serving(self) -> AsyncGenerator["asyncio.Task[None]", None]:
        app = Starlette(routes=[Route("/{path:path}", _app, methods=["GET", "POST"])])
        task = asyncio.create_task(serve(app, Options(f"127.0.0.1:{self.port}", None, None), self._verbs.get))
        while not await self._up():  # noqa: ASYNC110 - uvicorn has no event
            await asyncio.sleep(0.02)
        try:
            yield task
        finally:
            task.cancel()
            await asyncio.wait([task], timeout=10)

    async def _up(self) -> bool:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", self.port)
        except OSError:
            return False
        writer.close()
        return True

    def _echo(self, body: bytes) -> bytes:
        self.asked += 1
        return b"<" + body + b">"

    async def _slow(self, body: bytes) -> bytes:
        self.asked += 1
        await self.go.wait()
        return b"slowly " + body

    def _bug(self, body: bytes) -> bytes:
        raise ZeroDivisionError


async def _app(request: Request) -> Response:
    return PlainTextResponse(f"application {len(await request.body())}")


class Caller:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def of(cls, world: World) -> "Caller":
        return cls(*await asyncio.open_connection("127.0.0.1", world.port))

    def send(self, path: str, body: bytes = b"x", *, method: str = "POST", more: str = "") -> None:
        head = f"{method} {path} HTTP/1.1\r\nHost: h\r\nContent-Length: {len(body)}\r\n{more}\r\n"
        self.writer.write(head.encode() + body)

    async def answer(self) -> tuple[str, bytes]:
        """Head and body."""
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode().lower()
        length = next(int(line[16:]) for line in head.splitlines() if line.startswith("content-length: "))
        return head, await self.reader.readexactly(length)

    async def asked(self, path: str, body: bytes = b"x", *, method: str = "POST", more: str = "") -> bytes:
        self.send(path, body, method=method, more=more)
        return (await self.answer())[1]


Run = Callable[[Coroutine[Any, Any, None]], None]


def test_a_verb_is_answered_and_its_connection_used_again(in_loop: Run) -> None:
    async def test() -> None:
        world = World()
        async with world.serving():
            caller = await Caller.of(world)
            for body in (b"", b"one", b"x" * 300_000):
                caller.send("/echo", body)
                head, answered = await caller.answer()
                assert answered == b"<" + body + b">"
                assert "http/1.1 200" in head
                assert "application/json" in head
                assert "close" not in head

    in_loop(test())


def test_what_is_no_plain_post_of_a_verb_goes_to_the_application(in_loop: Run) -> None:
    async def test() -> None:
        world = World()
        async with world.serving():
            caller = await Caller.of(world)
            assert await caller.asked("/app") == b"application 1"
            assert await caller.asked("/echo", method="GET", body=b"") == b"application 0"
            assert await caller.asked("/echo?x=1") == b"application 1"
            assert await caller.asked("/echo") == b"<x>", "both ways on one connection"
            caller.writer.write(
                b"POST /echo HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n0\r\n\r\n"
            )
            assert (await caller.answer())[1] == b"application 2"
            last = await Caller.of(world)
            assert await last.asked("/echo", more="Connection: close\r\n") == b"application 1"
            assert await last.reader.read() == b""
            assert world.asked == 1

    in_loop(test())


def test_a_body_that_is_too_large_is_refused_by_its_head_in_the_words_of_the_verb(in_loop: Run) -> None:
    async def test() -> None:
        world = World()
        async with world.serving():
            caller = await Caller.of(world)
            assert await caller.asked("/echo", b"x" * USUAL_BODY) == b"<" + b"x" * USUAL_BODY + b">"
            for length in (str(USUAL_BODY + 1), "9999999999999999999"):
                caller = await Caller.of(world)
                caller.writer.write(f"POST /echo HTTP/1.1\r\nHost: h\r\nContent-Length: {length}\r\n\r\n".encode())
                head, answered = await caller.answer()
                assert "http/1.1 200" in head
                assert answered == b"the request is larger than 2097152 bytes"
                assert await caller.reader.read() == b""
            assert world.asked == 1

    in_loop(test())


def test_a_bug_in_a_verb_is_answered_and_the_next_call_too(in_loop: Run) -> None:
    async def test() -> None:
        world = World()
        async with world.serving():
            caller = await Caller.of(world)
            assert b"internal error" in await caller.asked("/bug")
            assert await caller.asked("/echo") == b"<x>"

    in_loop(test())


def test_what_is_sent_before_an_answer_ends_the_connection_after_it(in_loop: Run) -> None:
    async def test() -> None:
        world = World()
        async with world.serving():
            caller = await Caller.of(world)
            caller.send("/slow", b"a")
            for _ in range(3):
                caller.send("/echo", b"b")
            await asyncio.sleep(0.05)
            world.go.set()
            head, answered = await caller.answer()
            assert answered == b"slowly a"
            assert "connection: close" in head
            assert await caller.reader.read() == b""
            assert world.asked == 1

    in_loop(test())


def test_several_verbs_in_one_piece_are_answered_in_their_order(in_loop: Run) -> None:
    async def test() -> None:
        world = World()
        async with world.serving():
            caller = await Caller.of(world)
            for body in (b"a", b"b", b"c"):
                caller.send("/echo", body)
            assert [(await caller.answer())[1] for _ in range(3)] == [b"<a>", b"<b>", b"<c>"]

    in_loop(test())


def test_what_is_sent_before_an_answer_of_the_application_ends_the_connection(in_loop: Run) -> None:
    async def test() -> None:
        world = World()
        async with world.serving():
            caller = await Caller.of(world)
            for _ in range(1000):
                caller.send("/app", b"x")
            with suppress(ConnectionError):
                assert await caller.reader.read() == b""
            assert await (await Caller.of(world)).asked("/echo") == b"<x>"

    in_loop(test())


def test_who_asks_for_no_verb_does_not_hold_back_the_answers_of_binds(
    in_loop: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(https_server, "KeptConnections", partial(KeptConnections, patience=60.0))

    async def test() -> None:
        world = World()
        world.go.set()
        async with world.serving(), asyncio.timeout(30):
            others = [await Caller.of(world) for _ in range(3)]
            for other in others:
                await other.asked("/metrics", b"", method="GET")
            first = await Caller.of(world)
            assert await first.asked("/slow") == b"slowly x"
            second = await Caller.of(world)
            assert await second.asked("/slow") == b"slowly x"
            third = await Caller.of(world)
            third.send("/slow")
            first.writer.close()  # else it would be one too many
            assert (await third.answer())[1] == b"slowly x"

    in_loop(test())


def test_a_caller_that_goes_away_does_not_stop_the_verb(in_loop: Run) -> None:
    async def test() -> None:
        world = World()
        async with world.serving():
            caller = await Caller.of(world)
            caller.send("/slow")
            await asyncio.sleep(0.05)
            caller.writer.transport.abort()
            await asyncio.sleep(0.05)
            world.go.set()
            assert await (await Caller.of(world)).asked("/slow", b"b") == b"slowly b"
            assert world.asked == 2

    in_loop(test())


def test_a_verb_in_flight_is_answered_before_the_server_ends(in_loop: Run) -> None:
    async def test() -> None:
        world = World()
        async with world.serving() as task:
            caller, idle = await Caller.of(world), await Caller.of(world)
            assert await idle.asked("/echo") == b"<x>"
            caller.send("/slow", b"a")
            await asyncio.sleep(0.05)
            os.kill(os.getpid(), signal.SIGTERM)
            assert await idle.reader.read() == b"", "a connection that waits is closed"
            world.go.set()
            head, answered = await caller.answer()
            assert (answered, "connection: close" in head) == (b"slowly a", True)
            await asyncio.wait_for(asyncio.shield(task), 20)

    in_loop(test())
