"""One replica of the control plane: the product's own objects, wired as ``main.control_plane`` wires them.

``Parts`` names the classes, so that a test can put a broken one in the place of one and see the judge find it.
"""

import asyncio
import random
from collections.abc import Callable
from contextlib import nullcontext
from datetime import UTC, datetime

import msgspec

from fractile.errors import FractileError
from fractile.extender.bind import Binder
from fractile.kube import paths
from fractile.kube.backoff import Backoff
from fractile.kube.client import KubeClient
from fractile.kube.credentials import Credentials
from fractile.kube.lease import LeaderElector, LeaseTiming
from fractile.kube.reflector import Reflector
from fractile.kube.transport import Fence, open_fence
from fractile.ledger.classes import ClassIndex
from fractile.ledger.ledger import Ledger
from fractile.main import leading
from fractile.main.term.rebuild import rebuild
from fractile.model.units import MemoryUnit, NodeName, PodUID
from fractile.reconcile.assumed_pods import AssumedPods
from fractile.reconcile.repair import Repair
from fractile.watch.event_handlers import CardHandlers, ClassHandlers, PodHandlers
from fractile.watch.waiting_pods import WaitingPods
from fractile.wire.fractile.extended_resource import ExtendedResource
from fractile.wire.fractile.resource_class import ResourceClass
from fractile.wire.kubernetes.extender import BindingArgs
from fractile.wire.kubernetes.objects import Pod
from fractile.wire.kubernetes.queued import QueuedPod
from tests.history.kernel import Kernel, Machine
from tests.history.server import PlayedHttp, Server

SLOTS = 3
_CREDENTIALS = Credentials("http://played:1")
_TIMING = LeaseTiming(look=1.5)  # those that wait look at the lease less often, which is most of all calls
_PAGE = 5  # objects, so that lists have pages


class Parts(msgspec.Struct, frozen=True):
    """What the product is made of."""

    ledger: type[Ledger] = Ledger
    binder: type[Binder] = Binder
    handlers: type[PodHandlers] = PodHandlers
    cards: type[CardHandlers] = CardHandlers
    assumed: type[AssumedPods] = AssumedPods
    repair: type[Repair] = Repair
    reflector: type[Reflector[QueuedPod]] = Reflector
    waits: bool = True  # a new leader waits until nothing of the one before arrives any more
    policy: bool = True  # the API server refuses what a leader of before sends


class Term:
    """What one lead works with."""

    def __init__(self, replica: "Replica", lead: leading.LeadTerm) -> None:
        loop, parts = replica.machine, replica.parts
        self.lead = lead
        self.waits = parts.waits
        self.clock = loop.time
        self.rebuilt = asyncio.Event()
        client = replica.client(lead.left)
        self.ledger = ledger = parts.ledger(loop.time, slots=SLOTS)
        self.waiting = WaitingPods()
        classes = ClassIndex(ledger)
        self.repair = parts.repair(
            ledger=ledger,
            client=client,
            unit=MemoryUnit.MiB,
            warn=_unheard,
            wall_ns=replica.wall_ns,
            classes=classes,
            term=lambda: lead.name,
        )
        self.handlers = parts.handlers(
            ledger=ledger,
            waiting=self.waiting,
            unit=MemoryUnit.MiB,
            warn=_unheard,
            freed=_nobody_waits,
            needs_repair=self.repair.request,
        )
        cards = parts.cards(ledger, freed=self.handlers.freed)
        class_handlers = ClassHandlers(classes)
        self.assumed = parts.assumed(ledger=ledger, waiting=self.waiting, handlers=self.handlers, client=client)
        self.cards = Reflector(
            client,
            paths.extended_resources(),
            ExtendedResource,
            changed=cards.changed,
            gone=lambda gone: cards.gone(gone.name),
            backoff=replica.backoff(),
            clock=loop.time,
        )
        self.classes = Reflector(
            client,
            paths.resource_classes(),
            ResourceClass,
            changed=class_handlers.changed,
            gone=lambda gone: class_handlers.gone(gone.name),
            backoff=replica.backoff(),
            clock=loop.time,
        )
        self.pods = parts.reflector(
            client,
            paths.pods(),
            QueuedPod,
            changed=self.handlers.changed,
            gone=lambda gone: self.handlers.gone(PodUID(gone.uid)),
            listed=self.handlers.listed,
            backoff=replica.backoff(),
            clock=loop.time,
        )
        self.binder = parts.binder(
            ledger=ledger,
            waiting=self.waiting,
            handlers=self.handlers,
            client=client,
            unit=MemoryUnit.MiB,
            wall_ns=replica.wall_ns,
            classes=classes,
            term=lambda: lead.name,
        )

    @property
    def ready(self) -> bool:
        return self.rebuilt.is_set() and self.lead.leading()

    async def run(self) -> None:
        ready = rebuild(
            [self.cards.synced, self.classes.synced],
            self.pods,
            self.ledger,
            quiet=self.lead.quiet if self.waits else 0.0,
            begin=self.repair.begin,
            after=[self.repair.run],
            rebuilt=self.rebuilt.set,
            clock=self.clock,
            collecting=nullcontext,
        )
        try:
            async with asyncio.TaskGroup() as tasks:
                for work in (self.cards.run(), self.classes.run(), self.assumed.run(), ready):
                    tasks.create_task(work)
        finally:
            self.lead.unsettled(self.ledger.unsettled)


