"""``fractile why``: why a pod waits, or where it runs and what it holds. Reads only the API server."""

import asyncio
import logging
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fractile.cli.options import api_server
from fractile.cli.text import why
from fractile.errors import SetupError
from fractile.kube.client import KubeClient
from fractile.kube.credentials import Credentials
from fractile.wire.files.quota_file import DEFAULT_SOURCE
from fractile.wire.output import why as wire

if TYPE_CHECKING:
    from fractile.wire.output.why import Why


@click.command("why")
@click.argument("pod", metavar="POD", shell_complete=api_server.complete_pod)
@click.option(
    "-n",
    "--namespace",
    default="",
    metavar="NAMESPACE",
    shell_complete=api_server.complete_namespace,
    help="Namespace of the pod; default: that of the context.",
)
@click.option(
    "-o",
    "--output",
    type=click.Choice(["table", "json"]),
    default="table",
    show_default=True,
    help="json: the fields of docs/use/why.md.",
)
@click.option(
    "--quota-configmap",
    default=DEFAULT_SOURCE,
    show_default=True,
    metavar="NAMESPACE/NAME",
    help="The ConfigMap with the quotas that the control plane applies.",
)
@api_server.cluster_options
def command(
    pod: str, namespace: str, output: str, quota_configmap: str, kubeconfig: Path | None, context: str, name: str
) -> None:
    """Show why POD waits and what would make it fit; or where it runs, what it holds, and what it uses.

    \b
    fractile why trainer -n team-a
    fractile why team-a/trainer -o json

    Nodes are judged by the code of the scheduler extender, and each change that is named has been tried. Everything is
    read from the API server; what a running pod uses is read through it from the node's agent. Nothing is written.
    """
    # The report lists the pods with rejected placements that the handlers would log.
    logging.getLogger("fractile").addHandler(logging.NullHandler())
    if quota_configmap.count("/") != 1:
        raise click.BadParameter(f"{quota_configmap!r} is not NAMESPACE/NAME", param_hint="--quota-configmap")
    credentials = api_server.credentials(kubeconfig, context, name)
    where, named = _named(pod, namespace)
    found = asyncio.run(_report(credentials, where or credentials.namespace, named, quota_configmap))
    click.echo(wire.encode(found) if output == "json" else why.text(found), nl=output == "json")


def _named(pod: str, namespace: str) -> tuple[str, str]:
    """Split into namespace and name. Accepts ``team-a/trainer``, as in events, and kubectl's ``pod/trainer``."""
    first, slash, last = pod.removeprefix("pods/").removeprefix("pod/").partition("/")
    if not slash:
        return namespace, first
    if namespace and namespace != first:
        raise click.UsageError(f"{pod} and --namespace {namespace} name two namespaces; give one of them")
    return first, last


async def _report(credentials: Credentials, namespace: str, name: str, source: str) -> "Why":
    # Imported late: numpy takes a tenth of a second, which --help and completion should not wait for.
    from fractile.reports.why.read import read
    from fractile.reports.why.report import report

    async with KubeClient(credentials) as client:
        found = await read(client, namespace, name, source=source)
    if not found.objects.cards:
        raise SetupError(
            "the cluster has no cards: no node's Fractile agent has reported any, so no pod gets one; "
            "check that `fractile agent` runs on the GPU nodes"
        )
    return report(found, datetime.now(UTC), source=source)
