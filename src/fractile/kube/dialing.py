"""Connects to a server by name: if it has several addresses, a silent one costs only a quarter of a second (RFC 8305).

asyncio's own ``create_connection`` does that too, but uvloop's does not.
"""

import asyncio
import socket
import ssl
from asyncio.staggered import staggered_race
from functools import partial

from fractile.kube.connection import Connection

_NEXT_ADDRESS = 0.25  # seconds after which the next address is tried as well


async def connected(host: str, port: int, *, tls: ssl.SSLContext | None, server_name: str | None) -> Connection:
    """A connection, TLS included. Raises the first address's OSError if all fail; the caller limits the time."""
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
