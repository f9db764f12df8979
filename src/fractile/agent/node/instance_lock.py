"""One agent at a time serves a node: the one that holds ``<state>/agent.lock``.

During an upgrade the new agent may start while the old one still runs. Both would register with kubelet, where the end
of the old one's stream disconnects the new one, and each would remove what the other is writing. So the second one
waits, logs that, and takes over as soon as the first has ended: the kernel frees the lock, even after kill -9.
Failure rule: closed. Without the lock nothing is registered and nothing is written.
"""

import asyncio
import fcntl
import logging
import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

from fractile.errors import SetupError
from fractile.kube.pacing import Sleep
from fractile.region import plain

LOCK = "agent.lock"  # in the state directory

_LOOK = 0.1  # seconds

log = logging.getLogger(__name__)


@asynccontextmanager
async def alone(state: Path, *, sleep: Sleep = asyncio.sleep) -> AsyncGenerator[None]:
    """Enter when no other agent works on ``state``, however long that takes."""
    path = state / LOCK
    descriptor = _opened(path)
    try:
        told = False
        while not _taken(descriptor):
            if not told:
                log.warning("another agent works on this node: waiting until it ends lock=%s", path)
            told = True
            await sleep(_LOOK)
        yield
    finally:
        os.close(descriptor)


def _opened(path: Path) -> int:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        plain.make_room(path)
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as e:
        raise SetupError(f"{path} cannot be opened ({e.strerror}); see --state-dir") from e


def _taken(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
