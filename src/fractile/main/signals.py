"""The end of a program that runs until it is told to stop."""

import asyncio
import signal


async def told_to_stop() -> None:
    """Until SIGTERM or SIGINT comes; of one that came before this was awaited nothing is known."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    await stop.wait()
