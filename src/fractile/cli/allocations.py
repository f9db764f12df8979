"""``fractile allocations``: how much of each resource of each node pods take. Reads only the API server."""

import asyncio
from pathlib import Path

import click

from fractile.cli.options import api_server
from fractile.errors import SetupError
from fractile.kube import paths
from fractile.kube.client import KubeClient
from fractile.kube.credentials import Credentials
from fractile.policy.allocations import SORTS, Allocations, Filter, allocations, report
from fractile.reports import reading
from fractile.wire.kubernetes.pod_requests import CountedNode, CountedPod


@click.command("allocations")
@click.option(
    "--node",
    "nodes",
    multiple=True,
    metavar="NODE",
    shell_complete=api_server.complete_any_node,
    help="Name or 'glob*'.",
)
@click.option("--resource", "resources", multiple=True, metavar="NAME", help="Name or glob: 'nvidia.com/*'.")
@click.option("--only-extended", is_flag=True, help="Leave out CPU, memory and other built-in resources.")
@click.option(
    "--sort",
    type=click.Choice(SORTS),
    default="node",
    show_default=True,
    help="Order of the table; amounts in descending order.",
)
@click.option(
    "-o",
    "--output",
    type=click.Choice(["table", "json", "yaml"]),
    default="table",
    show_default=True,
    help="json, yaml: the fields of docs/reference/allocations.md, exact.",
)
@api_server.cluster_options
def command(
    nodes: tuple[str, ...],
    resources: tuple[str, ...],
    only_extended: bool,
    sort: str,
    output: str,
    kubeconfig: Path | None,
    context: str,
    name: str,
) -> None:
    """Show requests and limits of pods against what nodes can allocate, for every resource, and what is free.

    \b
    fractile allocations --only-extended
    fractile allocations --resource 'nvidia.com/*' --sort free
    fractile allocations --node worker-1 -o json

    Pods count as kube-scheduler counts them: init containers, sidecars and overhead, until they have ended. Everything
    is read from the API server; Fractile itself need not be installed on the cluster.
    """
    shown = Filter(nodes, resources, only_extended)
    found = asyncio.run(_allocations(api_server.credentials(kubeconfig, context, name), shown))
    click.echo(_as_text(found, output, sort), nl=False)


async def _allocations(who: Credentials, shown: Filter) -> Allocations:
    async with KubeClient(who) as client:
        nodes = await reading.read(client, paths.nodes(), CountedNode)
        pods = await reading.read(client, paths.pods(), CountedPod)
    for glob in shown.nodes:
        if not any(Filter((glob,)).node(node.metadata.name) for node in nodes):
            known = reading.listed(sorted(node.metadata.name for node in nodes)) or "none"
            raise SetupError(f"no node matches {glob!r}; the nodes are: {known}")
    return allocations(nodes, pods, shown)


def _as_text(found: Allocations, output: str, sort: str) -> str:
    # Imported late: --help and completion need neither module.
    from fractile.cli.text import allocations as allocations_text
    from fractile.wire.output import allocation_report

    if output == "json":
        return allocation_report.encode(report(found)) + "\n"
    if output == "yaml":
        return allocation_report.encode_yaml(report(found))
    return allocations_text.table(found, sort)
