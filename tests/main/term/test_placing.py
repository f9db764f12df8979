"""The program ``fractile control-plane`` where it chooses nodes itself: also when it is killed, or does not lead."""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fractile.kube import paths
from fractile.main.leading import DEFAULT_LEASE
from fractile.wire.fractile import placement
from fractile.wire.kubernetes import queued
from fractile.wire.kubernetes.queued import QueuedPod
from tests.builders import cards, container, resource
from tests.fakes.apiserver import FakeApiServer
from tests.main.process import control_plane
from tests.main.test_control_plane import ask, kubeconfig

NODE = {"metadata": {"name": "n1"}, "status": {"allocatable": {"cpu": "8", "memory": "32Gi", "pods": "110"}}}
FULL = 16_000
BUSY = 10.0  # seconds; 4 on a machine that has time


@pytest.fixture
async def server() -> AsyncGenerator[FakeApiServer, None]:
    """An API server that knows the two cards of n1, and a namespace whose pods ask to have their node chosen."""
    async with FakeApiServer() as made:
        made.create(paths.nodes(), NODE)
        made.create(paths.namespaces(), {"metadata": {"name": "default", "annotations": {queued.ANNOTATION: "true"}}})
        for card in cards("n1"):
            made.create(paths.extended_resources(), resource(card, "n1"))
        yield made


def submit(server: FakeApiServer, name: str, *, memory: int = FULL, gate: bool = False) -> QueuedPod:
    spec: dict[str, Any] = {"containers": [msgspec.to_builtins(container(memory=memory))]}
    if gate:
        spec["schedulingGates"] = [{"name": queued.GATE}]
    server.create(paths.pods("default"), {"metadata": {"name": name, "namespace": "default"}, "spec": spec})
    return stored(server, name)


def stored(server: FakeApiServer, name: str) -> QueuedPod:
    return msgspec.convert(server.get(paths.pod("default", name)), QueuedPod)


async def eventually(condition: Callable[[], object], seconds: float = 30) -> float:
    """How long it took."""
    began = time.monotonic()
    async with asyncio.timeout(seconds):
        while True:
            if condition():
                return time.monotonic() - began
            await asyncio.sleep(0.01)


async def test_pods_are_nominated_and_bound_there_with_the_cards_that_were_kept(
    server: FakeApiServer, tmp_path: Path
) -> None:
    async with control_plane(kubeconfig(server, tmp_path), tmp_path) as running:
        await running.ready(60)
        for name in ("a", "b", "late"):
            submit(server, name, gate=True)
        await eventually(lambda: not any(queued.gated(stored(server, name)) for name in ("a", "b", "late")))
        assert [stored(server, name).status.nominated_node_name for name in ("a", "b", "late")] == ["n1", "n1", ""]
        for name in ("a", "b"):
            asked = stored(server, name)
            answer = await ask(running, "filter", {"Pod": msgspec.to_builtins(asked), "NodeNames": ["n1"]})
            assert answer["NodeNames"] == ["n1"]
            meta = asked.metadata
            body = {"PodName": name, "PodNamespace": "default", "PodUID": meta.uid, "Node": "n1"}
            assert (await ask(running, "bind", body))["Error"] == ""
        held = [placement.decode((stored(server, n).metadata.annotations or {})[placement.ANNOTATION]) for n in "ab"]
        assert len({h.containers[0].slices[0].card for h in held}) == 2


async def test_what_a_killed_leader_left_is_taken_up_when_it_is_back(server: FakeApiServer, tmp_path: Path) -> None:
    access = kubeconfig(server, tmp_path)
    async with control_plane(access, tmp_path) as running:
        await running.ready(60)
        submit(server, "a")
        await eventually(lambda: stored(server, "a").status.nominated_node_name == "n1")
        running.process.kill()
        await running.ended()
    submit(server, "b", gate=True)
    submit(server, "c", gate=True)
    async with control_plane(access, tmp_path) as running:
        await running.ready(60)
        await eventually(lambda: not queued.gated(stored(server, "b")) and not queued.gated(stored(server, "c")))
        # The place of "a" is kept, so of two others that want a card only one gets it.
        assert [stored(server, name).status.nominated_node_name for name in "abc"] == ["n1", "n1", ""]


async def test_a_replica_that_does_not_lead_removes_gates_that_nobody_else_does(
    server: FakeApiServer, tmp_path: Path
) -> None:
    """Its leader was killed and holds the lease for long: nobody leads."""
    namespace, _, name = DEFAULT_LEASE.partition("/")
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    spec = {"holderIdentity": "dead", "leaseDurationSeconds": 600, "acquireTime": now, "renewTime": now}
    lease = {"metadata": {"name": name, "namespace": namespace}, "spec": {**spec, "leaseTransitions": 1}}
    server.create(paths.leases(namespace), lease)
    options = (f"--lease={DEFAULT_LEASE}", "--placement-gate")
    async with control_plane(kubeconfig(server, tmp_path), tmp_path, *options) as running:
        await eventually(lambda: any("fieldSelector" in r.query for r in server.requests), 60)
        submit(server, "a", gate=True)
        submit(server, "b", gate=True)
        took = await eventually(lambda: not queued.gated(stored(server, "a")) and not queued.gated(stored(server, "b")))
        assert 2.5 < took < BUSY
        assert stored(server, "a").status.nominated_node_name == ""
        assert not server.writes(path="/leases")
        assert running.process.returncode is None
