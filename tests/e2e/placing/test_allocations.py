"""``fractile allocations`` on the real cluster says what kubectl says, of resources that are not ours too."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path

import pytest

from fractile.lab.cluster.local import LocalCluster
from fractile.lab.demos import workload as w
from fractile.lab.demos.workload import DemoWorkload, Manifest
from fractile.wire.output.allocation_report import AllocationReport, ResourceAllocation, decode

NODE, DONGLE = "n1", "example.com/dongle"
_DESCRIBED = re.compile(r"^  (\S+) +(\S+)(?: \(\S+\))? +(\S+)", re.MULTILINE)


@pytest.fixture
def dongles(cluster: LocalCluster) -> Generator[DemoWorkload]:
    """Four dongles, as an administrator gives them to a node, and an empty namespace; afterwards neither."""
    cluster.up()
    work = DemoWorkload(cluster.kubectl, "e2e-allocations")
    work.create_namespace()
    patch(cluster, "4")
    try:
        yield work
    finally:
        patch(cluster, None)
        cluster.kubectl("delete", "namespace", work.namespace, "--ignore-not-found", "--wait=false")


def patch(cluster: LocalCluster, dongles: str | None) -> None:
    body = json.dumps({"status": {"capacity": {DONGLE: dongles}, "allocatable": {DONGLE: dongles}}})
    cluster.kubectl("patch", "node", NODE, "--subresource=status", "--type=merge", "-p", body)


def asking(name: str, amounts: dict[str, str], *, command: str = "sleep 1000000", sidecar: bool = False) -> Manifest:
    resources = {"requests": amounts, "limits": amounts}
    return w.container(name, command=command, sidecar=sidecar) | {"resources": resources}


def allocations(cluster: LocalCluster, *args: str) -> AllocationReport:
    program = Path(sys.executable).with_name("kubectl-fractile")
    argv = [str(program), "allocations", "-o", "json", "--kubeconfig", str(cluster.kubeconfig), *args]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=True, env=dict(os.environ))
    return decode(done.stdout)


def on_node(cluster: LocalCluster) -> dict[str, ResourceAllocation]:
    (node,) = allocations(cluster, "--node", NODE).nodes
    return {resource.resource: resource for resource in node.resources}


def described(cluster: LocalCluster) -> dict[str, tuple[str, str]]:
    """Requests and limits by resource, as kubectl adds them up."""
    text = cluster.kubectl("describe", "node", NODE).partition("Allocated resources:")[2].partition("Events:")[0]
    return {name: (requests, limits) for name, requests, limits in _DESCRIBED.findall(text) if name[0] != "-"}


def test_sums_are_those_of_kubectl_also_of_resources_that_are_not_ours(
    cluster: LocalCluster, dongles: DemoWorkload
) -> None:
    before = described(cluster)
    first = asking("first", {DONGLE: "3", "cpu": "20m"}, command="true")
    beside = asking("beside", {"cpu": "10m"}, sidecar=True)
    main = asking("main", {DONGLE: "1", "cpu": "5m", "memory": "8Mi"})
    dongles.apply([w.pod("counted", main, init=[first, beside], nodes=[NODE])])
    dongles.wait_running("counted", seconds=90)

    found, told = on_node(cluster), described(cluster)

    # The init container alone holds three; sidecar and app run beside each other with 15m.
    dongle = found[DONGLE]
    assert (dongle.requested, dongle.limit, dongle.allocatable, dongle.free) == ("3", "3", "4", "1")
    assert (dongle.extended, dongle.utilization_percent) == (True, 75.0)
    assert told[DONGLE] == ("3", "3")
    assert told["cpu"] != before["cpu"]
    for name in set(told) & set(found):
        assert (as_number(found[name].requested), as_number(found[name].limit)) == tuple(map(as_number, told[name]))
    # Of ours every resource of the node is there too.
    assert {"aliyun.com/gpu-mem", "aliyun.com/gpu-count", "nvidia.com/gpu"} <= found.keys()

    dongles.delete("counted")
    assert on_node(cluster)[DONGLE].free == "4"


def as_number(quantity: str) -> float:
    units = {"m": 1e-3, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "k": 1e3, "M": 1e6, "G": 1e9}
    found = re.fullmatch(r"([0-9.]+)([A-Za-z]*)", quantity)
    assert found is not None, quantity
    return float(found[1]) * units.get(found[2], 1)
