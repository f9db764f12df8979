"""Chooses the cluster for the commands that only need its API server."""

from collections.abc import Callable, Mapping
from pathlib import Path

import click

from fractile.errors import SetupError
from fractile.lab.layout import DEFAULT_NAME, ClusterLayout, cluster_names, layout
from fractile.lab.machine.processes import running

_API_SERVER = "kube-apiserver"


def api_server_runs(place: ClusterLayout) -> bool:
    return running(place.record(_API_SERVER)) is not None


def find_kubeconfig(
    *,
    given: Path | None,
    name: str,
    environ: Mapping[str, str],
    clusters: Path,
    runs: Callable[[ClusterLayout], bool] = api_server_runs,
) -> Path | None:
    """The kubeconfig to use; None leaves the choice to ``kube.credentials.load``.

    In this order: ``given`` (--kubeconfig); the local cluster ``name`` (--name); $KUBECONFIG; the local cluster
    called fractile, if it runs; in-cluster credentials and ~/.kube/config.
    """
    if given is not None and name:
        raise click.UsageError("--kubeconfig and --name both choose a cluster; give one of them")
    if given is not None:
        return given
    if name:
        return _local(name, clusters)
    if environ.get("KUBECONFIG"):
        return None
    default = layout(clusters, DEFAULT_NAME)
    return default.kubeconfig if default.kubeconfig.is_file() and runs(default) else None


def _local(name: str, clusters: Path) -> Path:
    place = layout(clusters, name)
    if place.kubeconfig.is_file():
        return place.kubeconfig
    known = ", ".join(cluster_names(clusters)) or "none"
    raise SetupError(
        f"there is no local cluster {name!r} (there are: {known}); start it with `fractile up --name {name}`"
    )
