"""``fractile classes``: the device classes that pods can request, and what is free. Reads only the API server."""

import asyncio
import logging
import sys
from pathlib import Path

import click

from fractile.cli.options.api_server import cluster_options, complete_class, credentials
from fractile.cli.text import classes as classes_text
from fractile.kube import paths
from fractile.kube.client import KubeClient
from fractile.kube.credentials import Credentials
from fractile.reports.reading import one_of, read
from fractile.wire.fractile.extended_resource import ExtendedResource
from fractile.wire.fractile.resource_class import ResourceClass
from fractile.wire.kubernetes.objects import Node, Pod
from fractile.wire.output import class_report
from fractile.wire.output.class_report import ClassReport, DeviceReport


@click.command("classes")
@click.argument("name_of_class", metavar="[NAME]", required=False, shell_complete=complete_class)
@click.option(
    "-o",
    "--output",
    type=click.Choice(["table", "wide", "json", "yaml"]),
    default="table",
    show_default=True,
    help="wide: also selectors and nodes. json, yaml: the fields of docs/reference/class-reports.md.",
)
@cluster_options
def command(name_of_class: str | None, output: str, kubeconfig: Path | None, context: str, name: str) -> None:
    """Show the classes of devices that containers can ask for by name, or everything about class NAME.

    \b
    UNIT          what a container gets for each unit it asks for: whole devices, or a part of one
    FREE/DEVICES  devices of which no pod holds a part / all devices of the class
    FREE/UNITS    units that still fit / units that would fit if no pod held any

    A container asks for units by limits such as class.fractile.dev/NAME: 1. A device may be in several classes; each
    class counts the whole device. Everything is read from the API server, so this works while Fractile's control plane
    is down.
    """
    logging.getLogger("fractile").addHandler(logging.NullHandler())
    report, devices = asyncio.run(_report(credentials(kubeconfig, context, name), name_of_class or ""))
    if output in ("json", "yaml"):
        text = class_report.encode(report) + "\n" if output == "json" else class_report.encode_yaml(report)
        click.echo(text, nl=False)
    elif output == "table" and sys.stdout.isatty():
        _draw(report, devices if name_of_class else None)
    elif output == "wide":
        click.echo(classes_text.wide(report), nl=False)
    else:
        click.echo(classes_text.one(report, devices) if name_of_class else classes_text.table(report), nl=False)


async def _report(who: Credentials, only: str) -> tuple[ClassReport, DeviceReport]:
    """All classes, or only class ``only`` together with its devices."""
    # Imported late: numpy takes a tenth of a second, which --help and completion should not wait for.
    from fractile.reports.classes import ClassObjects, DeviceFilter, Picture

    async with KubeClient(who) as client:
        classes = await read(client, paths.resource_classes(), ResourceClass)
        one_of("class", only, (c.metadata.name for c in classes))
        objects = ClassObjects(
            classes=classes,
            cards=await read(client, paths.extended_resources(), ExtendedResource),
            nodes=await read(client, paths.nodes(), Node),
            pods=await read(client, paths.pods(), Pod),
        )
    picture = Picture(objects)
    return picture.classes(only), picture.devices(DeviceFilter(device_class=only)) if only else DeviceReport(devices=())


def _draw(report: ClassReport, devices: DeviceReport | None) -> None:
    # Imported late: rich takes a tenth of a second, which pipes and scripts should not wait for.
    from rich.console import Console

    from fractile.cli.text.classes_tree import draw_classes

    draw_classes(report, devices, Console())
