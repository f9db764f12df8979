"""The contract of kubelet's device manager on a real kubelet: the same scenarios that the fake one must pass."""

import asyncio
import contextlib
import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from fractile.errors import SetupError
from fractile.lab.cluster.local import KubectlFailed, LocalCluster
from fractile.model.units import PodUID
from fractile.wire.foreign.kubelet_checkpoint import FILE_NAME
from tests.contract.kubelet_recorder import Containers
from tests.contract.kubelet_scenario import (
    SCENARIOS,
    Scenario,
    a_deleted_pods_ids_are_free_again,
    containers_are_admitted_in_order_before_the_first_one_starts,
    one_container_is_preferred_allocated_and_started_with_the_same_ids,
    options_are_asked_before_register_is_answered_and_devices_after,
)

pytestmark = pytest.mark.e2e

_IMAGE = "fractile.dev/busybox:1"
_STATUSES = ("initContainerStatuses", "containerStatuses")
_STATES = ("state", "lastState")
_UNTIL_TOLD = "trap 'exit 0' TERM; while :; do sleep 0.1; done"


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

    async def create(
        self,
        name: str,
        *,
        resource: str,
        init: Containers,
        containers: Containers,
        restarts: bool = False,
        busy: Sequence[str] = (),
    ) -> PodUID:
        def made(given: Containers, *, on: bool) -> list[object]:
            return [
                {
                    "name": n,
                    "image": _IMAGE,
                    "imagePullPolicy": "Never",
                    "command": ["sh", "-c", _UNTIL_TOLD] if on or n in busy else ["true"],
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
                "restartPolicy": "Always" if restarts else "Never",
                "initContainers": made(init, on=False),
                "containers": made(containers, on=True),
            },
        }
        text = await self._kubectl("create", "-f", "-", "-o", "json", stdin=json.dumps(manifest))
        return PodUID(json.loads(text)["metadata"]["uid"])

    async def end(self, name: str, container: str) -> None:
        before = await self._ended(name, container)
        async with asyncio.timeout(60):
            while await self._ended(name, container) == before:
                with contextlib.suppress(KubectlFailed):  # it may not run yet
                    await self._kubectl("exec", name, "-c", container, "--", "kill", "1")
                await asyncio.sleep(0.2)

    async def _ended(self, name: str, container: str) -> str:
        """How often, and whether now: something that changes when it ends."""
        of = f'[?(@.name=="{container}")]'
        fields = [f".status.{kind}{of}.{state}.terminated.containerID" for kind in _STATUSES for state in _STATES]
        return await self._kubectl("get", "pod", name, "-o", "jsonpath=" + "".join(f"{{{f}}}" for f in fields))

    async def restart_kubelet(self, *, forgets: bool = False) -> None:
        def restart() -> None:
            with contextlib.suppress(SetupError):  # it may have ended by itself, just now
                self._cluster.kill(f"{self._node}/kubelet")
            if forgets:
                (self.plugin_directory / FILE_NAME).unlink()
            self._cluster.start(f"{self._node}/kubelet")

        await asyncio.to_thread(restart)

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


_SHORT = (
    options_are_asked_before_register_is_answered_and_devices_after,
    one_container_is_preferred_allocated_and_started_with_the_same_ids,
    containers_are_admitted_in_order_before_the_first_one_starts,
    a_deleted_pods_ids_are_free_again,
)
_MARKED = [s if s in _SHORT else pytest.param(s, marks=pytest.mark.long) for s in SCENARIOS]


@pytest.mark.parametrize("scenario", _MARKED, ids=lambda s: s.__name__)
def test_the_real_kubelet_keeps_the_contract(scenario: Scenario, cluster: LocalCluster) -> None:
    cluster.up()
    try:
        asyncio.run(scenario(RealWorld(cluster, cluster.nodes[-1])))
    except KubectlFailed as e:
        pytest.fail(str(e))
