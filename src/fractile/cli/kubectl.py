"""`fractile kubectl`: replaces itself with kubectl, with the kubeconfig of a local cluster."""

import os

import click

from fractile.cli.options.cluster_name import name_option
from fractile.lab.cluster.local import kubectl_command
from fractile.lab.layout import default_clusters_dir, layout


@click.command(
    "kubectl",
    # Everything from the first argument that is not ours goes to kubectl, --help too.
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
    add_help_option=False,
)
@name_option
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
def command(name: str, args: tuple[str, ...]) -> None:
    """Run kubectl against a local cluster: fractile kubectl [--name NAME] ARGS..."""
    program, argv, env = kubectl_command(layout(default_clusters_dir(), name), args)
    os.execve(program, argv, env)
