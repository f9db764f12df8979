"""Writes pass a fence that closes with the lead; reads do not care."""

import asyncio
import time
from collections.abc import AsyncGenerator

import pytest

from fractile.errors import NotLeading, Unreachable
from fractile.kube import paths
from fractile.kube.client import KubeClient
from fractile.wire.kubernetes.objects import Pod
from tests.extender.test_bind import args
from tests.fakes.apiserver import FakeApiServer, Fault
from tests.main.plane import plane


class Gate:
    """Seconds for which writes are allowed, as the test says."""

    def __init__(self) -> None:
        self.left = float("inf")
        self.asked = 0

    def __call__(self) -> float:
        self.asked += 1
        return self.left


@pytest.fixture
def gate() -> Gate:
    return Gate()


@pytest.fixture
async def fenced(server: FakeApiServer, gate: Gate) -> AsyncGenerator[KubeClient, None]:
    server.create(paths.pods("default"), {"metadata": {"name": "p"}, "spec": {"containers": []}})
    async with KubeClient(server.credentials(), fence=gate) as client:
        yield client


PATCH = {"metadata": {"annotations": {"a": "b"}}}


async def test_every_write_asks_and_no_read_does(server: FakeApiServer, fenced: KubeClient, gate: Gate) -> None:
    await fenced.get(paths.pod("default", "p"), Pod)
    await fenced.list(paths.pods("default"), Pod)
    assert gate.asked == 0
    await fenced.merge_patch(paths.pod("default", "p"), PATCH)
    await fenced.bind(namespace="default", name="p", uid="", node="n1", annotations={})
    await fenced.delete(paths.pod("default", "p"))
    assert gate.asked == 3


@pytest.mark.parametrize("left", [0.0, -1.0, float("-inf")])
async def test_nothing_is_written_when_the_lead_is_over(
    server: FakeApiServer, fenced: KubeClient, gate: Gate, left: float
) -> None:
    gate.left = left
    with pytest.raises(NotLeading, match="does not lead"):
        await fenced.bind(namespace="default", name="p", uid="", node="n1", annotations={})
    assert server.writes() == []
    await fenced.get(paths.pod("default", "p"), Pod)


async def test_a_repeated_write_asks_again(server: FakeApiServer, fenced: KubeClient, gate: Gate) -> None:
    server.inject(Fault(method="PATCH", status=503))
    task = asyncio.create_task(fenced.merge_patch(paths.pod("default", "p"), PATCH))
    while not server.writes():  # noqa: ASYNC110
        await asyncio.sleep(0.001)
    gate.left = 0
    with pytest.raises(NotLeading):
        await task
    assert len(server.writes()) == 1


async def test_no_write_is_waited_for_longer_than_the_lead_lasts(
    server: FakeApiServer, fenced: KubeClient, gate: Gate
) -> None:
    gate.left = 0.2
    server.inject(Fault(method="POST", delay=30))
    began = time.monotonic()
    with pytest.raises(Unreachable, match=r"within 0\.2 s"):
        await fenced.bind(namespace="default", name="p", uid="", node="n1", annotations={})
    assert time.monotonic() - began < 5


async def test_a_bind_without_the_lead_leaves_nothing_behind(gate: Gate) -> None:
    async with plane(fence=gate) as p:
        pod = p.submit("p")
        gate.left = 0
        with pytest.raises(NotLeading):
            await p.binder.bind(args(pod))
        assert p.entry(pod) is None
        assert p.writes() == []
        gate.left = 10
        assert await p.binder.bind(args(pod)) is None


async def test_a_binding_names_the_lead_under_which_it_was_decided() -> None:
    async with plane(term="vm_1/7") as p:
        assert await p.binder.bind(args(p.submit("p"))) is None
        assert p.annotations()["fractile.dev/leader"] == "vm_1/7"
