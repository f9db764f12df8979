"""``fractile inspect``: cards, what is allocated on them, and who holds it. Reads the API server and nothing else."""

import asyncio
import contextlib
import logging
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

import click
from click.shell_completion import CompletionItem

from fractile.cli import cluster_name, inspect_text
from fractile.cli.target import find_kubeconfig
from fractile.cluster.layout import default_clusters_dir
from fractile.errors import ApiError, FractileError, SetupError, Unreachable, WireError
from fractile.kube import paths
from fractile.kube.client import KubeClient
from fractile.kube.credentials import Credentials, load
from fractile.model.card import Card
from fractile.model.units import CardUUID, NodeName
from fractile.wire import inspect
from fractile.wire.extended_resource import GROUP, PLURAL, ExtendedResource, to_card
from fractile.wire.objects import Node, Pod

_NAMED = 20  # nodes named in a sentence
_COMPLETION_SECONDS = 1.5  # a person waits for the prompt

T = TypeVar("T")


def _complete_node(ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Names of nodes with cards; nothing when the cluster does not answer, since a prompt has no place for errors."""
    chosen = ctx.params
    try:
        who = _credentials(chosen.get("kubeconfig"), chosen.get("name") or "", chosen.get("context") or "")
        names = asyncio.run(_node_names(who))
    except (FractileError, OSError, click.ClickException):  # TimeoutError is an OSError
        return []
    return [CompletionItem(name) for name in names if name.startswith(incomplete)]


@click.command("inspect")
@click.argument("node", required=False, shell_complete=_complete_node)
@click.option(
    "-o",
    "--output",
    type=click.Choice(["table", "wide", "topology", "json", "yaml"]),
    default="table",
    show_default=True,
    help="wide: one line per container. topology: how the cards are joined. json, yaml: the fields of docs/inspect.md.",
)
@click.option("--kubeconfig", type=click.Path(path_type=Path), help="Credentials file of the cluster.")
@click.option("--context", default="", metavar="NAME", help="Context of the kubeconfig; its current one if not given.")
@click.option(
    "--name",
    default="",
    metavar="CLUSTER",
    shell_complete=cluster_name.complete,
    help="A local cluster that `fractile up` started.",
)
def command(node: str | None, output: str, kubeconfig: Path | None, context: str, name: str) -> None:
    """Show the cards of NODE, or of all nodes: what is allocated, what is free, and the pods that hold it.

    Everything is read from the API server, so this works while Fractile's control plane is down. Without --kubeconfig
    and --name the cluster is that of $KUBECONFIG, else the local cluster called fractile if it runs, else that of the
    pod this runs in or of ~/.kube/config.
    """
    # What the feed would log about doubtful pods is in the report.
    logging.getLogger("fractile").addHandler(logging.NullHandler())
    report, cards = asyncio.run(_report(_credentials(kubeconfig, name, context), node))
    if output == "topology":
        click.echo(_topology(report, cards), nl=False)
    elif output == "table" and sys.stdout.isatty():
        _draw(report)
    else:
        click.echo(_as_text(report, output), nl=False)


def _credentials(kubeconfig: Path | None, name: str, context: str) -> Credentials:
    found = find_kubeconfig(given=kubeconfig, name=name, environ=os.environ, clusters=default_clusters_dir())
    return load(found, context=context)


async def _report(credentials: Credentials, node: str | None) -> tuple[inspect.Inspection, list[ExtendedResource]]:
    """The report, on one node if one is named, and the cards of all nodes."""
    # Late: numpy is a tenth of a second that --help and completion need not wait for.
    from fractile.control.survey import Objects, only, survey

    async with KubeClient(credentials) as client:
        cards = await _list(client, paths.extended_resources(), ExtendedResource)
        if not cards:
            raise SetupError(
                "the cluster has no cards: no node's Fractile agent has reported any; "
                "check that `fractile agent` runs on the GPU nodes"
            )
        nodes = await _list(client, paths.nodes(), Node)
        pods = await _list(client, paths.pods(), Pod)
    report = survey(Objects(cards, nodes, pods))
    if node is None:
        return report, cards
    known = [n.name for n in report.nodes]
    if node not in known:
        raise SetupError(f"node {node!r} has no cards; nodes with cards: {_listed(known)}")
    return only(report, node), cards


async def _node_names(credentials: Credentials) -> list[str]:
    async with asyncio.timeout(_COMPLETION_SECONDS), KubeClient(credentials) as client:
        cards, _ = await client.list(paths.extended_resources(), ExtendedResource)
    return sorted({card.spec.node_name for card in cards})


async def _list(client: KubeClient, path: str, type: type[T]) -> list[T]:
    try:
        return (await client.list(path, type))[0]
    except Unreachable as e:
        raise SetupError(
            f"the cluster does not answer ({e}); start a local one with `fractile up`, or choose another with "
            "--kubeconfig, --context or --name"
        ) from None
    except ApiError as e:
        raise SetupError(_advice(e, path)) from None


def _advice(error: ApiError, path: str) -> str:
    if error.code == 401:
        return "the cluster does not accept these credentials; renew them or choose others with --kubeconfig"
    if error.code == 403:
        return f"these credentials may not read what is needed ({error.message}); ask for the right to list it"
    if error.code == 404 and path == paths.extended_resources():
        return f"Fractile is not installed on this cluster (no {PLURAL}.{GROUP}); apply deploy/manifests first"
    return f"{error}; path {path}"


def _listed(names: list[str]) -> str:
    more = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {more} more" if more > 0 else "")


def _topology(report: inspect.Inspection, resources: list[ExtendedResource]) -> str:
    from fractile.cli import inspect_topology

    shown = {card.uuid: card for node in report.nodes for card in node.cards}
    nodes: dict[NodeName, list[Card]] = {NodeName(n.name): [] for n in report.nodes}
    for node, card in _readable(resources):
        if card.uuid in shown:
            nodes[node].append(card)
    held = {CardUUID(c.uuid): f"{inspect_text.percent(c)} held" for c in shown.values() if c.pods}
    return inspect_topology.text(nodes, held)


def _readable(resources: list[ExtendedResource]) -> Iterator[tuple[NodeName, Card]]:
    for resource in resources:
        with contextlib.suppress(WireError):  # the report names those among its problems
            yield to_card(resource)


def _as_text(report: inspect.Inspection, output: str) -> str:
    if output == "json":
        return inspect.encode(report) + "\n"
    if output == "yaml":
        return inspect.encode_yaml(report)
    return inspect_text.wide(report) if output == "wide" else inspect_text.table(report)


def _draw(report: inspect.Inspection) -> None:
    # Late: a tenth of a second that pipes and scripts need not pay.
    from rich.console import Console

    from fractile.cli.inspect_tree import draw

    draw(report, Console())
