"""Wiring of global placement: connects the loops of ``globalplacement.placing`` and ``globalplacement.gates``."""

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import click

from fractile.classes.nodes import NodeWithTaints
from fractile.dialects.table import parse_pod
from fractile.errors import SetupError
from fractile.extender.bind import Binder
from fractile.extender.choose import Chooser
from fractile.globalplacement.counts import DecisionTally
from fractile.globalplacement.gates import GateSweeper
from fractile.globalplacement.opt_in import GlobalPlacement, OptIn
from fractile.globalplacement.placing import Decisions, Placing
from fractile.globalplacement.reservations import ReservationListener, Reservations
from fractile.kube.client import KubeClient
from fractile.kube.credentials import Credentials
from fractile.kube.reflector import Gone
from fractile.ledger.classes import ClassIndex
from fractile.ledger.ledger import Ledger
from fractile.ledger.node_rules import NodeRules
from fractile.main.grouped import grouped
from fractile.main.term.scoring import Scoring
from fractile.model.placement import Placement
from fractile.model.refusal import Refusal
from fractile.model.request import PodRequest
from fractile.model.units import MemoryUnit, PodUID
from fractile.reconcile.faults import Faults
from fractile.reconcile.nominations import Nominations
from fractile.watch.event_handlers import PodHandlers
from fractile.wire.kubernetes.objects import Pod

QPS = 400  # nomination and gate are two writes in addition to the Binding; the API server itself is the limit

_OPTIONS = (
    click.option(
        "--global-placement/--no-global-placement",
        default=None,
        help="Choose the node of every pod, or of no pod, over all nodes and nominate it "
        "(docs/use/global-placement.md); default: only for pods and namespaces that ask for it.",
    ),
    click.option(
        "--placement-gate",
        is_flag=True,
        help="Let the webhook hold such pods back until they are nominated.",
    ),
)


def _wanted(global_placement: bool | None, placement_gate: bool) -> GlobalPlacement:
    wanted = GlobalPlacement(every_pod=global_placement is True, no_pod=global_placement is False, gate=placement_gate)
    if wanted.gate and wanted.no_pod:
        raise SetupError("--placement-gate needs global placement; leave out --no-global-placement")
    return wanted


options = grouped("placement", _OPTIONS, _wanted)


class GlobalChoice:
    """``rules`` and ``placing`` are fed by the watches; ``opt_in`` says which pods are concerned."""

    def __init__(
        self,
        wanted: GlobalPlacement,
        client: KubeClient,
        ledger: Ledger,
        *,
        classes: ClassIndex,
        scoring: Scoring,
        nominations: Nominations,
        unit: MemoryUnit,
        dialects: frozenset[str],
        handlers: PodHandlers,
        binder: Binder,
        tally: DecisionTally,
        faults: Faults,
    ) -> None:
        self._wanted = wanted
        self.opt_in = OptIn(scoring.global_placement, every_pod=wanted.every_pod, no_pod=wanted.no_pod)
        self.rules = NodeRules(ledger.arrays)
        chooser = Chooser(
            ledger=ledger,
            classes=classes,
            policies=scoring.policies,
            engine=scoring.engine,
            rules=self.rules,
            nominations=nominations,
        )

        def reserve(uid: PodUID, request: PodRequest, node: str) -> Placement | Refusal | None:
            placed = binder.reserve(uid, request, node)
            scoring.policies.forget(uid)
            return placed

        told = ReservationListener(
            expected=scoring.handlers.pod_expected,
            not_expected=scoring.handlers.pod_not_expected,
            give_back=handlers.give_back,
        )
        self.placing = Placing(
            client=client,
            reservations=Reservations(ledger, time.monotonic, told, ended=tally.ended),
            decisions=Decisions(
                wanted=self.opt_in.of,
                parse=lambda pod: parse_pod(pod, unit, dialects),
                choose=chooser.choose,
                reserve=reserve,
            ),
            clock=time.monotonic,
            holds=lambda uid: ledger.entry(uid) is not None,
            tally=tally,
            nominates=not wanted.no_pod,
            faults=faults,
        )

    def node_changed(self, node: NodeWithTaints) -> None:
        spec = node.spec
        self.rules.put(node.metadata.name, node.metadata.labels or {}, spec.taints or (), cordoned=spec.unschedulable)

    def node_gone(self, gone: Gone) -> None:
        self.rules.drop(gone.name)

    def gates(self, pod: Pod, namespace: str) -> bool:
        """Whether the webhook must hold a new pod back."""
        return self._wanted.gate and self.placing.prompt and self.opt_in.of(pod, namespace)

    async def run(self, rebuilt: asyncio.Event) -> None:
        await rebuilt.wait()
        await self.placing.run()


@asynccontextmanager
async def sweeping(
    wanted: GlobalPlacement, access: Credentials, tally: DecisionTally
) -> AsyncGenerator[GateSweeper | None]:
    """Run the gate sweeper as long as the program runs, whichever replica leads."""
    if not wanted.gate:
        yield None
        return
    async with KubeClient(access) as client, asyncio.TaskGroup() as tasks:
        sweeper = GateSweeper(client, time.monotonic, tally)
        running = tasks.create_task(sweeper.run())
        yield sweeper
        running.cancel()
