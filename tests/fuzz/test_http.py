"""The agent's own HTTP server, given anything: each connection gets one answer of HTTP, and the next one is served."""

import asyncio

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fractile.agent.usage.http import Address, HttpServer, PageRequest, Response
from tests.fuzz.test_decoders import EXAMPLES, LONGER

GOOD = b"GET /page HTTP/1.1\r\nHost: n1\r\nAccept: */*\r\n\r\n"
SEEDS = (
    GOOD,
    b"HEAD /page?x=1 HTTP/1.0\r\n\r\n",
    b"GET /page HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
    b"POST /page HTTP/1.1\r\nContent-Length: 5\r\n\r\nhello",
    b"GET /page HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + GOOD,
)
STATUSES = {b"200", b"400", b"404", b"405", b"408", b"431"}
pieces = st.binary(max_size=8) | st.sampled_from(
    [b"\r\n", b"\r\n\r\n", b" ", b":", b"\x00", b"\xff", b"x" * 9000, b"\n "]
)


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    data = draw(st.sampled_from(SEEDS))
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(data)))
        data = data[:at] + draw(pieces) + data[at + draw(st.integers(0, 10)) :]
    return data


async def sent(port: int, data: bytes) -> bytes:
    async with asyncio.timeout(20):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            writer.write(data)
            writer.write_eof()
            return await reader.read()
        except ConnectionError:  # it answered before it had read all of this
            return b""
        finally:
            writer.transport.abort()


async def conversation(heads: list[bytes]) -> None:
    async def page(_: PageRequest) -> Response:
        return Response(b"ok\n")

    server = HttpServer(Address("127.0.0.1", 0), {"/page": page})
    async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
        running = tasks.create_task(server.run())
        await server.listening.wait()
        for head in heads:
            answer = await sent(server.port, head)
            if answer:
                assert answer.startswith(b"HTTP/1.1 ")
                assert answer[9:12] in STATUSES, answer[:40]
                assert answer.count(b"HTTP/1.1 ") == 1, "one request a connection, whatever follows it"
            last = await sent(server.port, GOOD)
            assert last.startswith(b"HTTP/1.1 200 OK\r\n")
            assert last.endswith(b"ok\n")
        running.cancel()


@settings(
    max_examples=max(10, EXAMPLES // 4),
    derandomize=not LONGER,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
@given(st.lists(damaged() | st.binary(max_size=100), min_size=1, max_size=6))
def test_the_agents_server_survives_whatever_is_sent_to_it(heads: list[bytes]) -> None:
    asyncio.run(conversation(heads))