class Replica:
    """A process, which may be killed, paused and started again. ``jump``: seconds by which its wall clock is wrong."""

    def __init__(self, kernel: Kernel, server: Server, name: str, parts: Parts) -> None:
        self.name, self.parts = name, parts
        self.kernel, self.server = kernel, server
        self.jump = 0.0
        self.starts = 0
        self.term: Term | None = None
        self.machine = Machine(kernel)
        self._https: list[PlayedHttp] = []
        self._failures: list[BaseException] = []
        self._again = self._running = False
        self.begin()

    def begin(self) -> None:
        """The process starts, unless it runs."""
        if self._running:
            return
        self._running = True
        self.starts += 1
        self._again = False
        self._main = self.machine.create_task(self._run())
        self._main.add_done_callback(self._ended)

    def kill(self) -> None:
        """It ends at once; nothing more leaves it."""
        self._again = self._running = False
        for http in self._https:
            http.dead = True
        self._https.clear()
        self.machine.end()
        self.term = None
        self.machine = Machine(self.kernel)

    def stop(self) -> None:
        """It is told to end, and starts again when it has."""
        if self._running:
            self._main.cancel()
            self._again = True

    def failures(self) -> list[BaseException]:
        """What ended it against its will."""
        return [*self._failures, *self.machine.failures]

    def bind(self, args: BindingArgs, failed: Callable[[], None]) -> None:
        """A call of kube-scheduler, if this replica is ready; ``failed`` is told when it is not done."""
        term = self.term
        if term is not None and term.ready and not self.machine.paused:
            self.machine.create_task(_answered(term.binder, args, failed))

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._failures.append(error)
        if self._again:
            self._running = False
            self.begin()

    def wall_ns(self) -> int:
        return int((1_700_000_000 + self.kernel.now + self.jump) * 1e9)

    def client(self, fence: Fence = open_fence, timeout: float = 30.0) -> KubeClient:
        client = KubeClient(
            _CREDENTIALS,
            page_size=_PAGE,
            timeout=timeout,
            rng=self._rng(),
            clock=self.machine.time,
            fence=fence,
        )
        http = PlayedHttp(self.server, self.machine)
        self._https.append(http)
        client._transport._http = http  # type: ignore[assignment]  # pyright: ignore[reportPrivateUsage, reportAttributeAccessIssue]
        return client

    def backoff(self) -> Backoff:
        return Backoff(rng=self._rng())

    def _rng(self) -> random.Random:
        return random.Random(f"{self.name}/{self.starts}")

    async def _run(self) -> None:
        elector = LeaderElector(
            self.client(timeout=5.0),
            namespace="fractile-system",
            name="fractile-control-plane",
            identity=f"{self.name}-{self.starts}",
            timing=_TIMING,
            rng=self._rng(),
            clock=self.machine.time,
            now=lambda: datetime.fromtimestamp(self.wall_ns() / 1e9, UTC),
        )

        async def work(lead: leading.LeadTerm) -> None:
            self.term = term = Term(self, lead)
            try:
                await term.run()
            finally:
                self.term = None

        await leading.one_after_another(elector, work, left=lambda: elector.left, clock=self.machine.time)


async def _answered(binder: Binder, args: BindingArgs, failed: Callable[[], None]) -> None:
    try:
        refusal = await binder.bind(args)
    except FractileError:
        failed()
        return
    if refusal is not None:
        failed()


def _unheard(pod: Pod, reason: str, message: str) -> None:
    """An event."""


def _nobody_waits(node: NodeName) -> None:
    """The wake-up is not played."""
