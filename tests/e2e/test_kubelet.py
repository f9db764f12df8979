"""The contract of kubelet's device manager on a real kubelet: the same scenarios that the fake one must pass."""

import asyncio
import json
from pathlib import Path

import pytest

from fractile.cluster.local import KubectlFailed, LocalCluster
from fractile.model.units import PodUID
from tests.contract.kubelet_scenario import SCENARIOS, Containers, Scenario

pytestmark = pytest.mark.e2e

_IMAGE = "fractile.dev/busybox:1"


class RealWorld:
    """Pods go to one node of the cluster by its name, past the scheduler."""

    def __init__(self, cluster: LocalCluster, node: str) -> None:
        self._cluster = cluster
        self._node = node
        folder = cluster.kubelet_folder(node)
        self.plugin_directory: Path = folder / "device-plugins"
        self.pod_resources_socket: Path = folder / "pod-resources" / "kubelet.sock"

    async def allocatable(self, resource: str) -> int:
        node = json.loads(await self._kubectl("get", "node", self._node, "-o", "json"))
        return int(node["status"]["allocatable"].get(resource, "0"))

    async def create(self, name: str, *, resource: str, init: Containers, containers: Containers) -> PodUID:
        def made(given: Containers, command: list[str]) -> list[object]:
            return [
                {
                    "name": n,
                    "image": _IMAGE,
                    "imagePullPolicy": "Never",
                    "command": command,
                    "resources": {"limits": {resource: str(a)} if a else {}},
                }
                for n, a in given
            ]

        manifest = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name},
            "spec": {
                "nodeName": self._node,
                "terminationGracePeriodSeconds": 1,
                "dnsPolicy": "Default",
                "restartPolicy": "Never",
                "initContainers": made(init, ["true"]),
                "containers": made(containers, ["sleep", "1000"]),
            },
        }
        text = await self._kubectl("create", "-f", "-", "-o", "json", stdin=json.dumps(manifest))
        return PodUID(json.loads(text)["metadata"]["uid"])

    async def phase(self, name: str) -> str:
        return await self._kubectl("get", "pod", name, "-o", "jsonpath={.status.phase}")

    async def message(self, name: str) -> str:
        events = await self._kubectl("get", "events", "--field-selector", f"involvedObject.name={name}", "-o", "json")
        status = await self._kubectl("get", "pod", name, "-o", "jsonpath={.status.message}")
        return "\n".join([status, *(e["message"] for e in json.loads(events)["items"])])

    async def delete(self, name: str) -> None:
        await self._kubectl("delete", "pod", name, "--timeout=60s")

    async def _kubectl(self, *args: str, stdin: str | None = None) -> str:
        return await asyncio.to_thread(self._cluster.kubectl, "-n", "default", *args, stdin=stdin)


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda s: s.__name__)
def test_the_real_kubelet_keeps_the_contract(scenario: Scenario, cluster: LocalCluster) -> None:
    cluster.up()
    try:
        asyncio.run(scenario(RealWorld(cluster, cluster.nodes[-1])))
    except KubectlFailed as e:
        pytest.fail(str(e))
