"""`fractile prepare`: installs and builds what `fractile up` needs, and starts nothing."""

import os

import click

from fractile.lab.machine import native, packages, programs
from fractile.lab.progress import Progress


@click.command("prepare")
def command() -> None:
    """Install and build what a local cluster needs, without starting anything.

    Installs Debian packages for real nodes (as root). Builds the Kubernetes programs once from their Go modules, into
    the user's cache, unless KUBEBUILDER_ASSETS names a folder that has them; and the library and the simulated driver,
    where there is a C compiler. `fractile up` does the same when needed.
    """
    progress = Progress(lambda line: click.echo(line, err=True))
    hollow = packages.why_hollow(progress, os.environ)
    progress.line("nodes", f"will be hollow: {hollow}" if hollow else "can be real")
    if not hollow:
        native.ensure(os.environ, progress)
    programs.ensure(os.environ, progress, [n for n in programs.PACKAGES if not (hollow and n == "kubelet")])
