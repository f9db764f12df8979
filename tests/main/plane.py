"""A control plane in one process: the real objects, wired as main/control_plane.py wires them, on a fake API server.

The watches are replaced by the test's own hand (``see``), so that each test decides what has been seen and what not.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from fractile.extender.app import Extender
from fractile.extender.bind import Binder
from fractile.extender.expected import Expected
from fractile.extender.preempt import Preemption
from fractile.kube import paths
from fractile.kube.client import KubeClient
from fractile.kube.tokens import TokenSource
from fractile.kube.transport import Fence, open_fence
from fractile.ledger.classes import ClassIndex
from fractile.ledger.ledger import Entry, Ledger
from fractile.model.card import Card
from fractile.model.units import MemoryUnit, NodeName, PodUID
from fractile.reconcile.assumed_pods import AssumedPods
from fractile.reconcile.nominations import Nominations
from fractile.reconcile.repair import Repair
from fractile.reconcile.requeue import Requeue
from fractile.watch.assigned_pods import AssignedPods
from fractile.watch.event_handlers import CardHandlers, ClassHandlers, PodHandlers
from fractile.watch.waiting_pods import WaitingPods
from fractile.wire.kubernetes.objects import Container, Pod
from tests.builders import Clock, cards, pod
from tests.fakes.apiserver import FakeApiServer

NOW_NS = 1_700_000_000_000_000_000


class Plane:
    """Everything of a control plane, open to the test."""

    def __init__(self, server: FakeApiServer, client: KubeClient, *, unit: MemoryUnit, term: str = "") -> None:
        self.server = server
        self.client = client
        self.clock = Clock()
        self.is_ready = True
        self.steps: list[str] = []  # what bind reached
        self.events: list[tuple[str, str, str]] = []  # pod, reason, message
        self.ledger = Ledger(self.clock)
        self.waiting = WaitingPods()
        self.expected = Expected(self.clock)
        wall = lambda: NOW_NS  # noqa: E731
        self.index = ClassIndex(self.ledger)
        self.wakeup = Requeue(ledger=self.ledger, waiting=self.waiting, client=client, wall_ns=wall, classes=self.index)
        self.classes = ClassHandlers(self.index, changed_class=self.wakeup.class_changed)
        self.repair = Repair(
            ledger=self.ledger,
            client=client,
            unit=unit,
            warn=self.warn,
            wall_ns=wall,
            classes=self.index,
            term=lambda: term,
        )
        self.handlers = PodHandlers(
            ledger=self.ledger,
            waiting=self.waiting,
            unit=unit,
            warn=self.warn,
            freed=self.wakeup.freed,
            eased=self.wakeup.eased,
            needs_repair=self.repair.request,
        )
        self.cards = CardHandlers(self.ledger, freed=self.handlers.freed)
        self.assumed = AssumedPods(ledger=self.ledger, waiting=self.waiting, handlers=self.handlers, client=client)
        self.assigned_pods = AssignedPods(self.ledger)
        self.nominations = Nominations(
            ledger=self.ledger,
            waiting=self.waiting,
            assigned_pods=self.assigned_pods,
            classes=self.index,
            clock=self.clock,
        )
        self.binder = Binder(
            ledger=self.ledger,
            waiting=self.waiting,
            handlers=self.handlers,
            client=client,
            unit=unit,
            wall_ns=wall,
            classes=self.index,
            reached=self.steps.append,
            nominations=self.nominations,
            term=lambda: term,
        )
        self.extender = Extender(
            ledger=self.ledger,
            binder=self.binder,
            expected=self.expected,
            unit=unit,
            ready=lambda: self.is_ready,
            classes=self.index,
            preemption=Preemption(self.ledger, self.assigned_pods, self.nominations),
            nominations=self.nominations,
        )

    def warn(self, pod: Pod, reason: str, message: str) -> None:
        self.events.append((pod.metadata.name, reason, message))

    # ── the API server ───────────────────────────────────────────────────────────────────────────────────────────

    def create(self, name: str = "p", *containers: Container, **fields: Any) -> Pod:
        """Store a pod; nobody has seen it yet. The server gives it its UID."""
        body: dict[str, Any] = msgspec.to_builtins(pod(name, *containers, **fields))
        body["metadata"].pop("uid")
        self.server.create(paths.pods(body["metadata"]["namespace"]), body)
        return self.stored(name)

    def stored(self, name: str = "p") -> Pod:
        """The pod as the API server has it now."""
        return msgspec.convert(self.server.get(paths.pod("default", name)), Pod)

    def annotations(self, name: str = "p") -> dict[str, str]:
        return self.stored(name).metadata.annotations or {}

    def annotate(self, fields: dict[str, str | None], name: str = "p") -> None:
        self.server.merge(paths.pod("default", name), {"metadata": {"annotations": fields}})

    def writes(self) -> list[str]:
        return self.server.writes()

    # ── what has been seen ───────────────────────────────────────────────────────────────────────────────────────

    def see(self, name: str = "p") -> Pod:
        """The watch shows the pod as it is now."""
        found = self.stored(name)
        self.handlers.changed(found)
        self.assigned_pods.changed(found)
        return found

    def submit(self, name: str = "p", *containers: Container, **fields: Any) -> Pod:
        """Create a pod, and see it."""
        self.create(name, *containers, **fields)
        return self.see(name)

    def node(self, name: str, held: Sequence[Card]) -> None:
        for card in held:
            self.ledger.put_card(NodeName(name), card)

    def free(self, node: str = "n1") -> list[int]:
        state = self.ledger.node(node)
        return [] if state is None else [c.free_memory for c in state.cards]

    def entry(self, pod: Pod) -> Entry | None:
        return self.ledger.entry(PodUID(pod.metadata.uid))


@asynccontextmanager
async def plane(
    nodes: Sequence[str] = ("n1", "n2"),
    *,
    unit: MemoryUnit = MemoryUnit.MiB,
    timeout: float = 5.0,
    fence: Fence = open_fence,
    token: TokenSource | None = None,
    term: str = "",
) -> AsyncGenerator[Plane, None]:
    """A control plane whose nodes have two cards each; its client repeats without waiting."""
    async with (
        FakeApiServer() as server,
        KubeClient(server.credentials(token=token), sleep=_at_once, timeout=timeout, fence=fence) as client,
    ):
        made = Plane(server, client, unit=unit, term=term)
        for name in nodes:
            made.node(name, cards(name))
        yield made


async def until(condition: Callable[[], object]) -> None:
    """Let the others run until the condition holds; a program may take long to start on a busy machine."""
    async with asyncio.timeout(60):
        while True:
            if condition():
                return
            await asyncio.sleep(0.001)


async def _at_once(_: float) -> None:
    await asyncio.sleep(0)
