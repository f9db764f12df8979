"""`fractile demo`, which `make demo` runs: starts a cluster, runs the demonstrations on it, and prints how to go on."""

import time
from collections.abc import Sequence
from pathlib import Path

import click

from fractile.cli.options.cluster_name import name_option
from fractile.errors import FractileError, SetupError
from fractile.lab.cluster.local import LocalCluster
from fractile.lab.cluster.stage import LocalStage, demo_spec
from fractile.lab.cluster.up import UpOptions
from fractile.lab.demos import card_use
from fractile.lab.demos.demos import DEMOS, Demo
from fractile.lab.demos.workload import DemoWorkload
from fractile.lab.layout import DEFAULT_NAME
from fractile.lab.progress import Progress

NAMESPACE = "demo"
_NAMED = 5
_NEEDS_KUBELET = {"shapes", "inside", "fifty"}  # they inspect containers, which hollow nodes do not have


@click.command("demo")
@name_option
@click.option(
    "--only",
    type=click.Choice([d.name for d in DEMOS]),
    multiple=True,
    help="Run only this demonstration; may be repeated.",
)
@click.option("--down", "stop", is_flag=True, help="Stop the cluster afterwards.")
def command(name: str, only: tuple[str, ...], stop: bool) -> None:
    """Run the demonstrations on a local cluster and explain what happened.

    Starts the cluster if it does not run, and leaves it running for you to try more. Safe to run again, even after an
    interruption.
    """
    began = time.monotonic()
    click.echo(f"Starting cluster {name} (the first time builds Kubernetes, which takes minutes):", err=True)
    cluster = LocalCluster(name, progress=Progress(lambda line: click.echo(line, err=True)))
    try:
        cluster.up(UpOptions(spec=demo_spec(name)))
    except SetupError as e:
        raise SetupError(f"{e} (the demonstrations need a cluster of their own: --name, or fractile down)") from None
    failed = _run(cluster, [d for d in DEMOS if not only or d.name in only])
    if stop:
        cluster.down(keep_logs=bool(failed))
    else:
        click.echo(how_to_go_on(name, cluster.kubeconfig))
    if failed:
        logs = cluster.place.kept_logs if stop else cluster.logs
        raise FractileError(f"{len(failed)} demonstrations failed: {', '.join(failed)}; logs are in {logs}")
    click.echo(f"All demonstrations succeeded, in {time.monotonic() - began:.0f} s.")


def _run(cluster: LocalCluster, demos: list[Demo]) -> list[str]:
    stage = LocalStage(cluster)
    work = DemoWorkload(cluster.kubectl, NAMESPACE, told=lambda line: click.echo(f"   {line}"))
    work.create_namespace()
    work.delete()  # pods of a run that was interrupted
    if found := list(card_use.others(cluster.kubectl, NAMESPACE)):
        click.echo(in_the_way(cluster.name, found))
    failed: list[str] = []
    for number, demo in enumerate(demos, 1):
        click.secho(f"\n{number}. {demo.title}", bold=True)
        if cluster.hollow and demo.name in _NEEDS_KUBELET:
            click.echo("   skipped: it needs real containers, and the nodes of this cluster are hollow")
            continue
        began = time.monotonic()
        try:
            for line in demo.run(stage, work):
                click.echo(f"   {line}")
            click.echo(f"   ({time.monotonic() - began:.1f} s)")
        except FractileError as e:
            failed.append(demo.name)
            click.secho(f"   FAILED: {e}", fg="red")
            _clean_up(work)
    return failed


def _clean_up(work: DemoWorkload) -> None:
    """Delete the pods of a failed demonstration, since the next one needs the cards."""
    try:
        work.delete()
    except FractileError as e:
        click.echo(f"   and its pods could not be removed: {e}")


def in_the_way(cluster: str, held: Sequence[str]) -> str:
    """Say which pods may make demonstrations fail, and what to do about them."""
    named = ", ".join(held[:_NAMED]) + (f" and {len(held) - _NAMED} more" if len(held) > _NAMED else "")
    return (
        f"Pods of other namespaces hold parts of cards: {named}. Demonstrations that need those cards may fail. To "
        f"delete such a pod: fractile kubectl{_option(cluster)} delete pod POD -n NAMESPACE"
    )


def _option(cluster: str) -> str:
    return "" if cluster == DEFAULT_NAME else f" --name {cluster}"


def how_to_go_on(cluster: str, kubeconfig: Path) -> str:
    """The closing lines of the output, which README.md shows too."""
    name = _option(cluster)
    return f"""
The cluster keeps running. To go on (in a clone, the program is .venv/bin/fractile):
   fractile inspect{name}                  cards, and the pods that share them
   fractile kubectl{name} apply -f examples/1-packed.yaml
   export KUBECONFIG={kubeconfig}
   fractile down{name}                     stop it; the last part of each log is kept"""
