"""What tests of the agent share."""

import os
from pathlib import Path

import pytest

from fractile.lab.machine import native as native_parts
from fractile.lab.progress import Progress


@pytest.fixture(scope="session")
def native() -> Path:
    """The library, the arbiter and simgpu, built from the sources that are here; skipped where they cannot be."""
    said: list[str] = []
    folder = native_parts.ensure(os.environ, Progress(said.append))
    if not folder:
        pytest.skip("".join(said).strip())
    return Path(folder)
