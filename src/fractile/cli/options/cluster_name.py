"""The option --name of the commands for local clusters, with completion of the existing names."""

from collections.abc import Callable
from typing import TypeVar

import click
from click.shell_completion import CompletionItem

from fractile.lab.layout import DEFAULT_NAME, cluster_names, default_clusters_dir

F = TypeVar("F", bound=Callable[..., object])


def complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    return [CompletionItem(n) for n in cluster_names(default_clusters_dir()) if n.startswith(incomplete)]


def name_option(function: F) -> F:
    option = click.option(
        "--name",
        default=DEFAULT_NAME,
        show_default=True,
        metavar="CLUSTER",
        shell_complete=complete,
        help="The name of the cluster.",
    )
    return option(function)
