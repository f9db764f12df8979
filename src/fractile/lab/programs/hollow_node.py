"""Wiring of ``fractile hollow-node``: a node without a real kubelet, for clusters without root or containerd."""

import asyncio
import random
from pathlib import Path

import click

from fractile.errors import SetupError
from fractile.kube import credentials
from fractile.kube.client import KubeClient
from fractile.lab.hollow.node import HollowNode
from fractile.main.logs import set_up_logging
from fractile.main.signals import told_to_stop
from fractile.model.units import NodeName

_SOCKET_PATH = 107  # bytes that the kernel allows
_LONGEST = "/device-plugins/fractile-vcuda-memory-12345678.sock"


@click.command("hollow-node")
@click.option("--node-name", required=True, help="Name of the node.")
@click.option("--kubeconfig", type=click.Path(path_type=Path), help="Kubeconfig whose user may write nodes and pods.")
@click.option("--root", type=click.Path(path_type=Path), required=True, help="Folder for its sockets and files.")
@click.option("--log-level", default="info", type=click.Choice(["debug", "info", "warning", "error"]))
def command(node_name: str, kubeconfig: Path | None, root: Path, log_level: str) -> None:
    """Run a node without kubelet for clusters without root.

    It acts as kubelet's device manager for a real agent, which must be started with --device-plugin-dir
    ROOT/device-plugins and --pod-resources-socket ROOT/pod-resources/kubelet.sock. Its pods have no processes; what
    their containers would get is written to ROOT/pods/UID/CONTAINER.json.
    """
    set_up_logging(log_level)
    path = root.absolute()
    if len(f"{path}{_LONGEST}") > _SOCKET_PATH:
        raise SetupError(f"{path} is too long for unix sockets in it; give a --root below 60 characters")
    asyncio.run(run(path, node=NodeName(node_name), kubeconfig=kubeconfig))


async def run(root: Path, *, node: NodeName, kubeconfig: Path | None) -> None:
    """Serve until SIGTERM or SIGINT."""
    async with KubeClient(credentials.load(kubeconfig)) as client, asyncio.TaskGroup() as tasks:
        playing = tasks.create_task(HollowNode(client, node=node, root=root, rng=random.Random()).run())
        await told_to_stop()
        playing.cancel()
