"""What a flood of connections leaves behind at the door: nothing."""

import asyncio
import gc
import socket
import ssl

import trustme

from fractile.door.door import Door, Guest, HandshakeTiming
from fractile.door.places import PlaceLimits

_FLOOD = 600


def _context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    trustme.CA().issue_cert("localhost").configure_cert(context)  # pyright: ignore[reportUnknownMemberType]  # half typed
    return context


async def _flood(address: tuple[str, int]) -> list[socket.socket]:
    """Connections that say a word each and then nothing."""
    made: list[socket.socket] = []
    for _ in range(_FLOOD):
        one = socket.create_connection(address)
        one.sendall(b"\x16")
        made.append(one)
        await asyncio.sleep(0)
    await asyncio.sleep(0.2)
    return made


async def test_a_connection_that_was_dropped_before_its_turn_is_not_kept() -> None:
    """More come than handshakes may begin: without an end to what waits, a flood takes memory as long as it lasts."""
    with socket.create_server(("127.0.0.1", 0), backlog=_FLOOD) as listening:
        door = Door(
            listening,
            lambda guest: asyncio.Protocol(),
            context=_context(),
            rules=PlaceLimits(strangers=16, known=4, each=16),
            timing=HandshakeTiming(pace=1.0, burst=1.0),
        )
        door.open()
        made = await _flood(listening.getsockname())
        try:
            gc.collect()
            guests = [one for one in gc.get_objects() if isinstance(one, Guest)]
            assert door.places.strangers <= 16
            assert len(guests) <= 32
        finally:
            door.close()
            for one in made:
                one.close()
            await asyncio.sleep(0.05)
