"""Virtual time for several machines in one process.

Each machine has an event loop of its own, with real tasks of asyncio on it. One kernel runs what is due, in the order
of time and then of arrival, so that a seed gives one history. A paused machine runs nothing; its clock goes on, as
under SIGSTOP, or stands still, as under a hypervisor that suspends it.
"""

import asyncio
import contextvars
import heapq
from collections import deque
from collections.abc import Callable, Coroutine
from itertools import count
from typing import Any

_NEVER = float("inf")
_TICK = 1e-6  # seconds; whatever waits for the least time finds some of it gone


class Kernel:
    """What is to happen, and when. ``now`` is in seconds."""

    def __init__(self) -> None:
        self.now = 0.0
        self.machines: list[Machine] = []
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()

    def at(self, when: float, act: Callable[[], None]) -> None:
        heapq.heappush(self._heap, (max(when, self.now), next(self._order), act))

    def after(self, seconds: float, act: Callable[[], None]) -> None:
        self.at(self.now + seconds, act)

    def run(self, until: float, *, stop: Callable[[], bool] = lambda: False) -> None:
        """Everything that is due up to then, unless it is to stop before."""
        self._drain()
        while not stop():
            own = self._heap[0][0] if self._heap else _NEVER
            first, theirs = None, _NEVER
            for machine in self.machines:
                due = machine.due()
                if due < theirs:
                    first, theirs = machine, due
            if min(own, theirs) > until:
                break
            if first is None or own <= theirs:
                self.now = max(self.now, own)
                heapq.heappop(self._heap)[2]()
            else:
                self.now = max(self.now, theirs)
                first.ring()
            self._drain()
        self.now = max(self.now, until) if not stop() else self.now

    def _drain(self) -> None:
        busy = True
        while busy:
            busy = False
            for machine in self.machines:
                if machine.ready and not machine.paused:
                    machine.work()
                    busy = True


class Machine(asyncio.AbstractEventLoop):
    """An event loop whose clock is the kernel's, less the time for which it stood still."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self.ready: deque[asyncio.Handle] = deque()
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._order = count()
        self._stood = 0.0  # seconds that the clock lost
        self._stands_since: float | None = None
        self.paused = False
        self.tasks: set[asyncio.Task[Any]] = set()
        self.failures: list[BaseException] = []
        kernel.machines.append(self)

    # ── the kernel's side ────────────────────────────────────────────────────────────────────────────────────────

    def due(self) -> float:
        """When the next timer rings, in the kernel's time."""
        while self._timers and self._timers[0][2].cancelled():
            heapq.heappop(self._timers)
        if not self._timers or self._stands_since is not None:
            return _NEVER
        return max(self._kernel.now, self._timers[0][0] + self._stood)

    def ring(self) -> None:
        self.ready.append(heapq.heappop(self._timers)[2])

    def work(self) -> None:
        """Run what is ready."""
        asyncio._set_running_loop(self)
        try:
            while self.ready:
                handle = self.ready.popleft()
                if not handle.cancelled():
                    handle._run()
        finally:
            asyncio._set_running_loop(None)

    def pause(self, *, clock: bool) -> None:
        """``clock``: whether it goes on meanwhile."""
        self.paused = True
        if not clock and self._stands_since is None:
            self._stands_since = self._kernel.now

    def resume(self) -> None:
        self.paused = False
        if self._stands_since is not None:
            self._stood += self._kernel.now - self._stands_since
            self._stands_since = None

    def end(self) -> None:
        """Cancel all that runs here, at once; nothing of it may wait for anything then."""
        self.resume()
        for _ in range(50):
            for task in list(self.tasks):
                task.cancel()
            if not self.ready:
                break
            self.work()
        self._timers.clear()
        self._kernel.machines.remove(self)

    # ── asyncio's side ───────────────────────────────────────────────────────────────────────────────────────────

    def time(self) -> float:
        now = self._kernel.now if self._stands_since is None else self._stands_since
        return now - self._stood

    def call_soon(self, callback: Any, *args: Any, context: contextvars.Context | None = None) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        self.ready.append(handle)
        return handle

    def call_later(
        self, delay: float, callback: Any, *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(
        self, when: float, callback: Any, *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        when = max(when, self.time() + _TICK)
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        heapq.heappush(self._timers, (when, next(self._order), handle))
        return handle

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(self, coro: Coroutine[Any, Any, Any], **options: Any) -> asyncio.Task[Any]:  # type: ignore[override]
        task: asyncio.Task[Any] = asyncio.Task(coro, loop=self, **options)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        return task

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return True

    def is_closed(self) -> bool:
        return False

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if isinstance(error, BaseException):
            self.failures.append(error)

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """``due`` skips it."""
