"""How commands find the API server that they read: their options, and the completion of names."""

import asyncio
import contextlib
import os
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import TypeVar

import click
from click.shell_completion import CompletionItem

from fractile.cli.options import cluster_name
from fractile.cli.options.target import find_kubeconfig
from fractile.errors import ApiError, FractileError
from fractile.kube import paths
from fractile.kube.client import KubeClient
from fractile.kube.credentials import Credentials, load
from fractile.lab.layout import default_clusters_dir
from fractile.wire.fractile.extended_resource import ExtendedResource
from fractile.wire.fractile.resource_class import ResourceClass
from fractile.wire.kubernetes.objects import Namespace, Node, Pod

_COMPLETION_SECONDS = 1.5  # the user is waiting at the prompt

F = TypeVar("F", bound=Callable[..., object])
Complete = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]


def cluster_options(command: F) -> F:
    """Add the options --kubeconfig, --context and --name."""
    for option in (
        click.option(
            "--name",
            default="",
            metavar="CLUSTER",
            shell_complete=cluster_name.complete,
            help="A local cluster that `fractile up` started.",
        ),
        click.option(
            "--context", default="", metavar="NAME", help="Context of the kubeconfig; default: its current context."
        ),
        click.option("--kubeconfig", type=click.Path(path_type=Path), help="Kubeconfig file of the cluster."),
    ):
        command = option(command)
    return command


def credentials(kubeconfig: Path | None, context: str, name: str) -> Credentials:
    found = find_kubeconfig(given=kubeconfig, name=name, environ=os.environ, clusters=default_clusters_dir())
    return load(found, context=context)


# ── completion ──────────────────────────────────────────────────────────────────────────────────────────────────────


async def _classes(client: KubeClient) -> Iterable[str]:
    return (c.metadata.name for c in (await client.list(paths.resource_classes(), ResourceClass))[0])


async def _nodes(client: KubeClient) -> Iterable[str]:
    return (r.spec.node_name for r in (await client.list(paths.extended_resources(), ExtendedResource))[0])


async def _any_nodes(client: KubeClient) -> Iterable[str]:
    return (n.metadata.name for n in (await client.list(paths.nodes(), Node))[0])


async def _types(client: KubeClient) -> Iterable[str]:
    return (r.spec.type for r in (await client.list(paths.extended_resources(), ExtendedResource))[0])


async def _namespaces(client: KubeClient) -> Iterable[str]:
    return (n.metadata.name for n in (await client.list(paths.namespaces(), Namespace))[0])


async def _pods(client: KubeClient, namespace: str, current: str) -> Iterable[str]:
    """The names of the pods in the namespace that an option gives. Without that option: the names of the pods in the
    context's namespace, and all pods as namespace/name, which needs no option; the latter are left out if the user may
    not list all pods."""
    own = [p.metadata.name for p in (await client.list(paths.pods(namespace or current), Pod))[0]]
    if namespace:
        return own
    with contextlib.suppress(ApiError):
        own += [f"{p.metadata.namespace}/{p.metadata.name}" for p in (await client.list(paths.pods(), Pod))[0]]
    return own


def _completed_by(names: Callable[[KubeClient], Awaitable[Iterable[str]]]) -> Complete:
    return _completed(lambda client, _namespace, _current: names(client))


def _completed(names: Callable[[KubeClient, str, str], Awaitable[Iterable[str]]]) -> Complete:
    """A completion that offers nothing when the cluster does not answer, since a prompt has no place for errors."""

    def complete(ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
        chosen = ctx.params
        try:
            who = credentials(chosen.get("kubeconfig"), chosen.get("context") or "", chosen.get("name") or "")
            found = asyncio.run(_ask(who, chosen.get("namespace") or ""))
        except (FractileError, OSError, click.ClickException):  # TimeoutError is an OSError
            return []
        return [CompletionItem(name) for name in sorted(set(found)) if name.startswith(incomplete)]

    async def _ask(who: Credentials, namespace: str) -> Iterable[str]:
        async with asyncio.timeout(_COMPLETION_SECONDS), KubeClient(who) as client:
            return list(await names(client, namespace, who.namespace))

    return complete


complete_class = _completed_by(_classes)
complete_node = _completed_by(_nodes)
complete_any_node = _completed_by(_any_nodes)
complete_namespace = _completed_by(_namespaces)
complete_pod = _completed(_pods)
complete_type = _completed_by(_types)
