"""Reads from the node's arbiter which containers held the cards and which waited.

Failure rule: open. Without an arbiter, or with an invalid answer, these figures are missing.
"""

import asyncio
import logging
import socket
from pathlib import Path

from fractile.errors import WireError
from fractile.wire.fractile import arbiter_status
from fractile.wire.fractile.arbiter_status import ArbiterStatus

_CALL = 1.0  # seconds
_MOST = 4 * 2**20  # bytes; a container on a card takes 300

log = logging.getLogger(__name__)


class ArbiterClient:
    """``socket`` is the arbiter's control socket: it writes its state to every client that connects, and closes."""

    def __init__(self, socket: Path) -> None:
        self._socket = socket
        self._problem = ""

    async def status(self) -> ArbiterStatus | None:
        """The arbiter's present state; None when there is no arbiter."""
        try:
            async with asyncio.timeout(_CALL):
                status = arbiter_status.decode(await self._read())
        except (OSError, TimeoutError, WireError) as e:
            self._tell(str(e) or type(e).__name__)
            return None
        self._tell("")
        return status

    async def _read(self) -> bytes:
        """Runs once a second, so it avoids the objects of a stream."""
        loop = asyncio.get_running_loop()
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as arbiter:
            await loop.sock_connect(arbiter, str(self._socket))
            parts: list[bytes] = []
            size = 0
            while part := await loop.sock_recv(arbiter, 65536):
                parts.append(part)
                size += len(part)
                if size > _MOST:
                    raise WireError("the arbiter's answer does not end")
            return b"".join(parts)

    def _tell(self, problem: str) -> None:
        """Log each change once."""
        if problem == self._problem:
            return
        self._problem = problem
        if problem:
            log.info("arbiter does not answer reason=%r", problem)
        else:
            log.info("arbiter answers socket=%s", self._socket)
