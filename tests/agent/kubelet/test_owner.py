"""Who holds these ids, by kubelet's checkpoint alone."""

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager

import msgspec
import pytest

from fractile.agent.kubelet.kubelet_state import KubeletState
from fractile.agent.kubelet.owner import Owned, recorded_owner
from fractile.agent.node.pods import NodePods
from fractile.kube import paths
from fractile.kube.client import KubeClient
from fractile.model.request import Role
from fractile.model.units import ContainerName, PodUID
from fractile.wire.foreign.kubelet_checkpoint import Recorded
from fractile.wire.kubernetes.objects import Pod
from tests.agent.world import CARDS, MEM, NODE, Asks, World, credentials, world

IDS = frozenset({f"{CARDS[0].uuid}::{k}" for k in range(3)})
MORE = frozenset({f"{CARDS[0].uuid}::7"})


@asynccontextmanager
async def view() -> AsyncGenerator[tuple[World, NodePods, Pod]]:
    """A pod with an init container and two others, which the node's view knows."""
    async with world(agent=False) as w, KubeClient(credentials(w)) as client:
        pods = NodePods(client, node=NODE, unit=w.unit)
        asks = Asks("warm", 3, role=Role.INIT), Asks("main", 3), Asks("side", 1)
        pod = w.bind(*asks, on={a.name: [CARDS[0]] for a in asks})
        pods.changed(pod)
        yield w, pods, pod


def recorded(pod: Pod, container: str, ids: frozenset[str] = IDS, resource: str = MEM) -> Recorded:
    return Recorded(PodUID(pod.metadata.uid), ContainerName(container), resource, ids)


async def found(pods: NodePods, *entries: Recorded) -> Owned | None:
    return await recorded_owner(MEM, IDS, KubeletState((), entries), pods)


async def test_the_pod_that_the_record_names_owns_what_each_of_its_containers_holds() -> None:
    async with view() as (w, pods, pod):
        w.annotate(pod, {"new": "since the watch"})
        owned = await found(pods, recorded(pod, "warm"), recorded(pod, "main"), recorded(pod, "side", MORE))
        assert owned is not None
        assert owned.uid == pod.metadata.uid
        assert (owned.pod.metadata.annotations or {})["new"]  # as the API server has it now
        assert {name: ids for (name, _), ids in owned.held.items()} == {"warm": IDS, "main": IDS, "side": MORE}


def finish(w: World, pod: Pod) -> None:
    path = f"{paths.pod(pod.metadata.namespace, pod.metadata.name)}/status"
    w.server.merge(path, {"status": {"phase": "Succeeded"}})


def make_anew(w: World, pod: Pod) -> None:
    w.server.delete(paths.pod(pod.metadata.namespace, pod.metadata.name))
    w.bind(Asks("main", 3), on={"main": [CARDS[0]]}, name=pod.metadata.name)


def delete(w: World, pod: Pod) -> None:
    w.server.delete(paths.pod(pod.metadata.namespace, pod.metadata.name))


@pytest.mark.parametrize("change", [finish, make_anew, delete])
async def test_a_pod_that_is_not_what_it_was_is_not_taken_from_the_record(
    change: Callable[[World, Pod], None],
) -> None:
    async with view() as (w, pods, pod):
        assert await found(pods, recorded(pod, "main")) is not None
        change(w, pod)
        assert await found(pods, recorded(pod, "main")) is None


async def test_a_record_that_does_not_name_exactly_one_known_pod_with_these_ids_is_not_enough() -> None:
    async with view() as (w, pods, pod):
        other = w.bind(Asks("main", 3), on={"main": [CARDS[0]]})
        stranger = msgspec.structs.replace(recorded(other, "main"), uid=PodUID("no pod of this node"))
        assert await found(pods) is None
        assert await found(pods, stranger) is None
        assert await found(pods, recorded(other, "main")) is None  # the view does not know it yet
        pods.changed(other)
        assert await found(pods, recorded(other, "main")) is not None
        assert await found(pods, recorded(pod, "main"), recorded(other, "main")) is None
        assert await found(pods, recorded(pod, "main", IDS - {min(IDS)})) is None
        assert await found(pods, recorded(pod, "main", resource="aliyun.com/gpu-count")) is None
        assert await found(pods, recorded(pod, "no container of it")) is None
        assert await recorded_owner(MEM, IDS, KubeletState((), None), pods) is None
