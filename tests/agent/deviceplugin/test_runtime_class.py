"""Pods whose runtime does not load the library start nowhere, with a reason."""

import msgspec
import pytest

from fractile.agent.deviceplugin.runtime_class import RuntimeClasses
from fractile.agent.kubelet.owner import Denied
from fractile.errors import ApiError
from fractile.kube import paths
from fractile.kube.client import KubeClient
from fractile.wire.kubernetes.objects import ObjectMeta
from fractile.wire.kubernetes.pod_mounts import MountingPod, MountingSpec
from tests.agent.world import CARDS, Asks, world
from tests.fakes.apiserver import FakeApiServer, Fault


def pod(runtime_class: str) -> MountingPod:
    return MountingPod(
        metadata=ObjectMeta(name="p", namespace="ns"), spec=MountingSpec(runtime_class_name=runtime_class)
    )


async def asked(handler: str, *, more: tuple[str, ...] = (), name: str = "special") -> Denied | None:
    async with FakeApiServer() as server, KubeClient(server.credentials()) as client:
        server.create(paths.runtime_classes(), {"metadata": {"name": "special"}, "handler": handler})
        return await RuntimeClasses(client, more=more).denied(pod(name))


@pytest.mark.parametrize("handler", ["runc", "crun", "youki", "nvidia", "nvidia-cdi", "nvidia-legacy"])
async def test_runtimes_that_share_the_nodes_kernel_are_as_good_as_the_default(handler: str) -> None:
    assert await asked(handler) is None


@pytest.mark.parametrize("handler", ["runsc", "gvisor", "kata", "kata-qemu", "kata-qemu-nvidia-gpu", "mine", ""])
async def test_every_other_one_is_refused_with_what_to_do(handler: str) -> None:
    found = await asked(handler)
    assert found is not None
    assert "would not be enforced" in found.reason
    assert f"--runtime-handlers={handler}" in found.reason


async def test_an_administrator_may_name_more() -> None:
    assert await asked("mine", more=("mine",)) is None


async def test_without_a_class_nobody_is_asked() -> None:
    assert await asked("runsc", name="") is None


async def test_an_api_server_that_does_not_say_it_is_a_no_for_now() -> None:
    async with FakeApiServer() as server, KubeClient(server.credentials()) as client:
        server.create(paths.runtime_classes(), {"metadata": {"name": "special"}, "handler": "runc"})
        server.inject(Fault(method="GET", path="runtimeclasses", times=1, status=403))
        classes = RuntimeClasses(client)
        with pytest.raises(ApiError):
            await classes.denied(pod("special"))
        assert await classes.denied(pod("special")) is None


async def test_the_agent_starts_no_container_of_such_a_pod() -> None:
    async with world() as w:
        w.server.create(paths.runtime_classes(), {"metadata": {"name": "gvisor"}, "handler": "runsc"})
        bound = w.bind(Asks("main", 1), on={"main": [CARDS[0]]})
        w.server.merge(paths.pod("default", bound.metadata.name), {"spec": {"runtimeClassName": "gvisor"}})
        w.kubelet.add(w.pod(bound))
        said = await w.kubelet.refused("would not be enforced")
        assert "runsc" in said
        assert w.kubelet.started(bound, "main") is None


def test_a_pod_says_its_class() -> None:
    text = b'{"spec": {"runtimeClassName": "kata"}}'
    assert msgspec.json.decode(text, type=MountingPod).spec.runtime_class_name == "kata"
