"""The fake kubelet keeps the contract that the real one keeps (the end-to-end tests run the same scenarios there)."""

import asyncio
import random
import shutil
import tempfile
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path

import msgspec
import pytest

from fractile.model.units import PodUID
from fractile.wire.kubernetes.objects import Pod
from tests.contract.kubelet_recorder import Containers
from tests.contract.kubelet_scenario import SCENARIOS, Scenario
from tests.fakes.kubelet import FakeKubelet


class FakeWorld:
    """Pods come to the fake kubelet directly, without an API server."""

    def __init__(self, kubelet: FakeKubelet) -> None:
        self._kubelet = kubelet
        self._pods: dict[str, Pod] = {}
        self._restarting: set[str] = set()
        self.plugin_directory = kubelet.plugin_directory
        self.pod_resources_socket = kubelet.pod_resources_socket

    async def allocatable(self, resource: str) -> int:
        return self._kubelet.capacity().get(resource, (0, 0))[1]

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
        def made(given: Containers) -> list[object]:
            return [{"name": n, "resources": {"limits": {resource: str(a)} if a else {}}} for n, a in given]

        manifest = {
            "metadata": {"namespace": "default", "name": name, "uid": f"uid-of-{name}"},
            "spec": {"initContainers": made(init), "containers": made(containers)},
            "status": {"phase": "Pending"},
        }
        pod = self._pods[name] = msgspec.convert(manifest, Pod)
        for container in busy:
            self._kubelet.keep_busy(pod, container)
        if restarts:
            self._restarting.add(name)
        self._kubelet.add(pod)
        return PodUID(pod.metadata.uid)

    async def end(self, name: str, container: str) -> None:
        self._kubelet.end_container(self._pods[name], container, for_good=name not in self._restarting)

    async def restart_kubelet(self, *, forgets: bool = False) -> None:
        await (self._kubelet.lose_checkpoint() if forgets else self._kubelet.restart())

    async def phase(self, name: str) -> str:
        fate = self._kubelet.fate(self._pods[name])
        return fate.phase if fate else ""

    async def message(self, name: str) -> str:
        return "\n".join(self._kubelet.refusals)

    async def delete(self, name: str) -> None:
        self._kubelet.remove(self._pods.pop(name))


@pytest.fixture
async def fake_world() -> AsyncGenerator[FakeWorld, None]:
    root = Path(tempfile.mkdtemp(prefix="fr-"))  # pytest's own paths are too long for sockets
    try:
        async with FakeKubelet(root, rng=random.Random(5)) as kubelet:
            while not (kubelet.plugin_directory / "kubelet.sock").exists():  # noqa: ASYNC110
                await asyncio.sleep(0.005)
            yield FakeWorld(kubelet)
    finally:
        shutil.rmtree(root)


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda s: s.__name__)
async def test_the_fake_kubelet_keeps_the_contract(scenario: Scenario, fake_world: FakeWorld) -> None:
    await scenario(fake_world)
