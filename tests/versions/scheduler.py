"""One real kube-scheduler against a played API server, with a configuration that ``fractile scheduler-config`` printed.

What is changed in it for the test, and nothing else: JSON instead of protobuf towards the played server, no leader
election, and no ports that everybody may reach.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import yaml
from click.testing import CliRunner

from fractile.cli.scheduler_config import command
from fractile.kube import paths
from tests.fakes.apiserver import FakeApiServer

GPU = "nvidia.com/gpu"
NODES = ("node-1", "node-2")
CARDS = 8  # of each node
PACKAGED = 10  # pods of one GPU each
_WAIT = 90.0  # seconds, on a busy machine
_STEP = 0.1
_NOTICE = 0.5
_LAST_WITH_INSECURE_PORT = 22


class Printed(msgspec.Struct, frozen=True):
    """What the command printed for a version."""

    minor: int
    form: str
    text: str


def printed(minor: int, form: str, kubeconfig: Path, *args: str) -> Printed:
    """Run the command; its options decide about everything else."""
    options = ["--kubernetes", f"1.{minor}", "--form", form, "--kubeconfig", str(kubeconfig), *args]
    result = CliRunner().invoke(command, options)
    assert result.exit_code == 0, result.output
    return Printed(minor, form, result.stdout)


def flags(printed: Printed, kubeconfig: Path, folder: Path) -> list[str]:
    """The command line with which kube-scheduler gets it."""
    ports = ["--secure-port=0", *(["--port=0"] if printed.minor <= _LAST_WITH_INSECURE_PORT else [])]
    file = folder / "scheduler.yaml"
    if printed.form == "policy":
        file.write_text(printed.text)
        client = [f"--kubeconfig={kubeconfig}", "--kube-api-content-type=application/json"]
        return [f"--policy-config-file={file}", "--leader-elect=false", *client, *ports]
    document: dict[str, Any] = yaml.safe_load(printed.text)
    document["clientConnection"]["contentType"] = "application/json"
    document["leaderElection"] = {"leaderElect": False}
    file.write_text(yaml.safe_dump(document))
    return [f"--config={file}", *ports]


@asynccontextmanager
async def running(program: Path, arguments: list[str], folder: Path) -> AsyncGenerator[asyncio.subprocess.Process]:
    """It dies with the block, and with the tests, however they end."""
    log = folder / "kube-scheduler.log"
    with log.open("ab") as file:
        process = await asyncio.create_subprocess_exec(
            "setpriv", "--pdeathsig", "KILL", str(program), *arguments, stdout=file, stderr=file
        )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await asyncio.wait_for(process.wait(), 30)


async def refused(program: Path, arguments: list[str], folder: Path) -> str:
    """What it said when it ended by itself with an error; AssertionError when it did not."""
    async with running(program, arguments, folder) as process:
        try:
            status = await asyncio.wait_for(process.wait(), _WAIT)
        except TimeoutError:
            raise AssertionError("kube-scheduler runs with it") from None
    assert status != 0
    return said(folder)


async def bound(server: FakeApiServer, process: asyncio.subprocess.Process, folder: Path) -> dict[str, int]:
    """How many pods each node got, once all are bound."""
    deadline = asyncio.get_running_loop().time() + _WAIT
    while asyncio.get_running_loop().time() < deadline:
        on = [pod["spec"].get("nodeName", "") for pod in server.all(paths.pods())]
        if all(on):
            return {node: on.count(node) for node in NODES}
        assert process.returncode is None, f"kube-scheduler ended:\n{said(folder)}"
        await asyncio.sleep(_STEP)
    raise AssertionError(f"pods wait:\n{said(folder)}")


async def says(process: asyncio.subprocess.Process, folder: Path, words: str, times: int = 1) -> None:
    """Wait until these words, in any case, are so often in its log."""
    deadline = asyncio.get_running_loop().time() + _WAIT
    while (folder / "kube-scheduler.log").read_text(errors="replace").lower().count(words) < times:
        assert process.returncode is None, f"kube-scheduler ended:\n{said(folder)}"
        assert asyncio.get_running_loop().time() < deadline, f"it does not say {words!r}:\n{said(folder)}"
        await asyncio.sleep(_STEP)


def said(folder: Path) -> str:
    return (folder / "kube-scheduler.log").read_text(errors="replace")[-4000:]


async def fill(server: FakeApiServer, *, scheduler_name: str = "default-scheduler") -> None:
    """Two empty nodes with eight GPUs each, and, once a kube-scheduler knows them, ten replicas that want one each."""
    for name in NODES:
        amounts = {"cpu": "64", "memory": "256Gi", "pods": "110", GPU: str(CARDS)}
        labels = {"kubernetes.io/hostname": name}
        ready = {"type": "Ready", "status": "True"}
        server.create(
            paths.nodes(),
            {
                "metadata": {"name": name, "labels": labels},
                "spec": {},
                "status": {"capacity": amounts, "allocatable": amounts, "conditions": [ready]},
            },
        )
    await _watched(server, paths.nodes())
    server.create(
        "/api/v1/namespaces/default/services",
        {"metadata": {"name": "serving", "namespace": "default"}, "spec": {"selector": {"app": "serving"}}},
    )
    for i in range(PACKAGED):
        server.create(paths.pods("default"), _pod(f"serving-{i}", scheduler_name))


async def _watched(server: FakeApiServer, path: str) -> None:
    """Until somebody watches, and has had the time to take note of what is there: pods that come before a node would go
    to the other one."""
    deadline = asyncio.get_running_loop().time() + _WAIT
    while not any(request.path == path and "watch" in request.query for request in server.requests):
        assert asyncio.get_running_loop().time() < deadline, f"nobody watches {path}"
        await asyncio.sleep(_STEP)
    await asyncio.sleep(_NOTICE)


def _pod(name: str, scheduler_name: str) -> dict[str, Any]:
    amounts = {GPU: "1", "cpu": "4", "memory": "16Gi"}
    container = {"name": "main", "image": "busybox", "resources": {"limits": amounts, "requests": amounts}}
    return {
        "metadata": {"name": name, "namespace": "default", "labels": {"app": "serving"}},
        "spec": {"schedulerName": scheduler_name, "containers": [container]},
    }
