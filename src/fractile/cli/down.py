"""`fractile down`."""

from time import monotonic

import click

from fractile.cli.cluster_name import name_option
from fractile.cluster.down import down
from fractile.cluster.layout import default_clusters_dir, layout
from fractile.cluster.progress import Progress


@click.command("down")
@name_option
def command(name: str) -> None:
    """Stop a local cluster and remove everything that it put on this machine. Safe to repeat."""
    began = monotonic()
    place = layout(default_clusters_dir(), name)
    if down(place, Progress(lambda line: click.echo(line, err=True))):
        click.echo(f"Cluster {name} is down, {monotonic() - began:.1f} s.")
    else:
        click.echo(f"There is no cluster {name}: nothing to do.")
