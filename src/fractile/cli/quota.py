"""``fractile quota``: what namespaces may hold, and what they hold. Reads only the API server."""

import asyncio
import logging
from pathlib import Path

import click

from fractile.cli.options import api_server
from fractile.cli.text import quota
from fractile.errors import ApiError, Unreachable
from fractile.kube import paths
from fractile.kube.client import KubeClient
from fractile.reports import reading
from fractile.wire.files.quota_file import DEFAULT_SOURCE, KEPT
from fractile.wire.fractile.extended_resource import ExtendedResource
from fractile.wire.kubernetes.objects import ConfigMap, Node, Pod, ResourceQuota
from fractile.wire.output import quota_report
from fractile.wire.output.quota_report import QuotaReport


@click.command("quota")
@click.option(
    "-n",
    "--namespace",
    default="",
    metavar="NAMESPACE",
    shell_complete=api_server.complete_namespace,
    help="Only this namespace; default: all.",
)
@click.option(
    "-o",
    "--output",
    type=click.Choice(["table", "json", "yaml"]),
    default="table",
    show_default=True,
    help="json, yaml: the fields of docs/operate/quota.md.",
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
    namespace: str, output: str, quota_configmap: str, kubeconfig: Path | None, context: str, name: str
) -> None:
    """Show how many cards each namespace may hold, by model and pool, and how many it holds, by class, model and pool.

    Cards are counted in hundredths: half of a card is 0.5. Kubernetes' own ResourceQuotas on resources of Fractile
    are shown too. Everything is read from the API server, so this works while Fractile's control plane is down.
    """
    # ``fractile inspect`` shows the pods with rejected placements that the handlers would log.
    logging.getLogger("fractile").addHandler(logging.NullHandler())
    if quota_configmap.count("/") != 1:
        raise click.BadParameter(f"{quota_configmap!r} is not NAMESPACE/NAME", param_hint="--quota-configmap")
    client = KubeClient(api_server.credentials(kubeconfig, context, name))
    report = asyncio.run(_report(client, quota_configmap, namespace))
    if output == "json":
        click.echo(quota_report.encode(report))
    elif output == "yaml":
        click.echo(quota_report.encode_yaml(report), nl=False)
    else:
        click.echo(quota.table(report), nl=False)


async def _report(client: KubeClient, source: str, namespace: str) -> QuotaReport:
    # Imported late: numpy takes a tenth of a second, which --help should not wait for.
    from fractile.reports.quota import QuotaObjects, report

    async with client:
        unread: list[str] = []
        config_unread = False
        config = None
        try:
            config = await _config(client, source)
        except ApiError as e:
            config_unread = True
            unread.append(f"ConfigMap {source} cannot be read: {e.message}")
        objects = QuotaObjects(
            cards=await reading.read(client, paths.extended_resources(), ExtendedResource),
            nodes=await reading.read(client, paths.nodes(), Node),
            pods=await reading.read(client, paths.pods(namespace), Pod),
            config=config,
            kept=await _kept(client),
            resource_quotas=await _optional(client, paths.resource_quotas(namespace), unread),
            unread=tuple(unread),
            config_unread=config_unread,
        )
    return report(objects, source, namespace)


async def _config(client: KubeClient, source: str) -> ConfigMap | None:
    try:
        return await client.get(paths.config_map(*source.split("/")), ConfigMap)
    except ApiError as e:
        if e.code == 404:
            return None
        raise
    except Unreachable as e:
        raise reading.no_answer(e) from None


async def _kept(client: KubeClient) -> ConfigMap | None:
    """The kept quotas, or None if they cannot be read: they only matter while the ConfigMap of quotas is malformed."""
    try:
        return await _config(client, KEPT)
    except ApiError:
        return None


async def _optional(client: KubeClient, path: str, unread: list[str]) -> list[ResourceQuota]:
    """The ResourceQuotas; none, and a note in ``unread``, if the credentials may not read them."""
    try:
        return (await client.list(path, ResourceQuota))[0]
    except ApiError as e:
        unread.append(f"ResourceQuotas cannot be read: {e.message}")
        return []
