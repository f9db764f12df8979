"""Placement over all nodes (docs/use/global-placement.md) with the real kube-scheduler of each version and the real
control plane, on a played API server. Versions as in test_versions."""

import asyncio
import re
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fractile.dialects.aliyun import MEMORY
from fractile.kube import paths
from fractile.wire.fractile import placement
from fractile.wire.kubernetes import queued
from fractile.wire.kubernetes.queued import QueuedPod
from tests.builders import CARD_MEMORY, cards, resource
from tests.fakes.apiserver import FakeApiServer
from tests.main.process import Running, control_plane
from tests.versions import scheduler
from tests.versions.scheduler import printed
from tests.versions.test_versions import MINORS, ids, program

NODES = ("n1", "n2", "n3")
_FIRST_WITH_GATES = 27  # on by default
BUSY = 10.0  # seconds; 5 on a machine that has time
_WAIT = 60.0  # seconds, on a busy machine

pytestmark = pytest.mark.parametrize("minor", [minor for minor in MINORS if minor >= 22], ids=ids)


class Stage:
    """A played API server that knows three nodes of two cards, whose pods ask to be placed over all nodes."""

    def __init__(self, server: FakeApiServer, folder: Path) -> None:
        self.server = server
        self.folder = folder
        self.kubeconfig = server.write_kubeconfig(folder / "kubeconfig")
        annotated = {"metadata": {"name": "default", "annotations": {queued.ANNOTATION: "true"}}}
        server.create(paths.namespaces(), annotated)
        for name in NODES:
            server.create(paths.nodes(), _node(name))
            for card in cards(name):
                server.create(paths.extended_resources(), resource(card, name))

    @asynccontextmanager
    async def fractile(self, *flags: str) -> AsyncGenerator[Running]:
        async with control_plane(self.kubeconfig, self.folder, *flags) as running:
            await running.ready(_WAIT)
            yield running

    @asynccontextmanager
    async def scheduler(self, minor: int, fractile: Running) -> AsyncGenerator[None]:
        url = f"{fractile.url}/scheduler"
        config = printed(minor, "config", self.kubeconfig, "--extender", url)
        arguments = scheduler.flags(config, self.kubeconfig, self.folder)
        async with scheduler.running(program(minor), arguments, self.folder):
            yield

    def submit(self, name: str, *, memory: int = 4000, gate: bool = False, port: int = 0) -> None:
        amounts = {MEMORY: str(memory)}
        container: dict[str, Any] = {
            "name": "main",
            "image": "busybox",
            "resources": {"limits": amounts, "requests": amounts},
        }
        if port:
            container["ports"] = [{"containerPort": port, "hostPort": port, "protocol": "TCP"}]
        spec: dict[str, Any] = {"schedulerName": "default-scheduler", "containers": [container]}
        if gate:
            spec["schedulingGates"] = [{"name": queued.GATE}]
        self.server.create(paths.pods("default"), {"metadata": {"name": name, "namespace": "default"}, "spec": spec})

    def pod(self, name: str) -> QueuedPod:
        return msgspec.convert(self.server.get(paths.pod("default", name)), QueuedPod)

    def chosen(self, name: str) -> str:
        """The node that we nominated at some time."""
        return (self.pod(name).metadata.annotations or {}).get(queued.NOMINATED, "")

    def card(self, name: str) -> str:
        held = placement.decode((self.pod(name).metadata.annotations or {})[placement.ANNOTATION])
        return held.containers[0].slices[0].card

    async def bound(self, names: Sequence[str]) -> dict[str, str]:
        await self.until(lambda: all(self.pod(name).spec.node_name for name in names))
        return {name: self.pod(name).spec.node_name for name in names}

    async def until(self, condition: Callable[[], bool]) -> float:
        began = time.monotonic()
        while not condition():
            assert time.monotonic() - began < _WAIT, scheduler.said(self.folder)
            await asyncio.sleep(0.02)
        return time.monotonic() - began


