"""Wiring of ``fractile replica-proxy``, which replaces a Service in front of several control planes on one machine."""

import asyncio
import ssl
from pathlib import Path

import click

from fractile.errors import SetupError
from fractile.lab.machine.replica_proxy import ReplicaFront, ReplicaProxy
from fractile.main.logs import set_up_logging
from fractile.main.signals import told_to_stop


@click.command("replica-proxy")
@click.option(
    "--ca",
    type=click.Path(path_type=Path),
    required=True,
    help="PEM file of the certificate authority (CA) that signed the replicas' certificates.",
)
@click.option("--ports", required=True, metavar="PORT,...", help="Ports of the loopback address to serve on.")
@click.option(
    "--replica",
    "replicas",
    multiple=True,
    required=True,
    metavar="PORT,...",
    help="The same ports of one replica, in that order; the first answers /readyz over TLS.",
)
@click.option("--log-level", default="info", type=click.Choice(["debug", "info", "warning", "error"]))
def command(ca: Path, ports: str, replicas: tuple[str, ...], log_level: str) -> None:
    """Forward connections to the leading one of several control planes on this machine."""
    front = front_of(ports, replicas)
    try:
        trust = ssl.create_default_context(cafile=ca)
    except OSError as e:
        raise SetupError(f"--ca {ca} holds no PEM certificate: {e}") from None
    set_up_logging(log_level)
    asyncio.run(run(front, trust))


async def run(front: ReplicaFront, trust: ssl.SSLContext) -> None:
    """Serve until SIGTERM or SIGINT."""
    async with asyncio.TaskGroup() as tasks:
        serving = tasks.create_task(ReplicaProxy(front, trust).run())
        await told_to_stop()
        serving.cancel()


def front_of(ports: str, replicas: tuple[str, ...]) -> ReplicaFront:
    front = ReplicaFront(_numbers(ports), tuple(_numbers(text) for text in replicas))
    if odd := [text for text, one in zip(replicas, front.replicas, strict=True) if len(one) != len(front.ports)]:
        raise SetupError(f"--replica {odd[0]!r} does not have as many ports as --ports {ports!r}")
    return front


def _numbers(text: str) -> tuple[int, ...]:
    parts = text.split(",")
    if not all(part.isascii() and part.isdigit() and 0 < int(part) < 2**16 for part in parts):
        raise SetupError(f"{text!r} is not a list of ports; write for example 8443,9443")
    return tuple(int(part) for part in parts)
