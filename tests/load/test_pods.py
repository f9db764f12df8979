"""The pods of a round against the played API server, with a played kube-scheduler."""

import asyncio
import random
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import msgspec
import pytest

from fractile.errors import SetupError
from fractile.kube.client import KubeClient
from tests.fakes.apiserver import FakeApiServer
from tests.load.pods import ensure_namespace, schedule
from tests.load.scenarios import BY_NAME

ROW = msgspec.structs.replace(BY_NAME["none"], labels={"a": "b"})
PODS = f"/api/v1/namespaces/{ROW.namespace}/pods"


@asynccontextmanager
async def _world() -> AsyncGenerator[tuple[FakeApiServer, KubeClient]]:
    async with FakeApiServer() as server, KubeClient(server.credentials(), rng=random.Random(1)) as client:
        yield server, client


async def _bind(server: FakeApiServer, most: int, *, cut: bool = False) -> None:
    """Bind one pod after the other; ``cut``: break all connections once."""
    for _ in range(most):
        while not (waiting := [p for p in server.all(PODS) if not p["spec"].get("nodeName")]):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        server.merge(f"{PODS}/{waiting[0]['metadata']['name']}", {"spec": {"nodeName": "n1"}})
        if cut and len(server.all(PODS)) == most:
            cut = False
            await server.cut_connections()


@pytest.mark.parametrize("cut", [False, True], ids=["plainly", "after the watch was cut"])
async def test_every_pod_is_seen_to_be_bound(cut: bool):
    async with _world() as (server, client), asyncio.TaskGroup() as tasks:
        tasks.create_task(_bind(server, 30, cut=cut))
        seen = await schedule(client, ROW, 30, prefix="p", timeout=60)
        assert len(seen.bound) == 30
        assert seen.bound == sorted(seen.bound)
        assert seen.began <= seen.created
        assert seen.began <= seen.bound[0]


async def test_a_round_that_gets_stuck_ends_with_a_pods_own_words():
    async with _world() as (server, client):
        server.create(PODS, {"metadata": {"name": "old"}, "spec": {}, "status": {"conditions": [{"message": "no"}]}})
        with pytest.raises(SetupError, match=r"none: 0 of 1 pods were bound after 1 s; one says: no$"):
            await schedule(client, ROW, 1, prefix="p", timeout=1)


async def test_a_namespace_that_is_there_already_is_as_good():
    async with _world() as (server, client):
        for _ in range(2):
            await ensure_namespace(client, ROW.namespace, ROW)
        assert server.get(f"/api/v1/namespaces/{ROW.namespace}")["metadata"]["labels"]["a"] == "b"
        assert server.get(f"/api/v1/namespaces/{ROW.namespace}/serviceaccounts/default")


async def test_pods_come_at_the_pace_of_the_row():
    paced = msgspec.structs.replace(ROW, pace=50.0)
    async with _world() as (server, client), asyncio.TaskGroup() as tasks:
        tasks.create_task(_bind(server, 10))
        seen = await schedule(client, paced, 10, prefix="p", timeout=60)
        assert seen.created - seen.began >= 10 / 50.0
