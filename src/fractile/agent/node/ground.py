"""Notices that files of the agent in ``--state-dir`` are removed or changed while it runs.

Lock, library, sockets and the directories of containers are there, and each is made when the agent starts. So it starts
again, in the same process: whatever is missing is made as after a restart (``main.agent``). If the directory itself was
removed below the agent's mount of it, nothing can be made, and the agent ends: its next start mounts a new one.
"""

import asyncio
import logging
import os
from collections.abc import Callable, Iterable
from pathlib import Path

from fractile.agent.limits.journal import Journal
from fractile.errors import SetupError
from fractile.kube.pacing import Sleep

_ROUND = 1.0  # seconds

log = logging.getLogger(__name__)


class Ground:
    """``files``: must stay as they are when this is created. ``wrong``: the first wrong part of the library, if any.
    ``sockets``: must stay from when they were first seen."""

    def __init__(
        self,
        state: Path,
        journal: Journal,
        files: Iterable[Path],
        *,
        sockets: Iterable[Path] = (),
        wrong: Callable[[], Path | None] = lambda: None,
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        self._state = state
        self._journal = journal
        self._files = {path: _identity(path) for path in (journal.root, *files)}
        self._sockets = dict.fromkeys(sockets, False)  # whether it was seen
        self._wrong = wrong
        self._sleep = sleep

    async def lost(self) -> None:
        """Return when something is missing or changed. SetupError if nothing can be made in the directory."""
        while not (missing := await asyncio.to_thread(self.missing)):
            await self._sleep(_ROUND)
        log.error("files removed or changed state=%s missing=%r: the agent starts over", self._state, missing)

    def missing(self) -> str:
        """The first file that is missing or changed; "" when there is none."""
        if _is_removed(self._state):
            raise SetupError(
                f"{self._state} was removed from the node, and can hold no more files; the agent exits, and creates it "
                "again at its next start"
            )
        gone = next((path for path, identity in self._files.items() if _identity(path) != identity), self._wrong())
        gone = gone or self._closed()
        if gone is not None:
            return str(gone)
        return "limits pages of containers" if self._journal.lost else ""

    def _closed(self) -> Path | None:
        """A socket that was there and is gone."""
        for path, seen in self._sockets.items():
            there = path.is_socket()
            if seen and not there:
                return path
            self._sockets[path] = there
        return None


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _is_removed(directory: Path) -> bool:
    """Whether the directory exists only as a mount."""
    try:
        return os.stat(directory).st_nlink == 0
    except OSError:
        return False
