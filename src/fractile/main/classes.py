"""Wiring of the class controllers: the watch of nodes is their own, of the others they are shown what comes."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

import click

from fractile.control.classes import ClassControllers
from fractile.control.classes_default import checked
from fractile.control.classes_nodes import Node
from fractile.dialects import table
from fractile.kube import paths
from fractile.kube.client import KubeClient
from fractile.kube.reflector import Reflector
from fractile.ledger.ledger import Ledger

T = TypeVar("T")

option = click.option(
    "--default-classes",
    default="",
    metavar="TEMPLATE",
    help="Make a ResourceClass for every model that is seen, named so: '{vendor}.{model}' (docs/classes.md).",
)


class Classes:
    """The controllers, which are shown cards, classes and pods; and the loops that they need."""

    def __init__(
        self, ledger: Ledger, client: KubeClient, *, template: str = "", dialects: frozenset[str] = table.NAMES
    ) -> None:
        self.control = ClassControllers(
            ledger, client, template=checked(template) if template else "", classes="class" in dialects
        )
        self._nodes = Reflector(
            client, paths.nodes(), Node, changed=self.control.node_changed, gone=self.control.node_gone
        )

    def loops(self, synced: Sequence[asyncio.Event]) -> tuple[Coroutine[Any, Any, None], ...]:
        """``synced``: nothing is written before these watches have shown what there is."""
        return self._nodes.run(), self.control.run([*synced, self._nodes.synced])


def in_turn(*tell: Callable[[T], object]) -> Callable[[T], None]:
    """One callback that is several, in this order."""

    def told(about: T) -> None:
        for each in tell:
            each(about)

    return told
