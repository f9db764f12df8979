"""Helm against a real API server: what a new release says, and what an upgrade keeps."""

from collections.abc import Generator
from pathlib import Path
from typing import Any

import helm_python
import pytest
import yaml

from fractile.errors import ApiError
from fractile.kube import credentials, paths
from fractile.kube.client import KubeClient
from fractile.wire.kubernetes import webhook
from tests.charts.rendering import CHART, NAMESPACE
from tests.contract import real_apiserver
from tests.contract.real_apiserver import RealApiServer

pytestmark = pytest.mark.long

AGENTS = f"/apis/apps/v1/namespaces/{NAMESPACE}/daemonsets/fractile-agent"
NAME = "fractile"


@pytest.fixture
def server(tmp_path: Path) -> Generator[RealApiServer]:
    """One of its own: the chart's policies and webhooks would judge the other tests."""
    if why := real_apiserver.missing():
        pytest.skip(why)
    with real_apiserver.running(tmp_path) as started:
        yield started


async def told(server: RealApiServer) -> list[str]:
    """What the agents are told to do about use outside the ledger."""
    async with KubeClient(credentials.load(server.kubeconfig)) as client:
        found = await client.get(AGENTS, dict[str, Any])
    (agent,) = found["spec"]["template"]["spec"]["containers"]
    return [arg.partition("=")[2] for arg in agent["args"] if arg.startswith("--outside-ledger=")]


def helm(server: RealApiServer, verb: str, *, hooked: bool = False, **agent: object) -> None:
    # This API server allows no privileged containers.
    values = {"agent": {"sharedFiles": "disk"} | agent, "webhook": {"enabled": hooked}}
    options = {"reset_values": True} if verb == "upgrade" else {}
    with helm_python.Config(kubeconfig_path=str(server.kubeconfig), namespace=NAMESPACE) as config:
        getattr(config, verb)(str(CHART), NAME, values, timeout=60, **options)


async def test_a_secret_that_the_control_plane_has_made_again_is_the_releases_own(server: RealApiServer) -> None:
    """With nothing of helm's in it, as a replica makes it that has never seen the first one."""
    path = paths.secret(NAMESPACE, "fractile-webhook")
    async with KubeClient(credentials.load(server.kubeconfig)) as client:
        await client.create("/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
        helm(server, "install", hooked=True)
        await client.delete(path)
        again = webhook.with_values(webhook.secret_again({}, "fractile-webhook"), {"tls.crt": b"x"})
        await client.apply(path, again, field_manager="fractile", force=False)
        helm(server, "upgrade", hooked=True)
        found = await client.get(path, dict[str, Any])
        assert found["metadata"]["annotations"]["meta.helm.sh/release-name"] == NAME
        assert found["data"] == again["data"]
        helm(server, "upgrade", hooked=False)
        with pytest.raises(ApiError, match="not found"):
            await client.get(path, dict[str, Any])


async def test_a_new_release_evicts_and_an_upgrade_keeps_what_there_is_until_it_is_set(server: RealApiServer) -> None:
    async with KubeClient(credentials.load(server.kubeconfig)) as client:
        await client.create("/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
    helm(server, "install")
    assert await told(server) == ["evict"]
    helm(server, "upgrade")
    assert await told(server) == ["evict"]
    helm(server, "upgrade", outsideLedger="warn")  # as releases before this value had a default did
    assert await told(server) == ["warn"]
    helm(server, "upgrade")
    assert await told(server) == ["warn"]
    helm(server, "upgrade", outsideLedger="evict-all")
    assert await told(server) == ["evict-all"]


def test_the_chart_has_no_value_of_its_own_for_it() -> None:
    assert yaml.safe_load((CHART / "values.yaml").read_text())["agent"]["outsideLedger"] == ""
