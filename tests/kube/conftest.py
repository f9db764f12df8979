"""A fake API server and a client for it whose waits are recorded, not slept."""

import random
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field

import pytest

from fractile.kube.client import KubeClient
from tests.fakes.apiserver import FakeApiServer


@dataclass
class Sleeps:
    """Stands in for asyncio.sleep: returns at once and remembers what was asked."""

    asked: list[float] = field(default_factory=list[float])

    async def __call__(self, seconds: float) -> None:
        self.asked.append(seconds)


@pytest.fixture
def sleeps() -> Sleeps:
    return Sleeps()


@pytest.fixture
async def server() -> AsyncGenerator[FakeApiServer, None]:
    async with FakeApiServer() as server:
        yield server


@pytest.fixture
async def client(server: FakeApiServer, sleeps: Sleeps) -> AsyncGenerator[KubeClient, None]:
    async with KubeClient(server.credentials(), timeout=5, rng=random.Random(1), sleep=sleeps) as client:
        yield client
