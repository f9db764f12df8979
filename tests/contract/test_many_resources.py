"""A pod that names thousands of resources costs the API server little, on the real one.

The server counts what an expression costs in a way that takes time with the square of what the expression walks: two
walks of 16,000 names took it several seconds. So no condition walks more than 256 (30-, 31-, 32-, 35-, 37-*.yaml).
"""

import json
import ssl
import time
import urllib.request
from collections.abc import Callable
from typing import Any

import pytest

from tests.contract import real_apiserver
from tests.contract.kubectl import Kubectl
from tests.contract.policies.test_container_policy import MOUNTS, create, mount, pod
from tests.contract.policies.test_workload_policy import WARNS, told, workload

TEAM = "many-resources"
MANY = 32_000
POD, DEPLOYMENT = "/api/v1/namespaces/{}/pods", "/apis/apps/v1/namespaces/{}/deployments"


def naming(count: int, container: dict[str, Any] | None = None) -> dict[str, Any]:
    """A pod that names ``count`` resources, none of them ours."""
    made = pod(container or {}, gpu=False)
    made["metadata"] |= {"namespace": TEAM, "labels": {"app": "a"}}
    made["spec"]["containers"][0]["resources"] = {"limits": {f"example.com/r{i}": "1" for i in range(count)}}
    return made


@pytest.fixture(scope="module")
def team(kubectl: Kubectl) -> str:
    """A namespace in which the policies are in force."""
    kubectl.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": TEAM}})
    deadline = time.monotonic() + 30
    while MOUNTS not in (said := create(kubectl, naming(300, mount("/etc")))):
        assert time.monotonic() < deadline, said
        time.sleep(0.2)
    return TEAM


@pytest.fixture(scope="module")
def took(kubectl: Kubectl) -> Callable[[str, dict[str, Any]], float]:
    """Seconds until the server has taken it, without keeping it; the shortest of three."""
    context = ssl.create_default_context(cafile=str(kubectl.server.ca))
    headers = {"Authorization": f"Bearer {real_apiserver.TOKEN}", "Content-Type": "application/json"}

    def once(path: str, thing: dict[str, Any]) -> float:
        url = f"{kubectl.server.url}{path}?dryRun=All"
        request = urllib.request.Request(url, json.dumps(thing).encode(), headers)
        began = time.monotonic()
        with urllib.request.urlopen(request, timeout=120, context=context) as answer:
            assert answer.status == 201
        return time.monotonic() - began

    return lambda path, thing: min(once(path.format(TEAM), thing) for _ in range(3))


@pytest.mark.parametrize("kind", ["Pod", "Deployment"])
def test_a_pod_that_names_thousands_of_resources_costs_the_api_server_seconds_at_most(
    took: Callable[[str, dict[str, Any]], float], team: str, kind: str
) -> None:
    made = naming(MANY)
    seconds = took(POD, made) if kind == "Pod" else took(DEPLOYMENT, workload(made, kind, team))
    print(f"{kind}: {seconds:.2f} s")
    assert seconds < 8


def test_a_pod_that_names_more_than_256_resources_is_judged_like_one_that_asks_for_devices(
    kubectl: Kubectl, team: str
) -> None:
    assert create(kubectl, naming(300)) == ""
    said = create(kubectl, naming(257, mount("/etc/fractile")))
    assert MOUNTS in said
    assert "container main has a mount, device or terminationMessagePath at /etc/fractile; " in said
    assert "A pod with a container that names more than 256 resources is treated as one with GPUs" in said
    assert WARNS + said.partition(" denied request: ")[2].strip() in told(
        kubectl, workload(naming(257, mount("/etc/fractile")), namespace=team)
    )
    assert create(kubectl, naming(256, mount("/etc/fractile"))) == ""
