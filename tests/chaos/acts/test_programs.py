"""What is changed on a cluster for the chaos, by the command lines that its programs would be started with."""

import json
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from fractile.lab.cluster import component, node, plan, state
from fractile.lab.cluster.component import Component
from fractile.lab.cluster.local import LocalCluster
from fractile.lab.cluster.spec import from_options
from fractile.lab.layout import ClusterLayout
from tests.chaos.acts.programs import EXTENDER, REPLICAS, WEBHOOK, Programs

NODES = ["node-1", "node-2"]


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LocalCluster:
    """One that was never started, on a machine that need not have what real nodes need."""
    monkeypatch.setattr(node, "cni_folder", lambda: tmp_path)
    found = LocalCluster("chaos-test", clusters=tmp_path)
    made = state.first(
        found.place, from_options("chaos-test"), hollow="", fractile=True, programs=str(tmp_path / "programs")
    )
    state.save(found.place, made)
    return found


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch, cluster: LocalCluster) -> list[Component]:
    """What is started; nothing runs."""
    found: list[Component] = []

    def start(place: ClusterLayout, one: Component) -> None:
        found.append(one)

    def kill(cluster: LocalCluster, name: str, number: int) -> None:
        assert name == "control-plane"

    monkeypatch.setattr(component, "start", start)
    monkeypatch.setattr(LocalCluster, "kill", kill)
    return found


def option(one: Component, name: str) -> str:
    """The last, which counts."""
    return [a for a in one.argv if a.startswith(f"--{name}=")][-1].partition("=")[2]


def server_port(one: Component) -> int:
    config = json.loads(Path(option(one, "kubeconfig")).read_text())
    port = urlsplit(str(config["clusters"][0]["cluster"]["server"])).port
    assert port is not None
    return port


async def test_everybody_asks_the_api_server_through_a_link_of_its_own(
    cluster: LocalCluster, started: list[Component]
) -> None:
    programs = Programs(cluster)
    await programs.begin()
    try:
        names = [one.name for one in started]
        assert sorted(names) == sorted([*REPLICAS, *(f"{n}/{part}" for n in NODES for part in ("agent", "kubelet"))])
        links = programs.players.links
        assert {one.name: server_port(one) for one in started} == {name: links[name].port for name in names}
        assert len({link.port for link in links.values()}) == len(links)
        assert programs.players.components.keys() - set(names) == UNCHANGED
    finally:
        await programs.end(restore=False)


UNCHANGED = {
    "etcd",
    "kube-apiserver",
    "kube-controller-manager",
    "kube-scheduler",
    *(f"{n}/containerd" for n in NODES),
}


async def test_two_replicas_share_a_lease_behind_the_ports_that_others_know(
    cluster: LocalCluster, started: list[Component]
) -> None:
    programs = Programs(cluster)
    await programs.begin()
    try:
        replicas = [one for one in started if one.name in REPLICAS]
        assert {option(one, "lease") for one in replicas} == {"fractile-system/fractile-control-plane"}
        ports = [option(one, which) for one in replicas for which in ("listen", "webhook")]
        assert len(set(ports)) == 4
        known = cluster.state.ports
        assert programs.players.links[EXTENDER].port == known.control_plane
        assert programs.players.links[WEBHOOK].port == known.webhook
    finally:
        await programs.end(restore=False)


def test_the_cluster_itself_is_planned_as_before(cluster: LocalCluster) -> None:
    """`up` then starts what it always starts."""
    before = list(plan.make(cluster.place, cluster.state, now=datetime.now(UTC)).components())
    Programs(cluster)
    assert list(plan.make(cluster.place, cluster.state, now=datetime.now(UTC)).components()) == before
