"""The webhook's server: TLS, connections that are too many or too slow, and a flood."""

import asyncio
import contextlib
import ssl
from base64 import b64decode
from collections.abc import AsyncGenerator
from datetime import UTC, datetime

import msgspec
import pytest

from fractile.admission.certificates import Material, renewed
from fractile.admission.intake import IntakeLimits
from fractile.admission.keeper import ServedCertificate
from fractile.serving.webhook_server import USUAL, WebhookLimits
from tests.admission.world import answered, opened, review
from tests.wire.golden_files import golden

MATERIAL = renewed(Material(), ["localhost", "127.0.0.1"], now=datetime.now(UTC), published=False)
CLIENT = ssl.create_default_context(cadata=MATERIAL.bundle.decode())
BODY = golden("admission-pod.json")


@pytest.fixture
async def context() -> ssl.SSLContext:
    served = ServedCertificate()
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
async def port(context: ssl.SSLContext) -> AsyncGenerator[int, None]:
    limits = WebhookLimits(connections=4, handshake=3, first_request=1.5)
    async with opened(context, limits=limits, bounds=IntakeLimits(body=100_000, requests=2, seconds=5)) as found:
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


async def test_what_is_no_review_is_answered_with_what_is_wrong_and_the_connection_lives(port: int) -> None:
    connection = await connect(port)
    for _ in range(2):
        status, text = await connection.ask(b"{}")
        assert (status, b"AdmissionReview" in text) == (400, True)
        assert (await connection.ask(BODY))[0] == 200
    connection.close()


async def test_a_review_larger_than_usual_is_answered_too(context: ssl.SSLContext) -> None:
    pod = msgspec.json.decode(BODY)["request"]["object"]
    pod["metadata"]["annotations"] = {"example.com/long": "x" * (USUAL - len(BODY))}
    async with opened(context) as port:
        connection = await connect(port)
        for body in (review(pod), BODY, review(pod)):
            status, answer = await connection.ask(body)
            assert status == 200
            assert b64decode(answered(answer)["patch"]).startswith(b"[")
        assert len(review(pod)) > USUAL
        connection.close()


async def test_a_body_that_does_not_come_is_not_waited_for_and_takes_no_room(context: ssl.SSLContext) -> None:
    limits, bounds = WebhookLimits(first_request=60), IntakeLimits(together=USUAL + len(BODY), seconds=0.5)
    head = f"POST /admission/mutate HTTP/1.1\r\nhost: x\r\ncontent-length: {USUAL}\r\n\r\n".encode()
    async with opened(context, limits=limits, bounds=bounds) as port:
        for _ in range(3):
            connection = await connect(port)
            assert (await connection.ask(BODY))[0] == 200
            connection.writer.write(head + b"{")
            assert await connection.closed()


@pytest.mark.parametrize("start", [b"GET / HTTP/1.1\r\n", b"POST /admission/mutate HTTP/1.1\r\n"])
async def test_a_head_without_end_is_not_read_to_its_end(context: ssl.SSLContext, start: bytes) -> None:
    async with opened(context, limits=WebhookLimits(first_request=60)) as port:
        connection = await connect(port)
        connection.writer.write(start)
        with contextlib.suppress(ConnectionError, ssl.SSLError):
            for number in range(1000):
                connection.writer.write(b"x-%d: %s\r\n" % (number, b"x" * 1000))
                await connection.writer.drain()
        assert await connection.closed()


async def test_a_body_in_pieces_without_end_is_not_read_to_its_end(port: int) -> None:
    connection = await connect(port)
    connection.writer.write(b"POST /nowhere HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n")
    with contextlib.suppress(ConnectionError, ssl.SSLError):
        for _ in range(200):
            connection.writer.write(b"4000\r\n" + b"x" * 0x4000 + b"\r\n")
            await connection.writer.drain()
    assert await connection.closed()


async def test_of_too_many_connections_the_one_that_was_silent_longest_is_closed(port: int) -> None:
    held = [await connect(port) for _ in range(4)]
    for one in held:
        assert (await one.ask(BODY))[0] == 200
    assert (await held[0].ask(BODY))[0] == 200
    extra = await connect(port)
    assert (await extra.ask(BODY))[0] == 200
    assert await held[1].closed()
    for one in (held[0], held[2], held[3], extra):
        assert (await one.ask(BODY))[0] == 200
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


