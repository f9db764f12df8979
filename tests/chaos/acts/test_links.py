"""A link passes on, stalls, is cut, and works again; on sockets of this machine."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest

from tests.chaos.acts.links import Front, Link


@asynccontextmanager
async def echo() -> AsyncGenerator[int]:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(100):
            writer.write(data.upper())
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


@asynccontextmanager
async def linked() -> AsyncGenerator[Link]:
    async with echo() as port:
        link = Link("x", lambda: ("127.0.0.1", port))
        await link.listen()
        try:
            yield link
        finally:
            await link.close()


async def ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, seconds: float = 2.0) -> bytes:
    writer.write(b"hello")
    async with asyncio.timeout(seconds):
        return await reader.read(5)


async def test_what_is_sent_arrives_and_comes_back() -> None:
    async with linked() as link:
        reader, writer = await asyncio.open_connection("127.0.0.1", link.port)
        assert await ask(reader, writer) == b"HELLO"
        writer.close()


async def test_a_cut_ends_what_is_open_and_refuses_what_comes_until_it_is_mended() -> None:
    async with linked() as link:
        reader, writer = await asyncio.open_connection("127.0.0.1", link.port)
        assert await ask(reader, writer) == b"HELLO"
        link.cut()
        with pytest.raises(ConnectionError):
            await ask(reader, writer)
        writer.close()
        reader, writer = await asyncio.open_connection("127.0.0.1", link.port)
        assert await reader.read() == b""
        writer.close()
        link.restore()
        reader, writer = await asyncio.open_connection("127.0.0.1", link.port)
        assert await ask(reader, writer) == b"HELLO"
        writer.close()


async def test_a_muted_link_does_what_is_asked_and_keeps_the_answer() -> None:
    async with linked() as link:
        reader, writer = await asyncio.open_connection("127.0.0.1", link.port)
        assert await ask(reader, writer) == b"HELLO"
        link.mute()
        with pytest.raises(TimeoutError):
            await ask(reader, writer, 0.2)
        link.restore()
        assert await reader.read(5) == b"HELLO"
        writer.close()


async def test_what_is_late_arrives_though_nobody_waits_for_it() -> None:
    heard: list[bytes] = []

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heard.append(await reader.read())
        writer.close()

    server = await asyncio.start_server(listen, "127.0.0.1", 0)
    link = Link("x", lambda: ("127.0.0.1", server.sockets[0].getsockname()[1]))
    await link.listen()
    link.delay(0.3)
    _, writer = await asyncio.open_connection("127.0.0.1", link.port)
    writer.write(b"bind")
    await writer.drain()
    writer.close()
    await asyncio.sleep(0.1)
    assert heard == []
    await asyncio.sleep(0.5)
    assert heard == [b"bind"]
    await link.close()
    server.close()


async def test_a_stall_lets_nothing_through_and_loses_nothing() -> None:
    async with linked() as link:
        reader, writer = await asyncio.open_connection("127.0.0.1", link.port)
        assert await ask(reader, writer) == b"HELLO"
        link.stall()
        with pytest.raises(TimeoutError):
            await ask(reader, writer, 0.2)
        late = await asyncio.open_connection("127.0.0.1", link.port)
        link.restore()
        async with asyncio.timeout(2):
            assert await reader.read(5) == b"HELLO"
        assert await ask(*late) == b"HELLO"
        writer.close()
        late[1].close()


async def test_a_front_sends_to_whoever_is_ready_and_to_nobody_when_none_is() -> None:
    ready = {1: False, 2: True}

    async def is_ready(there: tuple[str, int]) -> bool:
        return ready[there[1]]

    front = Front({"a": ("127.0.0.1", 1), "b": ("127.0.0.1", 2)}, is_ready)
    upstream = front.upstream({"a": 10, "b": 20})
    watching = asyncio.create_task(front.run(0.01))
    try:
        await asyncio.sleep(0.05)
        assert upstream() == ("127.0.0.1", 20)
        ready[2] = False
        await asyncio.sleep(0.05)
        assert upstream() is None
    finally:
        watching.cancel()
