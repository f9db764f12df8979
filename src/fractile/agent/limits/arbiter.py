"""Keeps this node's arbiter running: the program that shares out the time of its cards (docs/concepts/compute.md).

    lock on <state>/arbiter.lock ─> start, with the lock inherited ─> copy its output into our log ─> ended: restart

The lock is held for the arbiter's lifetime, not for ours: another agent on the same directory waits to start one. The
arbiter is called with our pid and ends with us, even if we are killed. Failure rule: open. Without an arbiter
containers go on, with the driver's own time slicing; it is restarted with delays that grow while it keeps dying.
"""

import asyncio
import fcntl
import logging
import os
import random
import time
from pathlib import Path

from fractile.kube.backoff import Backoff
from fractile.kube.pacing import Clock, Sleep
from fractile.region import plain

_LONG = 60.0  # seconds: an end after so long is not a failed start
_GRACE = 3.0
_BUSY = 2.0  # between two attempts at a lock that is held
_LINE = 500

log = logging.getLogger(__name__)


class ArbiterKeeper:
    """``slices`` is the folder of the token directories; ``state`` holds the lock."""

    def __init__(
        self,
        program: Path,
        *,
        slices: Path,
        state: Path,
        rng: random.Random,
        clock: Clock = time.monotonic,
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        self._program = program
        self._slices = slices
        self._lock = state / "arbiter.lock"
        self._control = state / "arbiter.sock"
        self._backoff = Backoff(base=0.2, cap=30.0, rng=rng)
        self._clock = clock
        self._sleep = sleep

    async def run(self) -> None:
        """Work forever; when this is cancelled, the arbiter has ended."""
        told = False
        while True:
            try:
                lock = _take(self._lock)
            except OSError as e:
                log.warning("arbiter not started lock=%s reason=%s", self._lock, e)
                await self._sleep(self._backoff.next())
                continue
            if lock is None:
                if not told:
                    log.warning("arbiter not started reason=%r", f"another arbiter holds {self._lock}")
                told = True
                await self._sleep(_BUSY)
                continue
            told = False
            began = self._clock()
            try:
                await self._serve(lock)
            except OSError as e:
                log.warning("arbiter not started program=%s reason=%s", self._program, e)
            if self._clock() - began > _LONG:
                self._backoff.reset()
            await self._sleep(self._backoff.next())

    async def _serve(self, lock: int) -> None:
        """Run the arbiter until it ends."""
        try:
            plain.make_room_for_socket(self._control)
            process = await asyncio.create_subprocess_exec(
                self._program,
                f"--parent={os.getpid()}",
                f"--control={self._control}",
                f"--slices={self._slices}",
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.PIPE,
                pass_fds=(lock,),
            )
        finally:
            os.close(lock)
        log.info("arbiter started pid=%d program=%s", process.pid, self._program)
        try:
            await _copy(process)
            status = await process.wait()  # no timeout: it is meant to run as long as we do
            log.warning(
                "arbiter ended pid=%d status=%d; shares of compute are not enforced until it runs again",
                process.pid,
                status,
            )
        finally:
            await _stop(process)


async def _copy(process: asyncio.subprocess.Process) -> None:
    """Log its output, line by line, until it closes it, which is at its end."""
    assert process.stderr is not None
    while True:
        try:
            line = await process.stderr.readline()
        except ValueError:  # longer than any line of the arbiter
            continue
        if not line:
            return
        log.info("arbiter pid=%d said=%r", process.pid, line.decode(errors="replace").strip()[:_LINE])


async def _stop(process: asyncio.subprocess.Process) -> None:
    if process.returncode is not None:
        return
    process.terminate()
    try:
        async with asyncio.timeout(_GRACE):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()


def _take(path: Path) -> int | None:
    """The lock as a descriptor; None when another process holds it."""
    plain.make_room(path)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return None
    return descriptor
