"""Reaching a server by name: where it has several addresses, a silent one costs a quarter of a second (RFC 8305).

asyncio's own ``create_connection`` does that too, but not uvloop's.
"""

import asyncio
import socket
import ssl
from asyncio.staggered import staggered_race
from functools import partial

from fractile.kube.connection import Connection

_NEXT_ADDRESS = 0.25  # seconds after which the next address is tried as well


async def connected(host: str, port: int, *, tls: ssl.SSLContext | None, server_name: str | None) -> Connection:
    """A connection, TLS included. OSError, of the first address, when there is none; the caller bounds the time."""
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    reached, _, errors = await staggered_race([partial(_reach, *one) for one in found], _NEXT_ADDRESS)
    if reached is None:
        raise next((e for e in errors if e is not None), OSError(f"{host} has no address"))
    try:
        _, connection = await loop.create_connection(Connection, sock=reached, ssl=tls, server_hostname=server_name)
    except BaseException:
        reached.close()
        raise
    return connection


async def _reach(family: int, kind: int, protocol: int, _: str, address: tuple[str, int]) -> socket.socket:
    opened = socket.socket(family, kind, protocol)
    try:
        opened.setblocking(False)
        await asyncio.get_running_loop().sock_connect(opened, address)
    except BaseException:
        opened.close()
        raise
    return opened
