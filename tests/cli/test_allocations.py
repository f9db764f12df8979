"""``fractile allocations``: every resource of every node, from the API server alone."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from fractile.cli.allocations import command
from fractile.errors import SetupError
from fractile.kube import paths
from fractile.wire.output import allocation_report
from tests.fakes.apiserver import FakeApiServer

GPU = "nvidia.com/gpu"


def node(name: str) -> dict[str, Any]:
    amounts = {"cpu": "8", "memory": "16384516Ki", "pods": "110", "hugepages-2Mi": "0", GPU: "8"}
    return {"metadata": {"name": name}, "status": {"capacity": amounts, "allocatable": amounts}}


def pod(name: str, on: str, gpus: int, phase: str = "Running") -> dict[str, Any]:
    resources = {
        "requests": {GPU: str(gpus), "cpu": "250m", "memory": "1Gi"},
        "limits": {GPU: str(gpus), "memory": "2Gi"},
    }
    return {
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"nodeName": on, "containers": [{"name": "main", "resources": resources}]},
        "status": {"phase": phase},
    }


@pytest.fixture
def filled(server: FakeApiServer) -> FakeApiServer:
    for name in ("n1", "n2"):
        server.create(paths.nodes(), node(name))
    for body in (
        pod("a", "n1", 8),
        pod("b", "n2", 2),
        pod("done", "n2", 4, "Succeeded"),
        pod("waits", "", 8, "Pending"),
    ):
        server.create(paths.pods("default"), body)
    return server


async def run(server: FakeApiServer, folder: Path, *args: str) -> Result:
    """The command as a person runs it; in a thread of its own, since the server lives on this one."""
    arguments = ["--kubeconfig", str(server.write_kubeconfig(folder / "kubeconfig")), *args]
    return await asyncio.to_thread(CliRunner().invoke, command, arguments)


async def shown(server: FakeApiServer, folder: Path, *args: str) -> str:
    result = await run(server, folder, *args)
    assert result.exception is None, result.exception
    return result.output


async def test_the_table_has_a_line_per_node_and_resource_and_totals(filled: FakeApiServer, tmp_path: Path) -> None:
    assert await shown(filled, tmp_path) == (
        "NODE  RESOURCE        REQUESTED  LIMIT  ALLOCATABLE    FREE  UTILIZATION\n"
        "n1    cpu                  250m      0            8   7750m         3.1%\n"
        "n1    memory                1Gi    2Gi       15.6Gi  14.6Gi         6.4%\n"
        "n1    nvidia.com/gpu          8      8            8       0       100.0%\n"
        "n1    pods                    1      0          110     109         0.9%\n"
        "n2    cpu                  250m      0            8   7750m         3.1%\n"
        "n2    memory                1Gi    2Gi       15.6Gi  14.6Gi         6.4%\n"
        "n2    nvidia.com/gpu          2      2            8       6        25.0%\n"
        "n2    pods                    1      0          110     109         0.9%\n"
        "\n"
        "TOTAL           NODES  REQUESTED  LIMIT  ALLOCATABLE    FREE  UTILIZATION\n"
        "cpu                 2       500m      0           16  15500m         3.1%\n"
        "memory              2        2Gi    4Gi       31.3Gi  29.3Gi         6.4%\n"
        "nvidia.com/gpu      2         10     10           16       6        62.5%\n"
        "pods                2          2      0          220     218         0.9%\n"
    )


async def test_the_page_shows_the_table_of_two_nodes_with_8_and_2(filled: FakeApiServer, tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "reference" / "allocations.md").read_text()

    text = await shown(filled, tmp_path, "--only-extended")

    rows = [line.split() for line in text.replace("n1", "node-1").replace("n2", "node-2").splitlines()]
    assert [row for row in (line.split() for line in page.splitlines()) if row and row in rows] == [
        r for r in rows if r
    ]


async def test_sorting_by_what_is_free_begins_with_the_emptiest(filled: FakeApiServer, tmp_path: Path) -> None:
    text = await shown(filled, tmp_path, "--resource", "nvidia.com/*", "--sort", "free")

    assert [line.split()[0] for line in text.split("\n\n")[0].splitlines()[1:]] == ["n2", "n1"]


async def test_json_has_exact_amounts_and_can_be_read_back(filled: FakeApiServer, tmp_path: Path) -> None:
    text = await shown(filled, tmp_path, "--node", "n1", "-o", "json")
    found = {r.resource: r for r in allocation_report.decode(text).nodes[0].resources}

    assert (found["memory"].allocatable, found["memory"].free) == (str(16384516 * 1024), str(16384516 * 1024 - 2**30))
    assert (found["cpu"].requested, found["cpu"].free, found["cpu"].extended) == ("250m", "7750m", False)
    assert (found[GPU].extended, found[GPU].utilization_percent) == (True, 100.0)
    assert yaml.safe_load(await shown(filled, tmp_path, "--node", "n1", "-o", "yaml")) == json.loads(text)


async def test_a_resource_that_nobody_has_is_told(filled: FakeApiServer, tmp_path: Path) -> None:
    assert await shown(filled, tmp_path, "--resource", "amd.com/gpu") == "no node has such a resource\n"


async def test_a_node_that_is_not_there_is_told_with_those_that_are(filled: FakeApiServer, tmp_path: Path) -> None:
    result = await run(filled, tmp_path, "--node", "n1", "--node", "x*")

    assert isinstance(result.exception, SetupError)
    assert str(result.exception) == "no node matches 'x*'; the nodes are: n1, n2"


async def test_fractile_need_not_be_installed(filled: FakeApiServer, tmp_path: Path) -> None:
    await shown(filled, tmp_path)

    assert {request.path for request in filled.requests} == {paths.nodes(), paths.pods()}
