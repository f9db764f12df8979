"""``fractile install-scheduler``: configures kube-scheduler of a kubeadm node to call Fractile, or undoes that."""

import os
import time
from datetime import UTC, datetime
from pathlib import Path

import click

from fractile.cli.options import scheduler_options
from fractile.cli.options.scheduler_options import Chosen
from fractile.cli.text import install_scheduler as text
from fractile.errors import SetupError
from fractile.kubeadm import certificates, files, install
from fractile.kubeadm.files import NodeRoot
from fractile.kubeadm.install import ManifestChange, Wait
from fractile.wire.foreign import proxy_variables, static_pod
from fractile.wire.foreign.static_pod import Manifest
from fractile.wire.kubernetes.scheduler_config import ExtenderConfig

_WAIT = 180.0  # seconds; kubelet sees the file within 20 s at most and gives the old program 30 s to end


class _Clock:
    def now(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


@click.command("install-scheduler")
@scheduler_options.options
@click.option(
    "--kubernetes",
    metavar="VERSION",
    shell_complete=scheduler_options.complete_version,
    help="Version of kube-scheduler; needed only if its image does not state it.",
)
@click.option("--dry-run", is_flag=True, help="Show what would change, without changing anything.")
@click.option("--undo", is_flag=True, help="Restore the original manifest, and remove the files that were written.")
@click.option(
    "--wait",
    type=click.FloatRange(0, 3600),
    default=_WAIT,
    show_default=True,
    metavar="SECONDS",
    help="How long kube-scheduler may take to become healthy before the change is undone; 0: do not wait.",
)
@click.option(
    "--root",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    default=Path("/"),
    metavar="DIR",
    help="Root of the node's file system, if not /; the --tls-... files are not read from it.",
)
def command(chosen: Chosen, kubernetes: str | None, dry_run: bool, undo: bool, wait: float, root: Path) -> None:
    """Edit kube-scheduler's static pod on this kubeadm control-plane node, with a backup, and check that it runs.

    \b
    fractile install-scheduler --extender https://10.96.0.77/scheduler \\
        --tls-ca ca.pem --tls-cert client.pem --tls-key client-key.pem --dry-run
    fractile install-scheduler --policy most-allocated
    fractile install-scheduler --undo

    Needs root. Run it on each control-plane node. A manifest that is not in kubeadm's form is left unchanged:
    docs/operate/install-scheduler.md.
    """
    if undo and (chosen.extender or chosen.policy):
        raise click.UsageError("--undo takes no configuration")
    if not undo and not (chosen.extender or chosen.policy):
        raise click.UsageError("give --extender URL, --policy POLICY, or both; or --undo")
    if root == Path("/") and not dry_run and os.geteuid() != 0:
        raise SetupError(
            "the manifests of a control-plane node belong to root; run the command with sudo, or with --dry-run"
        )
    place = NodeRoot(root)
    found = files.manifest(place)
    change = install.removal(place, found) if undo else _installation(place, found, chosen, kubernetes)
    if undo and not change.was.ours:
        click.echo("Nothing to undo: kube-scheduler reads no configuration of Fractile on this node.")
        if not dry_run:
            install.tidy(place, change.was)
    elif not undo and install.nothing_to_do(place, change):
        click.echo(f"Nothing to do: kube-scheduler already reads {change.will.ours}.")
    elif dry_run:
        click.echo(text.difference(place, change), nl=False)
    else:
        _apply(place, change, wait)


def _installation(place: NodeRoot, found: str, chosen: Chosen, kubernetes: str | None) -> ManifestChange:
    manifest = static_pod.read(found)
    told = scheduler_options.version(kubernetes) if kubernetes else None
    minor = install.version(manifest, told)
    wish = scheduler_options.wish(chosen, minor, kubeconfig=manifest.kubeconfig)
    change = install.install(place, found, wish, now=datetime.now(UTC))
    if wish.extender and (reason := _unreachable(wish.extender, manifest)):
        click.echo(text.unreachable(wish.extender.url, reason), err=True)
    return change


def _unreachable(extender: ExtenderConfig, manifest: Manifest) -> str:
    if found := proxy_variables.proxy(manifest.environment, extender.url):
        return (
            f"kube-scheduler's environment variables send its requests to the proxy {found[:200]}; add the extender's "
            "host to NO_PROXY"
        )
    return certificates.unreachable(extender)


def _apply(place: NodeRoot, change: ManifestChange, wait: float) -> None:
    if wait:
        click.echo(text.waiting(change, wait), err=True)
    try:
        outcome = install.apply(place, change, Wait(wait, _Clock()))
    except KeyboardInterrupt:
        click.echo(text.interrupted(), err=True)
        raise
    except PermissionError as e:
        raise SetupError(f"{e.filename} cannot be written; run the command as root, for example with sudo") from None
    if outcome.health and outcome.health.reason:
        raise SetupError(text.failed(change, outcome))
    click.echo(text.done(place, change, outcome), nl=False)
