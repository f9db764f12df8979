"""``fractile scheduler-config``: prints a configuration for kube-scheduler. Offline; needs no cluster."""

import click

from fractile.cli.options import scheduler_options
from fractile.cli.options.scheduler_options import Chosen
from fractile.cli.text import scheduler_config
from fractile.wire.kubernetes import scheduler_config as wire


@click.command("scheduler-config")
@click.option(
    "--kubernetes",
    required=True,
    metavar="VERSION",
    shell_complete=scheduler_options.complete_version,
    help="Version of kube-scheduler, 1.20 to 1.36.",
)
@scheduler_options.options
@click.option(
    "--kubeconfig", default=wire.KUBECONFIG, show_default=True, metavar="FILE", help="Kubeconfig of kube-scheduler."
)
@click.option(
    "--install",
    type=click.Choice(["kubeadm"]),
    help="Print what to configure in this installer, instead of the configuration itself.",
)
def command(chosen: Chosen, kubernetes: str, kubeconfig: str, install: str | None) -> None:
    """Print a configuration for kube-scheduler that packs nodes, calls Fractile's extender, or both.

    \b
    fractile scheduler-config --kubernetes 1.28 --resources nvidia.com/gpu=5,cpu=3,memory=1
    fractile scheduler-config --kubernetes 1.20 --policy most-allocated --resources cpu,memory
    fractile scheduler-config --kubernetes 1.36 --profile packed --policy most-allocated
    fractile scheduler-config --kubernetes 1.36 --extender https://fractile:8443/scheduler \\
        --tls-ca /etc/fractile/ca.crt --tls-cert /etc/fractile/tls.crt --tls-key /etc/fractile/tls.key
    fractile scheduler-config --kubernetes 1.33 --install kubeadm

    Its first lines say where to put it. Each form has been tested with the real kube-scheduler of that version:
    docs/operate/scheduler-config.md.
    """
    wish = scheduler_options.wish(chosen, scheduler_options.version(kubernetes), kubeconfig=kubeconfig)
    text = scheduler_config.configuration(wish)  # also with --install, so that invalid options are refused
    click.echo(scheduler_config.kubeadm(wish) if install else text, nl=False)
