"""The end of a program that runs until a signal stops it."""

import asyncio
import signal


async def told_to_stop() -> None:
    """Wait for SIGTERM or SIGINT; signals from before the call are not handled."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    await stop.wait()
