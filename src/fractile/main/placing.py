"""Wiring of global placement: what the loops of ``control.placing`` and ``control.gates`` need of the rest."""

import asyncio
import functools
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar, cast

import click

from fractile.control.classes_nodes import Node
from fractile.control.faults import Faults
from fractile.control.feed import PodFeed
from fractile.control.gates import GateSweeper
from fractile.control.nominations import Nominations
from fractile.control.opting import GlobalPlacement, OptIn
from fractile.control.placing import Decisions, Placing
from fractile.control.reservations import Reservations, Told
from fractile.control.tally import Tally
from fractile.dialects.table import parse_pod
from fractile.errors import SetupError
from fractile.extender.bind import Binder
from fractile.extender.choose import Chooser
from fractile.kube.client import KubeClient
from fractile.kube.credentials import Credentials
from fractile.kube.reflector import Gone
from fractile.ledger.classes import ClassIndex
from fractile.ledger.ledger import Ledger
from fractile.ledger.node_rules import NodeRules
from fractile.main.scoring import Scoring
from fractile.model.placement import Placement
from fractile.model.refusal import Refusal
from fractile.model.request import PodRequest
from fractile.model.units import MemoryUnit, PodUID
from fractile.wire.objects import Pod

Command = TypeVar("Command", bound=Callable[..., Any])

QPS = 400  # nomination and gate are two writes, beside the Binding: the API server does what it can

_OPTIONS = (
    click.option(
        "--global-placement/--no-global-placement",
        default=None,
        help="Choose the node of every pod, or of none, over all nodes and nominate it (docs/global-placement.md); "
        "without this only for pods and namespaces that ask for it.",
    ),
    click.option(
        "--placement-gate",
        is_flag=True,
        help="The webhook holds such pods back until they are nominated.",
    ),
)


def options(command: Command) -> Command:
    """Add the options; the command gets them as one argument, ``placement``."""

    @functools.wraps(command)
    def gathered(*arguments: Any, **given: Any) -> Any:
        said: bool | None = given.pop("global_placement")
        wanted = GlobalPlacement(everybody=said is True, nobody=said is False, gate=given.pop("placement_gate"))
        if wanted.gate and wanted.nobody:
            raise SetupError("--placement-gate needs nodes to be chosen here; leave out --no-global-placement")
        return command(*arguments, placement=wanted, **given)

    for one in reversed(_OPTIONS):
        gathered = one(gathered)
    return cast("Command", gathered)


class GlobalChoice:
    """``rules`` and ``placing`` are shown what the watches bring; ``opt_in`` says whom it concerns."""

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
        feed: PodFeed,
        binder: Binder,
        tally: Tally,
        faults: Faults,
    ) -> None:
        self._wanted = wanted
        self.opt_in = OptIn(scoring.global_placement, everybody=wanted.everybody, nobody=wanted.nobody)
        self.rules = NodeRules(ledger.arrays)
        chooser = Chooser(
            ledger=ledger,
            classes=classes,
            policies=scoring.policies,
            engine=scoring.engine,
            rules=self.rules,
            nominations=nominations,
        )

        def given_back(uid: PodUID) -> None:
            entry = ledger.entry(uid)
            ledger.forget(uid)
            if entry is not None:
                feed.given_back(entry)

        def reserve(uid: PodUID, request: PodRequest, node: str) -> Placement | Refusal | None:
            placed = binder.reserve(uid, request, node)
            scoring.policies.forget(uid)
            return placed

        told = Told(
            expected=scoring.feed.pod_expected,
            not_expected=scoring.feed.pod_not_expected,
            given_back=given_back,
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
            nominates=not wanted.nobody,
            faults=faults,
        )

    def node_changed(self, node: Node) -> None:
        spec = node.spec
        self.rules.put(node.metadata.name, node.metadata.labels or {}, spec.taints or (), cordoned=spec.unschedulable)

    def node_gone(self, gone: Gone) -> None:
        self.rules.drop(gone.name)

    def gates(self, pod: Pod, namespace: str) -> bool:
        """Whether the webhook is to hold a new pod back."""
        return self._wanted.gate and self.placing.prompt and self.opt_in.of(pod, namespace)

    async def run(self, rebuilt: asyncio.Event) -> None:
        await rebuilt.wait()
        await self.placing.run()


@asynccontextmanager
async def sweeping(wanted: GlobalPlacement, access: Credentials, tally: Tally) -> AsyncGenerator[GateSweeper | None]:
    """As long as the program runs, whoever leads."""
    if not wanted.gate:
        yield None
        return
    async with KubeClient(access) as client, asyncio.TaskGroup() as tasks:
        sweeper = GateSweeper(client, time.monotonic, tally)
        running = tasks.create_task(sweeper.run())
        yield sweeper
        running.cancel()
