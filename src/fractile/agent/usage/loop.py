"""Once a second: what do the cards, their containers and their processes use, and is any of it outside the ledger?

    1. token directories ─> which containers, their limits       limits/slices
    2. regions ─> what they count                                look, region/counters
    3. NVML ─> what the driver sees, and whose it is             nvml/meter, node/procfs, audit/unaccounted
    4. regions again, if there are findings: an allocation made meanwhile is no finding
    5. limits pages <─ what a container holds beyond its ledger  limits/beyond
    6. arbiter ─> which containers held the card or waited       arbiter_client
    7. one picture of all that, when a page needs it             usage_report

Steps 1 to 4 block, and NVML may do so for long when a card is lost. They run in a thread that the program does not
wait for at its end. Failure rule: a source that does not answer is missing from the picture; the others are there.
"""

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Container, Iterable
from typing import TypeVar

from fractile.agent.audit.audit import OutsideAudit
from fractile.agent.limits.beyond import BeyondWriter
from fractile.agent.limits.leases import Leases
from fractile.agent.limits.slices import Granted, running
from fractile.agent.node.catalog import CurrentCatalog
from fractile.agent.node.pods import NodePods
from fractile.agent.usage.arbiter_client import ArbiterClient
from fractile.agent.usage.look import Eye, Look
from fractile.agent.usage.tally import UsageTally
from fractile.agent.usage.usage_report import picture
from fractile.kube.pacing import Clock, Sleep
from fractile.region import shared
from fractile.region.counters import Counters
from fractile.region.usage import Unreadable
from fractile.wire.output.node_usage import NodeUsage

T = TypeVar("T")

_ROUND = 1.0  # seconds
_AGAIN = 0.25  # to a second poll of what seems to be outside the ledger
_PATIENCE = 5.0  # for one poll
_LEASED = Unreadable(shared.LEASED)

log = logging.getLogger(__name__)


class UsageLoop:
    """``run`` polls every second; ``present`` is the picture of the last poll."""

    def __init__(
        self,
        eye: Eye,
        *,
        current_catalog: CurrentCatalog,
        pods: NodePods,
        audit: OutsideAudit,
        beyond: BeyondWriter,
        arbiter: ArbiterClient,
        leases: Leases | None = None,
        driven: Callable[[Iterable[str]], None] | None = None,
        departed: Callable[[], tuple[Granted, ...]] = tuple,
        damaged: Callable[[], Container[str]] = frozenset,
        clock: Clock = time.monotonic,
        now: Clock = time.time,
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        self._eye = eye
        self._current_catalog = current_catalog
        self._pods = pods
        self._arbiter = arbiter
        self._beyond = beyond
        self._leases = leases
        self._driven = driven
        self._departed = departed
        self._damaged = damaged
        self._clock = clock
        self._now = now
        self._sleep = sleep
        self._tally = UsageTally()
        self._looking: asyncio.Future[Look] | None = None
        self.audit = audit
        self.rounds = 0
        self.late = 0  # polls that took too long
        self.spent = 0.0  # seconds of the last round
        self._seen: tuple[Look, float, bool] | None = None  # the last poll, its time, whether the arbiter answered
        self._picture: NodeUsage | None = None
        self._began = now()

    @property
    def present(self) -> NodeUsage:
        """The picture, built at most once for each poll, when it is read."""
        if self._seen is None:
            return NodeUsage(node=self._pods.node, time=self._began)
        if self._picture is None:
            look, at, arbiter = self._seen
            self._picture = picture(
                look,
                running(look.granted, self._pods),
                node=self._pods.node,
                time=at,
                cards=self._current_catalog.catalog.cards,
                tally=self._tally,
                outside=self.audit.outside,
                arbiter=arbiter,
                departed=self._departed(),
                damaged=self._damaged(),
            )
        return self._picture

    async def run(self) -> None:
        """Work forever."""
        while True:
            started = self._clock()
            await self.round()
            self.spent = self._clock() - started
            await self._sleep(max(0.05, (_AGAIN if self.audit.unconfirmed else _ROUND) - self.spent))

    async def round(self) -> None:
        """One poll; if it takes too long, the last picture stays and the poll continues."""
        look = await self._look()
        if look is None:
            return
        status = await self._arbiter.status()
        for one in look.granted:
            last = look.ledgers[one.token][-1]
            if isinstance(last, Counters):
                self._tally.counted(one.token, one.limits.cards, last)
        if self._leases is not None:
            self._leases.seen({g.token: g.limits for g in look.granted if look.ledgers[g.token][-1] == _LEASED})
        if status is not None:
            self._tally.arbitrated(status)
        self._tally.keep(one.token for one in look.granted)
        if self._driven is not None:
            self._driven(token for token, _ in look.attributed.by_slice)
        if look.readings is not None:
            self.audit.observe(look.attributed.findings)
            await self._beyond.write(look.granted, self.audit.beyond)
        self._seen, self._picture = (look, self._now(), status is not None), None
        self.rounds += 1

    async def _look(self) -> Look | None:
        if self._looking is None:
            self._looking = in_thread(self._eye.look)
        done, _ = await asyncio.wait({self._looking}, timeout=_PATIENCE)
        if not done:
            self.late += 1
            log.warning(
                "usage not read yet reason=%r", "reading files and NVML takes long; check whether a card is lost"
            )
            return None
        looking, self._looking = self._looking, None
        try:
            return looking.result()
        except Exception:  # the next poll may succeed; the node's devices do not depend on it
            log.exception("usage not read")
            return None


def in_thread(function: Callable[[], T]) -> asyncio.Future[T]:
    """The function's result, from a thread that the program does not wait for when it ends."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def put(result: T | None, error: BaseException | None) -> None:
        if future.done():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)  # pyright: ignore[reportArgumentType]  # None only with an error

    def work() -> None:
        result: T | None = None
        error: BaseException | None = None
        try:
            result = function()
        except BaseException as e:
            error = e
        if not loop.is_closed():
            loop.call_soon_threadsafe(put, result, error)

    threading.Thread(target=work, daemon=True, name="look").start()
    return future
