"""Deletions of pods on the real API server: what it writes down of the time, which ``fractile why`` reads back."""

import asyncio
from collections.abc import AsyncGenerator
from datetime import UTC, datetime

import pytest

from fractile.kube import credentials, paths
from fractile.kube.client import KubeClient
from fractile.reports.why.times import since_deletion
from fractile.wire.kubernetes.why_objects import ObservedMeta, ObservedPod
from tests.contract.real_apiserver import RealApiServer


@pytest.fixture
async def client(real_server: RealApiServer) -> AsyncGenerator[KubeClient, None]:
    async with KubeClient(credentials.load(real_server.kubeconfig)) as found:
        yield found


async def running(client: KubeClient, name: str) -> str:
    """A pod of a node whose kubelet does not answer; its path. It may take an hour to end."""
    container = {"name": "main", "image": "x"}
    spec = {"nodeName": "nobody", "terminationGracePeriodSeconds": 3600, "containers": [container]}
    await client.create(paths.pods("default"), {"metadata": {"name": name}, "spec": spec})
    return paths.pod("default", name)


async def metadata(client: KubeClient, path: str) -> ObservedMeta:
    return (await client.get(path, ObservedPod)).metadata


async def test_when_the_deletion_was_asked_for_is_read_back_also_when_it_was_cut_short(client: KubeClient) -> None:
    path = await running(client, "leaves")
    assert since_deletion(await metadata(client, path), datetime.now(UTC)) is None

    asked = datetime.now(UTC)
    await client.delete(path)
    await asyncio.sleep(3)
    await client.delete(path, grace_seconds=30)
    found = await metadata(client, path)
    now = datetime.now(UTC)

    assert found.deletion_grace_period_seconds == 30
    passed = since_deletion(found, now)
    assert passed is not None
    assert passed == pytest.approx((now - asked).total_seconds(), abs=1.1)  # the API server writes whole seconds
    await client.delete(path, grace_seconds=0)


async def test_a_pod_that_is_given_one_second_stays_known_until_its_kubelet_says_that_it_has_ended(
    client: KubeClient,
) -> None:
    path = await running(client, "short")
    await client.delete(path, grace_seconds=1)
    await asyncio.sleep(2)
    assert (await metadata(client, path)).deletion_grace_period_seconds == 1
    await client.delete(path, grace_seconds=0)
