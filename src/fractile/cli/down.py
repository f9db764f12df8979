"""`fractile down`: stops a local cluster and removes it."""

from time import monotonic

import click

from fractile.cli.options.cluster_name import name_option
from fractile.lab.cluster import kept_logs
from fractile.lab.cluster.down import down
from fractile.lab.layout import default_clusters_dir, layout
from fractile.lab.progress import Progress


@click.command("down")
@name_option
@click.option("--delete-logs", is_flag=True, help="Also remove its logs, even if the cluster is already down.")
def command(name: str, delete_logs: bool) -> None:
    """Stop a local cluster and remove everything that it put on this machine except the last part of each log.

    At most 1 MiB of each log and 64 MiB in all are kept, beside the folder of the clusters; the next run replaces
    them. Safe to repeat.
    """
    began = monotonic()
    place = layout(default_clusters_dir(), name)
    was_there = down(place, Progress(lambda line: click.echo(line, err=True)), keep_logs=not delete_logs)
    if was_there:
        click.echo(f"Cluster {name} is down, {monotonic() - began:.1f} s.")
    if delete_logs and kept_logs.delete(place):
        click.echo(f"The logs of cluster {name} are removed.")
    elif not was_there:
        kept = f"; the logs of the last one are in {place.kept_logs}" if place.kept_logs.exists() else ""
        click.echo(f"There is no cluster {name}: nothing to do{kept}.")
