"""Annotations for other tools: who was just granted is looked at alone, and all the others in time all the same."""

import asyncio

import pytest

from fractile.agent.deviceplugin import assigned
from fractile.agent.deviceplugin.assigned import Assigned
from fractile.agent.node.pods import NodePods
from fractile.kube import paths
from fractile.kube.client import KubeClient
from fractile.wire.kubernetes.objects import Pod
from tests.agent.world import CARDS, NODE, Asks, World, world

MARK = "ALIYUN_COM_GPU_MEM_ASSIGNED"


async def marked(client: KubeClient, pod: Pod) -> bool:
    now = await client.get(paths.pod(pod.metadata.namespace, pod.metadata.name), Pod)
    return (now.metadata.annotations or {}).get(MARK) == "true"


async def until_marked(client: KubeClient, pod: Pod) -> None:
    async with asyncio.timeout(10):
        while not await marked(client, pod):  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def grant_for_ever(told: Assigned, pods: NodePods, pod: Pod) -> None:
    while True:
        request = pods.request(pod)
        assert request is not None
        told.granted(pod, request)
        await asyncio.sleep(0.02)


async def test_who_lost_its_mark_gets_it_again_although_others_are_granted_all_the_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(assigned, "_ROUND", 0.5)
    async with world(agent=False) as w, KubeClient(w.server.credentials()) as client:
        first, other = _bound(w), _bound(w)
        pods = NodePods(client, node=NODE, unit=w.unit)
        told = Assigned(pods)
        async with asyncio.TaskGroup() as tasks:
            running = [tasks.create_task(pods.follow().run())]
            assert await pods.synced(10)
            running += [tasks.create_task(told.run()), tasks.create_task(grant_for_ever(told, pods, other))]
            request = pods.request(first)
            assert request is not None
            told.granted(first, request)
            await until_marked(client, first)
            await until_marked(client, other)
            await pods.annotate(first, {MARK: "false"})
            await until_marked(client, first)
            for task in running:
                task.cancel()


def _bound(w: World) -> Pod:
    return w.bind(Asks("main", 1), on={"main": [CARDS[0]]})
