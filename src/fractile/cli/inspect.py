"""``fractile inspect``: cards, what is allocated on them, and the pods that hold it. Reads only the API server."""

import asyncio
import contextlib
import logging
import sys
from collections.abc import Iterator
from pathlib import Path

import click

from fractile.cli.options import api_server
from fractile.cli.text import inspect as inspect_text
from fractile.errors import SetupError, WireError
from fractile.kube import paths
from fractile.kube.client import KubeClient
from fractile.kube.credentials import Credentials
from fractile.model.card import Card
from fractile.model.units import CardUUID, NodeName
from fractile.reports import reading
from fractile.wire.fractile.extended_resource import ExtendedResource, to_card
from fractile.wire.kubernetes.objects import Node, Pod
from fractile.wire.output import inspect


@click.command("inspect")
@click.argument("node", required=False, shell_complete=api_server.complete_node)
@click.option(
    "-o",
    "--output",
    type=click.Choice(["table", "wide", "topology", "json", "yaml"]),
    default="table",
    show_default=True,
    help="wide: one line per container. topology: how the cards are joined. json, yaml: the fields of "
    "docs/reference/inspect.md.",
)
@api_server.cluster_options
def command(node: str | None, output: str, kubeconfig: Path | None, context: str, name: str) -> None:
    """Show the cards of NODE, or of all nodes: what is allocated, what is free, and the pods that hold them.

    Everything is read from the API server, so this works while Fractile's control plane is down. Without --kubeconfig
    and --name, the cluster is the one of $KUBECONFIG; else the local cluster called fractile, if it runs; else the one
    of the pod this runs in, or of ~/.kube/config.
    """
    # The report lists the pods with rejected placements that the handlers would log.
    logging.getLogger("fractile").addHandler(logging.NullHandler())
    report, cards = asyncio.run(_report(api_server.credentials(kubeconfig, context, name), node))
    if output == "topology":
        click.echo(_topology(report, cards), nl=False)
    elif output == "table" and sys.stdout.isatty():
        _draw(report)
    else:
        click.echo(_as_text(report, output), nl=False)


async def _report(credentials: Credentials, node: str | None) -> tuple[inspect.Inspection, list[ExtendedResource]]:
    """The report, limited to ``node`` if that is given, and the cards of all nodes."""
    # Imported late: numpy takes a tenth of a second, which --help and completion should not wait for.
    from fractile.reports.inspect import InspectedObjects, only, survey

    async with KubeClient(credentials) as client:
        cards = await reading.read(client, paths.extended_resources(), ExtendedResource)
        if not cards:
            raise SetupError(
                "the cluster has no cards: no node's Fractile agent has reported any; "
                "check that `fractile agent` runs on the GPU nodes"
            )
        nodes = await reading.read(client, paths.nodes(), Node)
        pods = await reading.read(client, paths.pods(), Pod)
    report = survey(InspectedObjects(cards, nodes, pods))
    if node is None:
        return report, cards
    known = [n.name for n in report.nodes]
    if node not in known:
        raise SetupError(f"node {node!r} has no cards; nodes with cards: {reading.listed(known)}")
    return only(report, node), cards


def _topology(report: inspect.Inspection, resources: list[ExtendedResource]) -> str:
    from fractile.cli.text import inspect_topology

    shown = {card.uuid: card for node in report.nodes for card in node.cards}
    nodes: dict[NodeName, list[Card]] = {NodeName(n.name): [] for n in report.nodes}
    for node, card in _readable(resources):
        if card.uuid in shown:
            nodes[node].append(card)
    held = {CardUUID(c.uuid): f"{inspect_text.percent(c)} held" for c in shown.values() if c.pods}
    return inspect_topology.text(nodes, held)


def _readable(resources: list[ExtendedResource]) -> Iterator[tuple[NodeName, Card]]:
    for resource in resources:
        with contextlib.suppress(WireError):  # the report lists them among its problems
            yield to_card(resource)


def _as_text(report: inspect.Inspection, output: str) -> str:
    if output == "json":
        return inspect.encode(report) + "\n"
    if output == "yaml":
        return inspect.encode_yaml(report)
    return inspect_text.wide(report) if output == "wide" else inspect_text.table(report)


def _draw(report: inspect.Inspection) -> None:
    # Imported late: rich takes a tenth of a second, which pipes and scripts should not wait for.
    from rich.console import Console

    from fractile.cli.text.inspect_tree import draw

    draw(report, Console())
