"""A control plane that places pods, with quick ticks."""

from collections.abc import AsyncGenerator

import pytest

from fractile.globalplacement import placing as module
from tests.globalplacement.placing_world import World, world


@pytest.fixture
async def w(monkeypatch: pytest.MonkeyPatch) -> AsyncGenerator[World, None]:
    monkeypatch.setattr(module, "_TICK", 0.01)
    async with world() as made:
        yield made
