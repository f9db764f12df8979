"""The webhook behind a real socket, in the test's own event loop."""

import asyncio
import socket
import ssl
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import pytest

from fractile.admission.app import application
from fractile.admission.intake import Bounds
from fractile.admission.server import Limits, serve
from tests.admission.world import webhook

Open = Callable[..., AbstractAsyncContextManager[int]]


@asynccontextmanager
async def _open(
    context: ssl.SSLContext, *, limits: Limits | None = None, bounds: Bounds | None = None
) -> AsyncGenerator[int, None]:
    listening = socket.create_server(("127.0.0.1", 0))
    serving = asyncio.create_task(serve(application(webhook(), bounds), listening, context, limits))
    await asyncio.sleep(0)
    try:
        yield listening.getsockname()[1]
    finally:
        serving.cancel()
        await asyncio.wait([serving], timeout=10)
        listening.close()


@pytest.fixture
def open_server() -> Open:
    """Serve with this TLS context; gives the port."""
    return _open
