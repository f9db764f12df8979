"""How a new leader learns the state of the cluster before it is ready.

    cards, labels, quotas ──> quiet ──> pods ──> moves that are under way ──> audit ──> ready

Cards come first, so that a hold that its card cannot take is detected immediately. ``quiet``: the former leader may
have had Bindings under way when its term ended. The API server has admitted them and may store them until their
timeout; a list of pods from before that would lack them, and their cards would be given away again.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AbstractContextManager

from fractile.kube.pacing import Clock
from fractile.kube.reflector import Reflector
from fractile.ledger.ledger import Ledger
from fractile.main.collector import seldom
from fractile.wire.kubernetes.queued import QueuedPod

log = logging.getLogger(__name__)


async def rebuild(
    first: Sequence[asyncio.Event],
    pods: Reflector[QueuedPod],
    ledger: Ledger,
    *,
    quiet: float,
    begin: Callable[[], None],
    after: Sequence[Callable[[], Coroutine[object, object, object]]],
    rebuilt: Callable[[], None],
    clock: Clock = time.monotonic,
    collecting: Callable[[], AbstractContextManager[None]] = seldom,
) -> None:
    """Ends only by cancellation. ``begin`` is called when all pods are known, ``after`` runs from then on; ``rebuilt``
    is called when the ledger may be used, and must wake waiting pods, since earlier releases were not seen here.
    ``collecting`` controls garbage collection until then.
    """
    started = clock()
    async with asyncio.TaskGroup() as tasks:
        with collecting():
            for synced in first:
                await synced.wait()
            await asyncio.sleep(max(0.0, started + quiet - clock()))
            tasks.create_task(pods.run())
            await pods.synced.wait()
        begin()
        for work in after:
            tasks.create_task(work())
        if wrong := ledger.audit():  # a bug; stopping would not help
            log.error("audit failed cards=%d first=%s", len(wrong), wrong[0])
        rebuilt()
        log.info("ready pods=%d ledger=%s seconds=%.2f", len(pods), ledger.statistics(), clock() - started)
