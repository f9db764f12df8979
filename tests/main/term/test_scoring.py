"""The options of the policies for nodes, and the file that pins the pods to be expected."""

import asyncio
import time
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import httpx2
import msgspec
import pytest

from fractile.errors import FractileError
from fractile.extender.policies import ANNOTATION
from fractile.kube import paths
from fractile.main.term.scoring import read_mix
from fractile.policy.nodes.view import TaskDemand
from tests.builders import cards, container, pod, resource
from tests.fakes.apiserver import FakeApiServer
from tests.main.plane import until
from tests.main.process import Running, control_plane

HEADING = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec\n"


def test_a_file_of_the_simulator_pins_the_mix(tmp_path: Path) -> None:
    file = tmp_path / "pods.csv"
    file.write_text(f"{HEADING}a,4000,1,1,500,\nb,4000,9,1,500,\nc,8000,1,2,1000,T4|P100\nd,8000,1,0,0,\n")
    mix = read_mix(file)
    expected = {TaskDemand(4000, 0, 1, 500): 2, TaskDemand(8000, 0, 2, 1000, ("T4", "P100")): 1}
    assert dict(zip(mix.asks, mix.counts, strict=True)) == expected


@pytest.mark.parametrize(
    ("text", "said"),
    [
        pytest.param(f"{HEADING}a,4000,1,1,1500,\n", "line 2 column gpu_milli", id="more than a GPU"),
        pytest.param("name\na\n", "column cpu_milli: this column is missing", id="a column is missing"),
        pytest.param(f"{HEADING}a,4000,1,0,0,\n", "has no pod that asks for a GPU", id="no GPU"),
        pytest.param("\xff\xfe", "column name", id="no table"),
    ],
)
def test_a_file_that_makes_no_sense_is_told_with_its_place(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "pods.csv"
    file.write_text(text)
    with pytest.raises(FractileError, match=said):
        read_mix(file)


def test_a_file_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(FractileError, match="cannot be read"):
        read_mix(tmp_path / "none.csv")


# ── the program ──────────────────────────────────────────────────────────────────────────────────────────────────────

NODES = ("wide", "narrow")  # alike but for their CPUs
WHERE = paths.pods("default")


@pytest.fixture
async def server() -> AsyncGenerator[FakeApiServer, None]:
    async with FakeApiServer() as made:
        for node, cpu in zip(NODES, ("64", "8"), strict=True):
            status = {"allocatable": {"cpu": cpu, "memory": "64Gi", "pods": "110"}}
            made.create(paths.nodes(), {"metadata": {"name": node}, "status": status})
            for one in cards(node):
                made.create(paths.extended_resources(), resource(one, node))
        yield made


async def scores(running: Running, server: FakeApiServer, name: str, policy: str = "") -> list[int]:
    annotations = {"fractile.dev/node-policy": policy} if policy else None
    body: dict[str, Any] = msgspec.to_builtins(pod(name, container(memory=8138), annotations=annotations))
    body["metadata"].pop("uid")
    asked = {"Pod": server.create(WHERE, body), "NodeNames": list(NODES)}
    async with httpx2.AsyncClient(base_url=running.url, trust_env=False, timeout=10) as http:
        answer = await http.post("/scheduler/prioritize", content=msgspec.json.encode(asked))
        return [one["Score"] for one in answer.json()]


async def test_the_cluster_its_namespaces_and_pods_name_policies(server: FakeApiServer, tmp_path: Path) -> None:
    kubeconfig = server.write_kubeconfig(tmp_path / "kubeconfig")
    async with control_plane(kubeconfig, tmp_path, "--node-policy", "bestfit") as running:
        await running.ready(60)
        assert await scores(running, server, "by-cluster") == [0, 10]  # what is left of the narrow node is less
        assert await scores(running, server, "by-pod", "none") == [0, 0]
        server.create(paths.namespaces(), {"metadata": {"name": "default", "annotations": {ANNOTATION: "binpack"}}})
        async with asyncio.timeout(20):
            while await scores(running, server, f"by-namespace-{time.monotonic_ns()}") == [0, 10]:  # noqa: ASYNC110 - asked
                await asyncio.sleep(0.05)


async def test_the_pods_of_the_cluster_are_the_mix_from_the_start(server: FakeApiServer, tmp_path: Path) -> None:
    for n in range(20):
        server.create(WHERE, {"metadata": {"name": f"w{n}"}, "spec": msgspec.to_builtins(pod().spec)})
    kubeconfig = server.write_kubeconfig(tmp_path / "kubeconfig")
    async with control_plane(kubeconfig, tmp_path, "--node-policy", "fgd-plus") as running:
        await running.ready(60)
        await until(lambda: "mix learned classes=1 pods=20" in running.log.read_text())


async def test_a_policy_that_is_none_is_refused_at_the_start(server: FakeApiServer, tmp_path: Path) -> None:
    kubeconfig = server.write_kubeconfig(tmp_path / "kubeconfig")
    async with control_plane(kubeconfig, tmp_path, "--node-policy", "best") as running:
        assert await running.ended(60) == 2
        assert "'best' is not one of binpack, spread" in running.log.read_text()