def _node(name: str) -> dict[str, Any]:
    amounts = {"cpu": "64", "memory": "256Gi", "pods": "110", MEMORY: str(2 * CARD_MEMORY)}
    return {
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}},
        "spec": {},
        "status": {"capacity": amounts, "allocatable": amounts, "conditions": [{"type": "Ready", "status": "True"}]},
    }


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncGenerator[Stage]:
    async with FakeApiServer() as server:
        yield Stage(server, tmp_path)


def asked(running: Running, name: str) -> list[int]:
    """About how many nodes the extender's filter was asked for the pod, each time."""
    return [int(n) for n in re.findall(rf"filter pod='default/{name}' asked=(\d+)", running.log.read_text())]


def gates_work(minor: int) -> None:
    if minor < _FIRST_WITH_GATES:
        pytest.skip(f"kube-scheduler 1.{minor} knows no scheduling gates")


async def test_gated_pods_are_bound_where_they_were_nominated_after_a_look_at_one_node(
    minor: int, stage: Stage
) -> None:
    gates_work(minor)
    async with stage.fractile() as fractile, stage.scheduler(minor, fractile):
        names = [f"p{i}" for i in range(6)]
        for name in names:
            stage.submit(name, memory=CARD_MEMORY, gate=True)
        on = await stage.bound(names)
        assert on == {name: stage.chosen(name) for name in names}
        assert [asked(fractile, name) for name in names] == [[1]] * len(names)
        assert len({stage.card(name) for name in names}) == len(names)


async def test_pods_that_wait_in_the_queue_are_bound_where_they_were_nominated(minor: int, stage: Stage) -> None:
    """They came before kube-scheduler did."""
    async with stage.fractile() as fractile:
        names = [f"p{i}" for i in range(4)]
        for name in names:
            stage.submit(name, memory=CARD_MEMORY)
        await stage.until(lambda: all(stage.pod(name).status.nominated_node_name for name in names))
        async with stage.scheduler(minor, fractile):
            on = await stage.bound(names)
        assert on == {name: stage.chosen(name) for name in names}
        assert [asked(fractile, name) for name in names] == [[1]] * len(names)


async def test_a_wrong_nomination_costs_one_look(minor: int, stage: Stage) -> None:
    """Fractile does not know ports of nodes, and fills one node before the next."""
    async with stage.fractile() as fractile, stage.scheduler(minor, fractile):
        stage.submit("first", port=18_123)
        await stage.bound(["first"])
        stage.submit("second", port=18_123, gate=minor >= _FIRST_WITH_GATES)
        took = await stage.until(lambda: bool(stage.pod("second").spec.node_name))
        assert took < BUSY
        assert stage.pod("second").spec.node_name != stage.pod("first").spec.node_name
        if minor >= _FIRST_WITH_GATES:
            assert stage.chosen("second") == stage.pod("first").spec.node_name
            assert "nomination missed" in fractile.log.read_text()


async def test_a_killed_fractile_leaves_nobody_stuck(minor: int, stage: Stage) -> None:
    """It died before it decided on gated pods, and after it has nominated another; kube-scheduler runs on."""
    gates_work(minor)
    async with stage.fractile("--placement-gate") as first, stage.scheduler(minor, first):
        stage.submit("before")
        await stage.bound(["before"])
        first.process.kill()
        await first.ended()
        for name in ("a", "b"):
            stage.submit(name, memory=CARD_MEMORY, gate=True)
        port = first.url.rpartition(":")[2]
        again = ("--placement-gate", f"--listen=127.0.0.1:{port}")  # where kube-scheduler looks for it
        async with control_plane(stage.kubeconfig, stage.folder, *again) as second:
            await stage.until(lambda: " ready pods=" in second.log.read_text())
            took = await stage.until(lambda: not any(queued.gated(stage.pod(name)) for name in ("a", "b")))
            assert took < BUSY
            on = await stage.bound(["a", "b"])
            # A start that takes longer than 3 s lets them go before it leads.
            assert all(stage.chosen(name) in ("", node) for name, node in on.items())
