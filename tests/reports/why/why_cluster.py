"""A small cluster at the wire, and ``fractile why`` as a person runs it there."""

import asyncio
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result

from fractile.cli.why import command
from fractile.errors import SetupError
from fractile.kube import paths
from fractile.kube.client import KubeClient
from fractile.reports.why.read import read
from fractile.reports.why.report import report
from fractile.wire.files.quota_file import DEFAULT_SOURCE
from fractile.wire.output.why import Why, decode
from tests.fakes.apiserver import FakeApiServer
from tests.reports.objects import MEMORY, card, container, node, placed, pod

Body = dict[str, Any]
REFUSED = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes are available"}


def machine(name: str, *, cpu: str = "8", taint: bool = False) -> Body:
    made = node(name, gpu_mem=MEMORY)
    made["status"]["allocatable"] = {"cpu": cpu, "memory": "64Gi", "pods": "110"}
    if taint:
        made["spec"] = {"taints": [{"key": "team", "value": "b", "effect": "NoSchedule"}]}
    return made


def waiting(name: str, *containers: Body, seen: bool = True, **spec: Any) -> Body:
    """A pod that kube-scheduler has refused, or that it has never looked at."""
    made = pod(name, *containers)
    made["spec"] |= {"schedulerName": "default-scheduler"} | spec
    made["status"] |= {"conditions": [REFUSED]} if seen else {}
    return made


def fill(server: FakeApiServer) -> FakeApiServer:
    """n1 and n2 with a card each, of which 8138 MiB are free; n3 with an empty card and a taint."""
    for name in ("n1", "n2", "n3"):
        server.create(paths.nodes(), machine(name, taint=name == "n3"))
        server.create(paths.extended_resources(), card(name, 0))
    for name in ("n1", "n2"):
        held = placed(name, main=(0, 8138))
        server.create(paths.pods("default"), pod(f"on-{name}", container("main", 8138), on=name, placed=held))
    return server


async def run(server: FakeApiServer, folder: Path, *args: str) -> Result:
    arguments = ["--kubeconfig", str(server.write_kubeconfig(folder / "kubeconfig")), *args]
    return await asyncio.to_thread(CliRunner().invoke, command, arguments)


async def text(server: FakeApiServer, folder: Path, *args: str) -> str:
    result = await run(server, folder, *args)
    assert result.exception is None, result.exception
    return result.output


async def why(server: FakeApiServer, folder: Path, *args: str) -> Why:
    return decode(await text(server, folder, *args, "-o", "json"))


async def refused(server: FakeApiServer, folder: Path, *args: str) -> str:
    result = await run(server, folder, *args)
    assert isinstance(result.exception, SetupError), result.output
    return str(result.exception)


async def later(server: FakeApiServer, name: str, *, seconds: float) -> Why:
    """What it says when the pod is so old."""
    async with KubeClient(server.credentials()) as client:
        found = await read(client, "default", name)
    created = datetime.fromisoformat(found.pod.metadata.creation_timestamp or "")
    return report(found, created + timedelta(seconds=seconds), source=DEFAULT_SOURCE)


def submit(server: FakeApiServer, body: Body) -> str:
    """The pod's UID."""
    uid: str = server.create(paths.pods("default"), body)["metadata"]["uid"]
    return uid
