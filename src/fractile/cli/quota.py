"""``fractile quota``: what namespaces may hold and hold. Reads the API server and nothing else."""

import asyncio
import logging
import os
from pathlib import Path
from typing import TypeVar

import click

from fractile.cli import cluster_name, quota_text
from fractile.cli.target import find_kubeconfig
from fractile.cluster.layout import default_clusters_dir
from fractile.errors import ApiError, FractileError, SetupError, Unreachable
from fractile.kube import paths
from fractile.kube.client import KubeClient
from fractile.kube.credentials import load
from fractile.wire import quota_report
from fractile.wire.extended_resource import ExtendedResource
from fractile.wire.objects import ConfigMap, Node, Pod, ResourceQuota
from fractile.wire.quota_file import DEFAULT_SOURCE
from fractile.wire.quota_report import QuotaReport

T = TypeVar("T")


@click.command("quota")
@click.option("-n", "--namespace", default="", metavar="NAMESPACE", help="Only this one; all when it is not given.")
@click.option(
    "-o",
    "--output",
    type=click.Choice(["table", "json", "yaml"]),
    default="table",
    show_default=True,
    help="json, yaml: the fields of docs/quota.md.",
)
@click.option(
    "--quota-configmap",
    default=DEFAULT_SOURCE,
    show_default=True,
    metavar="NAMESPACE/NAME",
    help="The ConfigMap that the control plane goes by.",
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
def command(
    namespace: str, output: str, quota_configmap: str, kubeconfig: Path | None, context: str, name: str
) -> None:
    """Show what namespaces may hold of cards, by model and pool, and what they hold, by class, model and pool.

    Cards are counted with two digits: half of a card is 0.5. Beside that stand Kubernetes' own ResourceQuotas on
    resources of Fractile. Everything is read from the API server, so this works while Fractile's control plane is down.
    """
    # What the feed would log about doubtful pods is in ``fractile inspect``.
    logging.getLogger("fractile").addHandler(logging.NullHandler())
    if quota_configmap.count("/") != 1:
        raise click.BadParameter(f"{quota_configmap!r} is not NAMESPACE/NAME", param_hint="--quota-configmap")
    found = find_kubeconfig(given=kubeconfig, name=name, environ=os.environ, clusters=default_clusters_dir())
    report = asyncio.run(_report(KubeClient(load(found, context=context)), quota_configmap, namespace))
    if output == "json":
        click.echo(quota_report.encode(report))
    elif output == "yaml":
        click.echo(quota_report.encode_yaml(report), nl=False)
    else:
        click.echo(quota_text.table(report), nl=False)


async def _report(client: KubeClient, source: str, namespace: str) -> QuotaReport:
    # Late: numpy is a tenth of a second that --help need not wait for.
    from fractile.control.quota_report import QuotaObjects, report

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
            cards=await _list(client, paths.extended_resources(), ExtendedResource),
            nodes=await _list(client, paths.nodes(), Node),
            pods=await _list(client, paths.pods(namespace), Pod),
            config=config,
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
        raise _no_answer(e) from None


async def _optional(client: KubeClient, path: str, unread: list[str]) -> list[ResourceQuota]:
    """What is left out, with a word about it, when these credentials may not read it."""
    try:
        return (await client.list(path, ResourceQuota))[0]
    except ApiError as e:
        unread.append(f"ResourceQuotas cannot be read: {e.message}")
        return []


async def _list(client: KubeClient, path: str, type: type[T]) -> list[T]:
    try:
        return (await client.list(path, type))[0]
    except Unreachable as e:
        raise _no_answer(e) from None
    except ApiError as e:
        raise SetupError(f"what is needed cannot be read ({e.message}); ask for the right to list {path}") from None


def _no_answer(error: FractileError) -> SetupError:
    return SetupError(f"the cluster does not answer ({error}); choose another with --kubeconfig, --context or --name")
