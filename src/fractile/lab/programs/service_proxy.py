"""Wiring of ``fractile service-proxy``, which replaces kube-proxy for the Services of a local cluster."""

import asyncio
from pathlib import Path

import click

from fractile.errors import SetupError
from fractile.kube import credentials
from fractile.kube.client import KubeClient
from fractile.lab.machine.service_proxy import Forward, ServiceProxy
from fractile.main.logs import set_up_logging
from fractile.main.signals import told_to_stop


@click.command("service-proxy")
@click.option("--kubeconfig", type=click.Path(path_type=Path), help="Kubeconfig whose user may read endpoints.")
@click.option(
    "--forward",
    "forwards",
    multiple=True,
    required=True,
    metavar="PORT=NAMESPACE/SERVICE",
    help="A port of the loopback address, and the Service to whose ready endpoints it leads.",
)
@click.option("--log-level", default="info", type=click.Choice(["debug", "info", "warning", "error"]))
def command(kubeconfig: Path | None, forwards: tuple[str, ...], log_level: str) -> None:
    """Forward connections to the ready endpoints of Services, in a cluster without kube-proxy."""
    set_up_logging(log_level)
    asyncio.run(run([forward_of(text) for text in forwards], kubeconfig=kubeconfig))


async def run(forwards: list[Forward], *, kubeconfig: Path | None) -> None:
    """Serve until SIGTERM or SIGINT."""
    async with KubeClient(credentials.load(kubeconfig)) as client, asyncio.TaskGroup() as tasks:
        serving = tasks.create_task(ServiceProxy(client, forwards).run())
        await told_to_stop()
        serving.cancel()


def forward_of(text: str) -> Forward:
    port, equals, service = text.partition("=")
    namespace, slash, name = service.partition("/")
    if not (equals and slash and port.isascii() and port.isdigit() and namespace and name):
        raise SetupError(f"--forward {text!r} is not PORT=NAMESPACE/SERVICE; write for example 8443=team/web")
    return Forward(int(port), namespace, name)
