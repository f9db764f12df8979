"""How a new leader learns what there is, before it is ready.

    cards, labels, quotas ──> quiet ──> pods ──> moves that are under way ──> audit ──> ready

Cards come first, so that a hold that its card cannot bear is seen at once. ``quiet``: the leader before may have had
Bindings under way when its lead ended. The API server has admitted them, and may store them for as long as it was told
it may take; pods that were listed earlier than that would leave them out, and their cards would be given away again.
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
    is told that the ledger may be used: it wakes those who wait, since what was freed before, nobody here has seen.
    ``collecting`` is how garbage is collected until then.
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
        if wrong := ledger.audit():  # a bug; to stop would help nobody
            log.error("audit failed cards=%d first=%s", len(wrong), wrong[0])
        rebuilt()
        log.info("ready pods=%d ledger=%s seconds=%.2f", len(pods), ledger.statistics(), clock() - started)
