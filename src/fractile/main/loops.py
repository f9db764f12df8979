"""The event loop of the control plane: uvloop's, which has TLS and transports in C; asyncio's own where there is none.

With it a pod's calls cost an eighth less of the processor (docs/develop/dependencies.md). The agent keeps asyncio's:
its calls are few, and every MB counts there.
"""

import asyncio
import importlib.util
from collections.abc import Callable, Coroutine
from typing import Any


def run_in_loop(program: Coroutine[Any, Any, None]) -> None:
    """``asyncio.run``, in the loop of this machine."""
    with asyncio.Runner(loop_factory=_factory()) as runner:
        runner.run(program)


def _factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    if importlib.util.find_spec("uvloop") is None:
        return None
    import uvloop

    return uvloop.new_event_loop
