"""Compares keys again and again until the API shows what it should: the loop of the class controllers.

Level-triggered: a key means only that something about it may have changed. Keys are gathered for a moment, each is
planned once, and the differences are written. So the same object is written at most once in ``gather`` seconds, all
objects together at the pace of the ``Pacer``, and planning takes at most a twentieth of the event loop's time, however
many keys there are, because binds come first. Failure rule: a failed write is retried with growing delays.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Hashable, Iterable, Sequence
from typing import Generic, NoReturn, TypeVar

import msgspec

from fractile.errors import ApiError, FractileError
from fractile.kube.backoff import Backoff
from fractile.kube.pacing import Clock, Pacer, Sleep
from fractile.reconcile.faults import Faults

K = TypeVar("K", bound=Hashable)

_SHARE = 20  # seconds that pass for each second of planning
_BREATH = 0.002  # seconds of planning before other tasks run

log = logging.getLogger(__name__)


class Write(msgspec.Struct, frozen=True):
    """One call of the API. ``what`` is for the log."""

    what: str
    send: Callable[[], Awaitable[None]]


class Rounds(Generic[K]):
    """``plan`` compares wanted with seen and returns the writes to make; it does no I/O."""

    def __init__(
        self,
        plan: Callable[[K], Sequence[Write]],
        *,
        everything: Callable[[], Iterable[K]] = lambda: (),
        pacer: Pacer,
        backoff: Backoff,
        gather: float = 1.0,
        sleep: Sleep = asyncio.sleep,
        clock: Clock = time.monotonic,
        faults: Faults | None = None,
    ) -> None:
        self._faults = faults or Faults()
        self._plan = plan
        self._pacer = pacer
        self._backoff = backoff
        self._gather = gather
        self._sleep = sleep
        self._clock = clock
        self._everything = everything
        self._all = False
        self._keys: dict[K, None] = {}
        self._work = asyncio.Event()

    def add(self, *keys: K) -> None:
        self._keys.update(dict.fromkeys(keys))
        if keys:
            self._work.set()

    def add_everything(self) -> None:
        """Add every key that ``everything`` returns when the next round begins."""
        self._all = True
        self._work.set()

    async def run(self) -> NoReturn:
        """Work forever."""
        while True:
            await self._work.wait()  # no timeout: there is no work until a key is added
            await self._sleep(self._gather)
            if await self.once():
                self._backoff.reset()
            else:
                await self._sleep(self._backoff.next())

    async def once(self) -> bool:
        """Handle every current key; returns whether all writes succeeded."""
        self._work.clear()
        keys, self._keys = self._keys, {}
        if self._all:
            self._all = False
            keys.update(dict.fromkeys(self._everything()))
        well, spent = True, 0.0
        for key in keys:
            started = self._clock()
            writes: Sequence[Write] = ()
            with self._faults.apart("upkeep", "", str(key)):
                writes = self._plan(key)
            spent += self._clock() - started
            for write in writes:
                if not await self._write(write):
                    well = False
                    self.add(key)
            if spent > _BREATH:
                await self._sleep(spent * _SHARE)
                spent = 0.0
        return well

    async def _write(self, write: Write) -> bool:
        """False when the write is to be retried."""
        await self._pacer.wait()
        try:
            await write.send()
        except FractileError as e:
            log.warning("not written what=%r reason=%s", write.what, e)
            # The object is gone, replaced, or rejects the write: the watch will show what to do next.
            return isinstance(e, ApiError) and e.code in (404, 409, 422)
        log.info("written what=%r", write.what)
        return True
