"""``fractile devices``: the devices of the cluster, and the pods that hold them. Reads only the API server."""

import asyncio
import logging
import sys
from pathlib import Path

import click

from fractile.cli.options.api_server import cluster_options, complete_class, complete_node, complete_type, credentials
from fractile.cli.text import devices
from fractile.kube import paths
from fractile.kube.client import KubeClient
from fractile.kube.credentials import Credentials
from fractile.reports.reading import one_of, read
from fractile.wire.fractile.extended_resource import ExtendedResource
from fractile.wire.fractile.resource_class import ResourceClass
from fractile.wire.kubernetes.objects import Node, Pod
from fractile.wire.output import class_report
from fractile.wire.output.class_report import DeviceReport


@click.command("devices")
@click.option(
    "--class", "of_class", default="", metavar="C", shell_complete=complete_class, help="Only devices of class C."
)
@click.option("--free", is_flag=True, help="Only healthy devices of which no pod holds a part.")
@click.option("--node", default="", metavar="N", shell_complete=complete_node, help="Only devices of node N.")
@click.option(
    "--type",
    "of_type",
    default="",
    metavar="T",
    shell_complete=complete_type,
    help="Only devices of type T, such as gpu.",
)
@click.option(
    "-o",
    "--output",
    type=click.Choice(["table", "wide", "json", "yaml"]),
    default="table",
    show_default=True,
    help="wide: also ids and classes. json, yaml: the fields of docs/reference/class-reports.md.",
)
@cluster_options
def command(
    of_class: str,
    free: bool,
    node: str,
    of_type: str,
    output: str,
    kubeconfig: Path | None,
    context: str,
    name: str,
) -> None:
    """Show devices one by one: cards, and all other devices that the nodes have published.

    \b
    PHASE   Available, PartlyBound, Bound; Pending (no agent), Unhealthy, Lost: no pod is placed on these three
    HELD    held by pods / in all: memory of a card, shares of another device

    Everything is read from the API server, so this works while Fractile's control plane is down.
    """
    logging.getLogger("fractile").addHandler(logging.NullHandler())
    report = asyncio.run(_report(credentials(kubeconfig, context, name), of_class, node, of_type, free=free))
    if output == "table" and sys.stdout.isatty():
        _draw(report)
    else:
        click.echo(_as_text(report, output), nl=False)


def _as_text(report: DeviceReport, output: str) -> str:
    if output == "json":
        return class_report.encode(report) + "\n"
    if output == "yaml":
        return class_report.encode_yaml(report)
    return devices.wide(report) if output == "wide" else devices.table(report)


async def _report(who: Credentials, of_class: str, node: str, of_type: str, *, free: bool) -> DeviceReport:
    # Imported late: numpy takes a tenth of a second, which --help and completion should not wait for.
    from fractile.reports.classes import ClassObjects, DeviceFilter, Picture

    async with KubeClient(who) as client:
        cards = await read(client, paths.extended_resources(), ExtendedResource)
        one_of("node with devices", node, (c.spec.node_name for c in cards))
        one_of("device of type", of_type, (c.spec.type for c in cards))
        classes = await read(client, paths.resource_classes(), ResourceClass)
        one_of("class", of_class, (c.metadata.name for c in classes))
        objects = ClassObjects(
            cards=cards,
            classes=classes,
            nodes=await read(client, paths.nodes(), Node),
            pods=await read(client, paths.pods(), Pod),
        )
    return Picture(objects).devices(DeviceFilter(node, of_type, of_class, free))


def _draw(report: DeviceReport) -> None:
    # Imported late: rich takes a tenth of a second, which pipes and scripts should not wait for.
    from rich.console import Console

    from fractile.cli.text.classes_tree import draw_devices

    draw_devices(report, Console())
