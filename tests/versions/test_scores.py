"""``fractile score`` says what the real kube-scheduler of each version logs for the same nodes and pods."""

import random
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

from fractile.cli.score import command
from fractile.kube import paths
from fractile.wire.output import score_report
from tests.fakes.apiserver import FakeApiServer
from tests.versions import scheduler
from tests.versions.test_versions import MINORS, ids, program

GPU, OTHER = "nvidia.com/gpu", "example.com/other"
RESOURCES = f"{GPU}=5,cpu=3,memory=1,{OTHER}=2"
WAITING = "waiting"
NODES, PODS = 12, 24
# "waiting -> node-1: ..., score 60," up to 1.22; then pod="default/waiting" node="node-1" ... resourceScore=60
_OLD = re.compile(rf"{WAITING} -> (\S+): (?!NodeResourcesBalanced).* ,score (\d+)")
_NEW = re.compile(
    rf'pod="default/{WAITING}" node="(\S+?)" resourceAllocationScorer="(?!NodeResourcesB).*resourceScore=(\d+)'
)


def nodes(lots: random.Random) -> list[dict[str, Any]]:
    """Of odd sizes; some lack one of the resources."""
    found: list[dict[str, Any]] = []
    for i in range(NODES):
        amounts = {
            "cpu": f"{lots.randint(20_000, 99_999)}m",
            "memory": f"{lots.randint(60_000, 600_000)}Mi",
            "pods": "110",
        }
        amounts |= {GPU: str(lots.randint(3, 16))} | ({OTHER: str(lots.randint(1, 9))} if i % 3 else {})
        meta = {"name": f"node-{i}", "labels": {"kubernetes.io/hostname": f"node-{i}"}}
        found.append({"metadata": meta, "spec": {}, "status": {"capacity": amounts, "allocatable": amounts}})
    return found


def pods(lots: random.Random) -> list[dict[str, Any]]:
    """Two on each node, some of which ask for nothing, and one that waits."""
    there = [_pod(f"there-{i}", _amounts(lots), on=f"node-{i // 2}") for i in range(PODS)]
    return [*there, _pod(WAITING, {"cpu": "3500m", "memory": "11Gi", GPU: "1"})]


def _amounts(lots: random.Random) -> dict[str, str]:
    asked = {"cpu": f"{lots.randint(1, 7000)}m", "memory": f"{lots.randint(1, 20_000)}Mi", GPU: "1"}
    return {name: amount for name, amount in asked.items() if lots.random() < 0.8}


def _pod(name: str, amounts: dict[str, str], on: str = "") -> dict[str, Any]:
    resources = {"requests": amounts, "limits": {GPU: amounts[GPU]} if GPU in amounts else {}}
    container = {"name": "main", "image": "busybox", "resources": resources}
    start = {"name": "start", "image": "busybox", "resources": {"requests": {"cpu": "2"}}}
    spec = {"schedulerName": "default-scheduler", "containers": [container], "initContainers": [start]}
    return {
        "metadata": {"name": name, "namespace": "default"},
        "spec": {**spec, "nodeName": on} if on else spec,
        "status": {"phase": "Running" if on else "Pending"},
    }


@pytest.mark.parametrize("minor", MINORS, ids=ids)
@pytest.mark.parametrize("policy", ["requested-to-capacity-ratio", "most-allocated", "least-allocated"])
async def test_scores_are_those_that_the_real_program_logs(minor: int, policy: str, tmp_path: Path) -> None:
    found = program(minor)
    lots = random.Random(minor)
    manifests = [*({"kind": "Node", **n} for n in nodes(lots)), *({"kind": "Pod", **p} for p in pods(lots))]
    strategy = ["--resources", RESOURCES, "--shape", "0:9,30:2,100:10"]
    async with FakeApiServer() as server:
        kubeconfig = server.write_kubeconfig(tmp_path / "kubeconfig")
        config = scheduler.printed(minor, "config", kubeconfig, "--policy", policy, *strategy)
        for manifest in manifests[:-1]:
            server.create(paths.nodes() if manifest["kind"] == "Node" else paths.pods("default"), manifest)
        arguments = [*scheduler.flags(config, kubeconfig, tmp_path), "--v=10"]
        async with scheduler.running(found, arguments, tmp_path) as process:
            # Old versions begin before they have taken note of all that is there.
            await scheduler.says(process, tmp_path, "add event for node", NODES)
            await scheduler.says(process, tmp_path, "add event for scheduled pod", PODS)
            server.create(paths.pods("default"), manifests[-1])
            await scheduler.bound(server, process, tmp_path)

    log = (tmp_path / "kube-scheduler.log").read_text()
    logged = {node: int(points) for node, points in (*_OLD.findall(log), *_NEW.findall(log))}
    assert logged == ours(manifests, minor, tmp_path, "--strategy", policy, *strategy)
    assert len(logged) > 8
    assert len(set(logged.values())) > 4  # or any arithmetic would do


def ours(manifests: list[dict[str, Any]], minor: int, folder: Path, *options: str) -> dict[str, int]:
    """The scores of the nodes on which the pod fits."""
    file = folder / "manifests.json"
    file.write_bytes(msgspec.json.encode({"kind": "List", "items": manifests}))
    result = CliRunner().invoke(command, ["-f", str(file), "--kubernetes", f"1.{minor}", "-o", "json", *options])
    assert result.exception is None, result.exception
    (pod,) = score_report.decode(result.stdout).pods
    return {node.node: node.score for node in pod.nodes if not node.lacks}