LARGE = 7 * 2**20


def announcing(length: int) -> bytes:
    """The head of a body of which no more comes."""
    return f"POST /admission/mutate HTTP/1.1\r\nhost: x\r\ncontent-length: {length}\r\n\r\n{{".encode()


async def test_the_oldest_body_that_does_not_come_goes_for_the_next_request(context: ssl.SSLContext) -> None:
    """What a flood costs in memory: tests/main/term/test_webhook.py, where the server is a process of its own."""
    async with opened(context, bounds=IntakeLimits(together=4 * LARGE, seconds=60)) as port:
        held = [await connect(port) for _ in range(4)]
        for one in held:
            one.writer.write(announcing(LARGE))
            await asyncio.sleep(0.1)
        small = await connect(port)
        assert (await small.ask(BODY))[0] == 200
        assert b" 503 " in await held[0].reader.readuntil(b"\r\n")
        assert (await small.ask(BODY))[0] == 200
        waiting = [asyncio.create_task(one.reader.read(1)) for one in held[1:]]
        await asyncio.sleep(0.3)
        assert not any(task.done() for task in waiting)
        for one in (*held, small):
            one.close()
        await asyncio.gather(*waiting, return_exceptions=True)


async def test_many_bodies_of_usual_size_that_do_not_come_keep_nobody_out(context: ssl.SSLContext) -> None:
    async with opened(context, bounds=IntakeLimits(together=8 * USUAL, seconds=60)) as port:
        held = [await connect(port) for _ in range(9)]
        for one in held:
            one.writer.write(announcing(USUAL))
        await asyncio.sleep(0.3)
        small = await connect(port)
        assert (await small.ask(BODY))[0] == 200
        assert await held[0].closed()
        for one in (*held, small):
            one.close()


async def test_many_slow_requests_of_unusual_size_keep_nobody_out(context: ssl.SSLContext) -> None:
    pod = msgspec.json.decode(BODY)["request"]["object"]
    pod["metadata"]["annotations"] = {"example.com/long": "x" * USUAL}
    async with opened(context, bounds=IntakeLimits(requests=2, seconds=60)) as port:
        held = [await connect(port) for _ in range(3)]
        for one in held:
            one.writer.write(announcing(USUAL + 1))
        await asyncio.sleep(0.3)
        late = await connect(port)
        assert (await late.ask(review(pod)))[0] == 200
        for one in (*held, late):
            one.close()


HALF = b"POST /admission/mutate HTTP/1.1\r\nhost: x\r\ncontent-length: 6000\r\n\r\n{"


async def _half_a_request(port: int, address: str) -> None:
    """One address, one request that never ends, again as soon as it is dropped."""
    while True:
        with contextlib.suppress(OSError, TimeoutError):
            opening = asyncio.open_connection("127.0.0.1", port, ssl=CLIENT, local_addr=(address, 0))
            reader, writer = await asyncio.wait_for(opening, 20)
            writer.write(HALF)
            try:
                await reader.read()
            finally:
                writer.transport.abort()
        await asyncio.sleep(2)  # of a machine with two cores the flood takes a part, not all


async def test_more_addresses_with_half_a_request_than_there_are_places_cost_the_api_server_no_review(
    context: ssl.SSLContext,
) -> None:
    async def ask(port: int) -> list[int]:
        """Reviews on connections that are kept for a few, as the API server keeps them."""
        found: list[int] = []
        for _ in range(3):
            connection = await connect(port)
            for _ in range(3):
                found.append((await connection.ask(BODY))[0])
                await asyncio.sleep(0.05)
            connection.close()
        return found

    async with opened(context, bounds=IntakeLimits(seconds=60)) as port:
        addresses = [f"127.{1 + n // 250}.7.{1 + n % 250}" for n in range(700)]
        flood = [asyncio.create_task(_half_a_request(port, address)) for address in addresses]
        await asyncio.sleep(4)
        try:
            found = await asyncio.gather(*(ask(port) for _ in range(8)), return_exceptions=True)
        finally:
            for one in flood:
                one.cancel()
            await asyncio.gather(*flood, return_exceptions=True)
    assert found == [[200] * 9] * 8
