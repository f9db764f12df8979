"""Wiring of the class controllers: they have their own watch of nodes, and are fed by the other watches."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import click

from fractile.classes.controllers import ClassControllers
from fractile.classes.defaults import checked
from fractile.classes.nodes import NodeWithTaints
from fractile.dialects import table
from fractile.kube import paths
from fractile.kube.client import KubeClient
from fractile.kube.reflector import Gone, Reflector
from fractile.ledger.ledger import Ledger
from fractile.reconcile.faults import Faults, itself


def _template(_context: click.Context, _parameter: click.Parameter, text: str) -> str:
    """Check the template at the start, not when this replica begins to lead."""
    return checked(text) if text else ""


option = click.option(
    "--default-classes",
    default="",
    metavar="TEMPLATE",
    callback=_template,
    help="Make a ResourceClass for every model in the cluster, named by this template: '{vendor}.{model}' "
    "(docs/use/classes.md).",
)


class ClassLoops:
    """The controllers, fed with cards, classes and pods; and the loops that they need. ``node_changed`` and
    ``node_gone`` are called with nodes too."""

    def __init__(
        self,
        ledger: Ledger,
        client: KubeClient,
        *,
        template: str = "",
        dialects: frozenset[str] = table.NAMES,
        node_changed: Sequence[Callable[[NodeWithTaints], object]] = (),
        node_gone: Sequence[Callable[[Gone], object]] = (),
        faults: Faults | None = None,
    ) -> None:
        faults = faults or Faults()
        self.control = ClassControllers(
            ledger, client, template=checked(template) if template else "", classes="class" in dialects, faults=faults
        )
        self.nodes = Reflector(
            client,
            paths.nodes(),
            NodeWithTaints,
            changed=faults.each("nodes", lambda node: node.metadata, *node_changed, self.control.node_changed),
            gone=faults.each("nodes", itself, *node_gone, self.control.node_gone),
        )

    def loops(self, synced: Sequence[asyncio.Event]) -> tuple[Coroutine[Any, Any, None], ...]:
        """``synced``: nothing is written before these watches have shown what exists."""
        return self.nodes.run(), self.control.run([*synced, self.nodes.synced])
