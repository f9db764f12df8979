"""Token directories that nobody holds."""

import os
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from fractile.agent.kubelet.kubelet_state import Kubelet
from fractile.agent.limits.garbage_collection import GarbageCollector
from fractile.agent.limits.journal import Journal
from fractile.agent.node.pods import NodePods
from fractile.kube.client import KubeClient
from fractile.kube.reflector import Gone
from fractile.model.request import Role
from fractile.wire.kubernetes.objects import Pod
from tests.agent.world import CARDS, NODE, Asks, World, credentials, world

A, _ = CARDS


class Clock:
    """Time that the test moves."""

    def __init__(self) -> None:
        self.ahead = 0.0

    def __call__(self) -> float:
        return time.monotonic() + self.ahead


@asynccontextmanager
async def sweeping(w: World, *pods: Pod) -> AsyncGenerator[tuple[GarbageCollector, Clock, NodePods], None]:
    """A sweeper beside the agent's own, which sleeps; its view holds these pods."""
    async with KubeClient(credentials(w)) as client:
        view = NodePods(client, node=NODE, unit=w.unit)
        for pod in pods:
            view.changed(pod)
        kubelet = Kubelet(w.kubelet.pod_resources_socket, w.kubelet.plugin_directory / "kubelet_internal_checkpoint")
        clock = Clock()
        yield (
            GarbageCollector(kubelet, view, Journal(w.root / "state" / "slices", new_token=str), clock=clock),
            clock,
            view,
        )


async def running_pod(w: World) -> Pod:
    pod = w.admit(Asks("first", 2, role=Role.INIT), Asks("main", 2), on={"first": [A], "main": [A]})
    await w.kubelet.running(pod)
    return pod


async def test_what_a_pod_holds_stays_and_goes_with_it() -> None:
    async with world() as w:
        kept, doomed = await running_pod(w), await running_pod(w)
        assert len(w.tokens()) == 4
        async with sweeping(w, kept) as (sweeper, clock, _):
            w.delete(doomed)
            await sweeper.round()
            clock.ahead = 10_000
            assert len(w.tokens()) == 4, "one round proves nothing"
            await sweeper.round()
            assert len(w.tokens()) == 2
            w.check(kept)
            await sweeper.round()
            await sweeper.round()
            assert len(w.tokens()) == 2


async def test_a_directory_whose_record_was_replaced_goes_with_the_pod_of_its_page() -> None:
    async with world() as w:
        kept, doomed = await running_pod(w), await running_pod(w)
        for token in w.tokens():
            ids = w.root / "state" / "slices" / token / "ids"
            ids.unlink()
            ids.mkdir()
        async with sweeping(w, kept) as (sweeper, clock, _):
            w.delete(doomed)
            await sweeper.round()
            clock.ahead = 10_000
            await sweeper.round()
            assert len(w.tokens()) == 2
            w.check(kept)


async def test_what_became_unowned_a_moment_ago_is_left_alone_however_old_its_files_look() -> None:
    async with world() as w:
        doomed = await running_pod(w)
        for token in w.tokens():
            os.utime(w.root / "state" / "slices" / token / "ids", (0, 0))  # the clock of the node has jumped
        async with sweeping(w) as (sweeper, clock, _):
            w.delete(doomed)
            for _ in range(3):
                clock.ahead += 90
                await sweeper.round()
            assert len(w.tokens()) == 2


async def test_a_directory_that_found_its_owner_between_two_rounds_stays() -> None:
    async with world() as w:
        pod = await running_pod(w)
        async with sweeping(w) as (sweeper, clock, view):  # the watch has not shown the pod
            await sweeper.round()
            view.changed(pod)
            clock.ahead = 10_000
            await sweeper.round()
            assert len(w.tokens()) == 2
            view.gone(Gone("default", pod.metadata.name, pod.metadata.uid))
            await sweeper.round()
            assert len(w.tokens()) == 2, "what was unowned before does not count"


async def test_nothing_is_removed_while_kubelet_is_away() -> None:
    async with world() as w:
        pod = await running_pod(w)
        async with sweeping(w) as (sweeper, clock, _):
            w.server.delete(f"/api/v1/namespaces/default/pods/{pod.metadata.name}")
            await w.kubelet.stop()
            for _ in range(3):
                clock.ahead += 10_000
                await sweeper.round()
            assert len(w.tokens()) == 2


async def test_with_a_checkpoint_of_an_unknown_form_the_ids_that_are_listed_count() -> None:
    async with world() as w:
        kept, doomed = await running_pod(w), await running_pod(w)
        async with sweeping(w) as (sweeper, clock, _):
            w.delete(doomed)
            (w.kubelet.plugin_directory / "kubelet_internal_checkpoint").write_bytes(b"{")
            for _ in range(2):
                clock.ahead += 10_000
                await sweeper.round()
            assert len(w.tokens()) == 2
            w.check(kept)
