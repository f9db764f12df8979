"""Resource claims on the real API server: which one explains that a pod uses a card."""

from collections.abc import AsyncGenerator
from typing import Any

import pytest

from fractile.agent.audit import claims
from fractile.kube import credentials, paths
from fractile.kube.client import KubeClient
from tests.contract.real_apiserver import RealApiServer

GPU = "gpu.nvidia.com"
POD = "11111111-2222-3333-4444-555555555555"


@pytest.fixture
async def client(real_server: RealApiServer) -> AsyncGenerator[KubeClient, None]:
    async with KubeClient(credentials.load(real_server.kubeconfig)) as found:
        yield found


async def claim(client: KubeClient, name: str, driver: str = "") -> None:
    """Of the namespace ``default``; with a device of the driver, for the pod. No driver: it asks for nothing."""
    path = paths.resource_claim("default", name, "v1")
    request = {"name": "r", "exactly": {"deviceClassName": "any.example.com"}}
    spec: dict[str, Any] = {"devices": {"requests": [request]}} if driver else {}
    body = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": name}, "spec": spec}
    await client.create(path.rpartition("/")[0], body)
    if driver:
        device = {"request": "r", "driver": driver, "pool": "n1", "device": "gpu-0"}
        status = {
            "allocation": {"devices": {"results": [device]}},
            "reservedFor": [{"resource": "pods", "name": "p", "uid": POD}],
        }
        await client.merge_patch(f"{path}/status", {"status": status})


async def test_only_a_claim_that_gives_the_pod_a_gpu_counts(client: KubeClient) -> None:
    await claim(client, "nothing")
    await claim(client, "network", "net.example.com")
    await claim(client, "gpu", GPU)
    assert await claims.held(client, "default", ["gone", "nothing", "network"], POD, set()) == ""
    assert await claims.held(client, "default", ["gone", "nothing", "network", "gpu"], POD, set()) == "gpu"
    assert await claims.held(client, "default", ["gpu"], "another", set()) == ""
