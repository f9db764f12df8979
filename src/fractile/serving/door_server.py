"""uvicorn behind our own door (``fractile.door``), since uvicorn alone limits neither connections nor their time."""

import asyncio
import socket
from collections.abc import Callable
from typing import cast

import uvicorn

from fractile.door.door import Door, Guest, HandshakeTiming
from fractile.door.places import PlaceLimits


class Connections:
    """The factory of a connection's protocol: ``make`` is called with uvicorn's own arguments and ``guest``."""

    def __init__(self, make: Callable[..., asyncio.Protocol]) -> None:
        self.make = make


class DoorServer(uvicorn.Server):
    """Serves sockets that listen already."""

    def __init__(
        self,
        config: uvicorn.Config,
        connections: Connections,
        *,
        rules: PlaceLimits | None = None,
        timing: HandshakeTiming | None = None,
    ) -> None:
        super().__init__(config)
        self._connections = connections
        self._rules = rules
        self._timing = timing

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await self.lifespan.startup()
        doors = [
            Door(one, self._connection, context=self.config.ssl, rules=self._rules, timing=self._timing)
            for one in sockets or ()
        ]
        for door in doors:
            door.open()
        self.servers = cast("list[asyncio.Server]", doors)  # uvicorn closes them, and waits for that
        self.started = True

    def _connection(self, guest: Guest) -> asyncio.Protocol:
        return self._connections.make(
            config=self.config, server_state=self.server_state, app_state=self.lifespan.state, guest=guest
        )
