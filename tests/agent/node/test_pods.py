"""The agent's view of the pods of its node."""

from collections.abc import AsyncGenerator
from typing import Any

import msgspec
import pytest

from fractile.agent.node.pods import NodePods, PodWithRequest
from fractile.kube.client import KubeClient
from fractile.model.units import MemoryUnit, NodeName, PodUID
from fractile.wire.kubernetes.objects import Pod
from tests.fakes.apiserver import FakeApiServer

LARGE = {"kubectl.kubernetes.io/last-applied-configuration": "x" * 200_000, "team.example/note": "y" * 50_000}


def pod(*, limits: dict[str, str], annotations: dict[str, str]) -> Pod:
    container = {"name": "main", "resources": {"limits": limits}}
    meta: dict[str, Any] = {"name": "p", "namespace": "n", "uid": "u", "annotations": annotations, "labels": {"a": "b"}}
    return msgspec.convert({"metadata": meta, "spec": {"containers": [container]}}, Pod)


@pytest.fixture
async def pods() -> AsyncGenerator[NodePods]:
    async with FakeApiServer() as server, KubeClient(server.credentials()) as client:
        yield NodePods(client, node=NodeName("n1"), unit=MemoryUnit.MiB)


def seen(pods: NodePods) -> PodWithRequest:
    found = pods.by_uid(PodUID("u"))
    assert found is not None
    return found


@pytest.mark.parametrize("learned", [False, True])
async def test_of_a_pod_that_asks_for_nothing_only_what_is_read_is_kept(pods: NodePods, learned: bool) -> None:
    """Hundreds of them, with 256 KiB each, once took the agent 200 MiB."""
    ours = {"fractile.dev/placement": "{}", "fractile.dev/other": "z" * 10_000}
    (pods.learn if learned else pods.changed)(pod(limits={}, annotations=LARGE | ours))
    found = seen(pods)
    assert found.request is None
    assert found.pod.metadata.annotations == {"fractile.dev/placement": "{}"}
    assert found.pod.metadata.labels is None
    assert (found.pod.metadata.name, found.pod.metadata.namespace) == ("p", "n")
    assert found.pod.spec.containers


async def test_a_pod_that_asks_for_gpus_is_kept_whole(pods: NodePods) -> None:
    asking = pod(limits={"aliyun.com/gpu-mem": "1"}, annotations=LARGE)
    pods.changed(asking)
    assert seen(pods).request is not None
    assert seen(pods).pod == asking
