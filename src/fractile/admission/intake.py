"""Bound incoming request bodies: each one's size, their total size, and the time that they take to arrive.

Any client in the cluster's network can send bytes here, so a peer that is not yet known to be the API server gets no
more than its share. When the total is exceeded, the oldest unfinished body of the peer that holds most is dropped for
the next one, so a peer that announces much and does not send it blocks no other. Failure rule: closed for bytes, open
for pods.
"""

import asyncio
from collections.abc import Callable

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response

from fractile.door.places import ConnectionPlace, peer_of
from fractile.door.room import Contested, RoomClaim
from fractile.errors import WireError


class IntakeLimits(msgspec.Struct, frozen=True):
    """Bytes and seconds. The API server accepts objects of up to 3 MiB, and sends the old one along with the new
    one."""

    body: int = 7 * 2**20
    together: int = 64 * 2**20  # of all bodies that are being read
    requests: int = 128  # at the same time
    seconds: float = 5.0  # for a body to arrive; the API server does not wait longer


class Intake:
    """Counts the requests and bytes that are being read."""

    def __init__(self, bounds: IntakeLimits | None = None) -> None:
        self._bounds = bounds or IntakeLimits()
        self._requests = Contested(self._bounds.requests)
        self._bytes = Contested(self._bounds.together)

    @property
    def busy(self) -> tuple[int, int]:
        """Requests and bytes being read now."""
        return self._requests.held, self._bytes.held

    def hold(self, size: int, place: ConnectionPlace) -> Callable[[], None] | None:
        """Reserve room for a body that is read elsewhere; None if there is none. ``place`` is dropped when others need
        it."""
        claim = self._bytes.claim(place.peer, size, place.drop)
        return None if claim is None else lambda: self._bytes.give(claim)

    async def read(self, request: Request) -> bytes | Response:
        """Read the body, or return the error response if it cannot be read to its end."""
        announced = _announced(request)
        if announced > self._bounds.body:
            return _too_large(self._bounds.body)
        given_up = None
        try:
            async with asyncio.timeout(self._bounds.seconds) as limit:
                given_up = _GivenUp(limit)
                return await self._room(request, announced, given_up.say)
        except TimeoutError:
            if given_up is not None and given_up.said:
                return _busy()
            return PlainTextResponse(f"the body did not arrive within {self._bounds.seconds:g} s", 408)
        except ClientDisconnect:
            return PlainTextResponse("the client closed the connection", 400)

    async def _room(self, request: Request, announced: int, drop: Callable[[], None]) -> bytes | Response:
        peer = peer_of(request.scope.get("client"))
        turn = self._requests.claim(peer, 1, drop)
        claim = self._bytes.claim(peer, announced, drop)
        assert turn is not None
        if claim is None:
            self._requests.give(turn)
            return _busy()
        try:
            return await self._collect(request, claim)
        finally:
            self._requests.give(turn)
            self._bytes.give(claim)

    async def _collect(self, request: Request, claim: RoomClaim) -> bytes | Response:
        body = bytearray()
        async for chunk in request.stream():
            body += chunk
            if len(body) > self._bounds.body:
                return _too_large(self._bounds.body)
            if not self._bytes.grow(claim, len(body)):
                return _busy()
        return bytes(body)


class _GivenUp:
    """Ends the reading of a body before its timeout."""

    def __init__(self, limit: asyncio.Timeout) -> None:
        self._limit = limit
        self.said = False

    def say(self) -> None:
        self.said = True
        if not self._limit.expired():
            self._limit.reschedule(asyncio.get_running_loop().time())


def _announced(request: Request) -> int:
    text = request.headers.get("content-length", "0")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 20 else 0


def _too_large(most: int) -> Response:
    return PlainTextResponse(f"the body is larger than {most} bytes", 413, {"connection": "close"})


def _busy() -> Response:
    return PlainTextResponse("too many requests at once; try again", 503, {"retry-after": "1", "connection": "close"})


def bad(error: WireError) -> Response:
    """The response to a body that is not an AdmissionReview."""
    return PlainTextResponse(str(error)[:500], 400)
