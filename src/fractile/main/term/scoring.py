"""Wiring of the node policies: nodes, pods and namespaces -> engine -> extender, and the mix that it learns."""

import asyncio
import csv
import time
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Any

import click
import msgspec

from fractile.errors import SetupError
from fractile.extender.engine import Engine
from fractile.extender.learning import Learning
from fractile.extender.policies import ANNOTATION, NodePolicies, valid
from fractile.extender.score import BINPACK
from fractile.kube import paths
from fractile.kube.client import KubeClient
from fractile.kube.reflector import Reflector
from fractile.ledger.ledger import Ledger
from fractile.ledger.node_totals import NodeTotals
from fractile.main.grouped import grouped
from fractile.model.units import MemoryUnit
from fractile.policy.nodes.mix import Mix, mix_of
from fractile.policy.nodes.policies.table import POLICIES
from fractile.reconcile.faults import Faults, itself
from fractile.watch.node_handlers import NamespacePolicies, NodeHandlers
from fractile.watch.pod_mix import MixWindow, SeenPods
from fractile.wire.kubernetes.objects import Namespace
from fractile.wire.kubernetes.queued import ANNOTATION as GLOBAL_PLACEMENT


class ScoringOptions(msgspec.Struct, frozen=True):
    """``policy``: the cluster's. ``mix``: a file with the expected pods. ``hours``, ``pods``: how long pods that are
    gone count for the mix, and at most how many."""

    policy: str = BINPACK
    mix: Path | None = None
    hours: float = 168.0
    pods: int = 20_000


def _policy(_context: click.Context, _parameter: click.Parameter, text: str) -> str:
    if not valid(text):
        raise click.BadParameter(
            f"{text!r} is not one of binpack, spread, none, {', '.join(POLICIES)}, or a sum of the latter"
        )
    return text


_OPTIONS = (
    click.option(
        "--node-policy",
        default=BINPACK,
        show_default=True,
        metavar="POLICY",
        callback=_policy,
        help="How the node of a pod is chosen (docs/operate/node-policies.md); namespaces and pods may override it.",
    ),
    click.option(
        "--mix",
        type=click.Path(path_type=Path, dir_okay=False),
        metavar="CSV",
        help="The pods to expect, in the simulator's columns; default: learned from the pods that arrive.",
    ),
    click.option(
        "--mix-window",
        type=click.FloatRange(min=0, max=24 * 366),
        default=168.0,
        show_default=True,
        metavar="HOURS",
        help="How long pods that have ended count among the pods to expect.",
    ),
    click.option(
        "--mix-pods",
        type=click.IntRange(0, 1_000_000),
        default=20_000,
        show_default=True,
        help="How many of those count at most; pods that exist always count.",
    ),
)


def _options_of(node_policy: str, mix: Path | None, mix_window: float, mix_pods: int) -> ScoringOptions:
    return ScoringOptions(node_policy, mix, mix_window, mix_pods)


scoring_options = grouped("scoring", _OPTIONS, _options_of)


def read_mix(file: Path) -> Mix:
    """The pods of a file in the simulator's columns. Raises SetupError or WireError when it cannot be used."""
    # Imported here: a control plane without such a file does not load the simulator.
    from fractile.sim.snapshot.trace import MODELS_COLUMN, MOST_CPU, MOST_GPUS, MOST_MEMORY, NodeRow, read_pods

    models = sorted(_models(file, MODELS_COLUMN)) or ["any"]
    some = [NodeRow(f"any-{i}", MOST_CPU, MOST_MEMORY, MOST_GPUS, model) for i, model in enumerate(models)]
    mix = mix_of(pod.ask for pod in read_pods(file, some) if pod.ask.gpus)
    if not mix.asks:
        raise SetupError(f"{file} has no pod that asks for a GPU")
    return mix


def _models(file: Path, column: str) -> set[str]:
    try:
        with file.open(encoding="utf-8-sig", newline="") as text:
            return {m for row in csv.DictReader(text) for m in (row.get(column) or "").split("|") if m}
    except (OSError, UnicodeDecodeError, csv.Error):
        return set()  # ``read_pods`` reads the whole file and reports the error


class Scoring:
    """What the extender needs for scores: the objects that watches feed, and the loops that keep them up to date."""

    def __init__(
        self,
        options: ScoringOptions,
        client: KubeClient,
        ledger: Ledger,
        *,
        unit: MemoryUnit,
        dialects: frozenset[str],
        faults: Faults,
    ) -> None:
        pinned = read_mix(options.mix) if options.mix else None
        totals = NodeTotals()
        seen = SeenPods(time.monotonic, MixWindow(options.hours * 3600, options.pods))
        self.engine = Engine(ledger, totals)
        self._learning = Learning(seen, self.engine, pinned=pinned)
        self.handlers = NodeHandlers(totals, seen, ledger.arrays, unit, dialects)
        by_namespace = NamespacePolicies(ANNOTATION)
        self.global_placement = NamespacePolicies(GLOBAL_PLACEMENT)
        self.namespaces = Reflector(
            client,
            paths.namespaces(),
            Namespace,
            changed=faults.each(
                "namespaces", lambda about: about.metadata, by_namespace.changed, self.global_placement.changed
            ),
            gone=faults.each("namespaces", itself, by_namespace.gone, self.global_placement.gone),
        )
        self.policies = NodePolicies(
            ledger, self.engine, cluster=options.policy, namespaces=by_namespace, seen=seen.better
        )

    def loops(self, synced: Sequence[asyncio.Event]) -> tuple[Coroutine[Any, Any, None], ...]:
        """``synced``: nothing is learned before these watches have shown what exists."""
        return self.namespaces.run(), self._learn(synced)

    async def _learn(self, synced: Sequence[asyncio.Event]) -> None:
        for watch in synced:
            await watch.wait()
        await self._learning.run()
