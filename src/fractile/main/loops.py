"""The event loop of the control plane: uvloop, which has TLS and transports in C, or asyncio's if it is not installed.

With uvloop a pod's calls take an eighth less processor time (docs/develop/dependencies.md). The agent keeps asyncio's:
its calls are few, and every MB counts there.
"""

import asyncio
import importlib.util
from collections.abc import Callable, Coroutine
from typing import Any


def run_in_loop(program: Coroutine[Any, Any, None]) -> None:
    """``asyncio.run`` with the best loop that is installed."""
    with asyncio.Runner(loop_factory=_factory()) as runner:
        runner.run(program)


def _factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    if importlib.util.find_spec("uvloop") is None:
        return None
    import uvloop

    return uvloop.new_event_loop
