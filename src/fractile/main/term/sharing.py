"""Wiring of the rules on how cards may be cut: the file, and the nodes whose labels name pools."""

from collections.abc import Callable
from pathlib import Path

import click

from fractile.kube import paths
from fractile.kube.client import KubeClient
from fractile.kube.reflector import Reflector
from fractile.ledger.ledger import Ledger
from fractile.model.units import NodeName
from fractile.reconcile.faults import Faults, itself
from fractile.watch.sharing_rules import SharingRules
from fractile.wire.kubernetes.objects import Node

option = click.option(
    "--sharing",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Rules of how cards may be cut: slices per card and fractions (docs/operate/sharing.md). Read again when it "
    "changes.",
)


class SharingLoops:
    """The loops that follow the file and the nodes. Nodes are watched only if there is a file."""

    def __init__(
        self, file: Path, client: KubeClient, ledger: Ledger, *, freed: Callable[[NodeName], None], faults: Faults
    ) -> None:
        self.rules = SharingRules(file, ledger=ledger, freed=freed)
        self.nodes = Reflector(
            client,
            paths.nodes(),
            Node,
            changed=faults.each("nodes", lambda node: node.metadata, self.rules.changed),
            gone=faults.each("nodes", itself, self.rules.gone),
        )
