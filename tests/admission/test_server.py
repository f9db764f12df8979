"""The webhook's server: TLS, connections that are too many or too slow, and a flood."""

import asyncio
import ssl
from base64 import b64decode
from collections.abc import AsyncGenerator
from datetime import UTC, datetime

import pytest

from fractile.admission.certificates import Material, renewed
from fractile.admission.intake import Bounds
from fractile.admission.keeper import Served
from fractile.admission.server import Limits
from tests.admission.conftest import Open
from tests.admission.world import answered
from tests.wire.golden_files import golden

MATERIAL = renewed(Material(), ["localhost", "127.0.0.1"], now=datetime.now(UTC), published=False)
CLIENT = ssl.create_default_context(cadata=MATERIAL.bundle.decode())
BODY = golden("admission-pod.json")


@pytest.fixture
async def context() -> ssl.SSLContext:
    served = Served()
    served.load(MATERIAL.cert, MATERIAL.key, MATERIAL.bundle)
    return served.context


class Connection:
    """One TLS connection to the webhook."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def ask(self, body: bytes, *, length: int | None = None) -> tuple[int, bytes]:
        """A review; status and body of the answer. ``length`` is announced instead of the body's own."""
        head = f"POST /admission/mutate?timeout=3s HTTP/1.1\r\nhost: x\r\ncontent-length: {length or len(body)}\r\n\r\n"
        self.writer.write(head.encode() + body)
        status = int((await self.reader.readuntil(b"\r\n\r\n"))[9:12])
        return status, await asyncio.wait_for(self.reader.read(65536), 10)

    async def closed(self, seconds: float = 10) -> bool:
        try:
            return await asyncio.wait_for(self.reader.read(), seconds) == b""
        except (ConnectionError, ssl.SSLError):
            return True

    def close(self) -> None:
        self.writer.transport.abort()


async def connect(port: int) -> Connection:
    return Connection(*await asyncio.open_connection("127.0.0.1", port, ssl=CLIENT))


@pytest.fixture
async def port(open_server: Open, context: ssl.SSLContext) -> AsyncGenerator[int, None]:
    limits = Limits(connections=4, handshake=3, first_request=1.5)
    async with open_server(context, limits=limits, bounds=Bounds(body=100_000, requests=2, seconds=5)) as found:
        yield found


async def test_a_connection_is_kept_for_the_next_review(port: int) -> None:
    connection = await connect(port)
    for _ in range(3):
        status, body = await connection.ask(BODY)
        assert status == 200
        assert b64decode(answered(body)["patch"]).startswith(b"[")
        await asyncio.sleep(0.9)  # two of them longer than a first request may take
    connection.close()


async def test_what_is_too_large_is_answered_before_it_is_sent(port: int) -> None:
    connection = await connect(port)
    status, text = await connection.ask(b"", length=10**9)
    assert status == 413
    assert b"larger than 100000 bytes" in text
    assert await connection.closed()


async def test_a_connection_too_many_is_closed_and_room_comes_back(port: int) -> None:
    held = [await connect(port) for _ in range(4)]
    for one in held:
        assert (await one.ask(BODY))[0] == 200
    extra = await connect(port)
    assert await extra.closed()
    held.pop().close()
    await asyncio.sleep(0.1)
    again = await connect(port)
    assert (await again.ask(BODY))[0] == 200
    for one in (*held, again):
        one.close()


@pytest.mark.parametrize("sent", [b"", b"POST /admission/mutate HTTP/1.1\r\nhost"])
async def test_who_does_not_ask_is_not_waited_for(port: int, sent: bytes) -> None:
    connection = await connect(port)
    connection.writer.write(sent)
    assert await connection.closed()


async def test_who_does_not_speak_tls_is_not_waited_for(port: int) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    assert await asyncio.wait_for(reader.read(), 10) == b""
    writer.close()


async def test_who_comes_while_too_much_is_on_its_way_is_turned_away_at_once(
    open_server: Open, context: ssl.SSLContext
) -> None:
    """What a flood costs in memory: tests/main/test_webhook.py, where the server is a process of its own."""
    large = 7 * 2**20
    head = f"POST /admission/mutate HTTP/1.1\r\nhost: x\r\ncontent-length: {large}\r\n\r\n{{".encode()
    async with open_server(context, bounds=Bounds(together=4 * large, seconds=60)) as port:
        held = [await connect(port) for _ in range(4)]
        for one in held:
            one.writer.write(head)
        await asyncio.sleep(0.5)
        late = await connect(port)
        assert (await late.ask(b"", length=large))[0] == 503
        small = await connect(port)
        assert (await small.ask(BODY))[0] == 503
        for one in (*held, late, small):
            one.close()
        await asyncio.sleep(0.2)
        after = await connect(port)
        assert (await after.ask(BODY))[0] == 200
        after.close()
