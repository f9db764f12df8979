"""What may come in at once: bodies are bounded one by one and all together, and so is the time they take to arrive.

Anybody in the cluster's network can send bytes here, so what is not yet known to be the API server gets no more than
its share. Who sends too much is told at once (503 with Retry-After, or 413), before the body is read: the API server
then does what the configuration says (failurePolicy). Failure rule: closed for bytes, open for pods.
"""

import asyncio

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response

from fractile.errors import WireError


class Bounds(msgspec.Struct, frozen=True):
    """Bytes and seconds. The API server takes objects of 3 MiB at most, and sends the old one beside the new one."""

    body: int = 7 * 2**20
    together: int = 64 * 2**20  # of all bodies that are being read
    requests: int = 128  # at the same time
    seconds: float = 5.0  # for a body to arrive; the API server waits no longer


class Intake:
    """Counts what is being read."""

    def __init__(self, bounds: Bounds | None = None) -> None:
        self._bounds = bounds or Bounds()
        self._requests = 0
        self._bytes = 0

    @property
    def busy(self) -> tuple[int, int]:
        """Requests and bytes that are being read now."""
        return self._requests, self._bytes

    async def read(self, request: Request) -> bytes | Response:
        """The body, or what to answer instead of reading on."""
        bounds = self._bounds
        announced = _announced(request)
        if announced > bounds.body:
            return _too_large(bounds.body)
        if self._requests >= bounds.requests or self._bytes + announced > bounds.together:
            return _busy()
        self._requests += 1
        reserved = _Reserved(self, announced)
        try:
            async with asyncio.timeout(bounds.seconds):
                return await self._collect(request, reserved)
        except TimeoutError:
            return PlainTextResponse(f"the body did not arrive within {bounds.seconds:g} s", 408)
        except ClientDisconnect:
            return PlainTextResponse("the client left", 400)
        finally:
            self._requests -= 1
            reserved.release()

    async def _collect(self, request: Request, reserved: "_Reserved") -> bytes | Response:
        body = bytearray()
        async for chunk in request.stream():
            body += chunk
            if len(body) > self._bounds.body:
                return _too_large(self._bounds.body)
            if not reserved.grow(len(body)):
                return _busy()
        return bytes(body)

    def take(self, more: int) -> bool:
        """Reserve so many bytes more; False when that would be too many."""
        if self._bytes + more > self._bounds.together:
            return False
        self._bytes += more
        return True

    def give(self, count: int) -> None:
        self._bytes -= count


class _Reserved:
    """The bytes that one request may hold: those it announced, and more when it sends more."""

    def __init__(self, intake: Intake, announced: int) -> None:
        self._intake = intake
        self._held = announced if intake.take(announced) else 0

    def grow(self, size: int) -> bool:
        more = size - self._held
        if more > 0:
            if not self._intake.take(more):
                return False
            self._held = size
        return True

    def release(self) -> None:
        self._intake.give(self._held)
        self._held = 0


def _announced(request: Request) -> int:
    text = request.headers.get("content-length", "0")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 20 else 0


def _too_large(most: int) -> Response:
    return PlainTextResponse(f"the body is larger than {most} bytes", 413, {"connection": "close"})


def _busy() -> Response:
    return PlainTextResponse("too many requests at once; try again", 503, {"retry-after": "1", "connection": "close"})


def bad(error: WireError) -> Response:
    """An answer to what is no AdmissionReview."""
    return PlainTextResponse(str(error)[:500], 400)
