"""A library that somebody damages on the node while containers have it mounted."""

import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from fractile.agent.audit.spared import Spared
from fractile.agent.kubelet.kubelet_state import Kubelet
from fractile.agent.limits.library import LibraryVersion, install
from fractile.agent.limits.library_content import LibraryContent
from fractile.agent.limits.library_damage import REASON, LibraryDamage
from fractile.agent.node.owners import ProcessOwner
from fractile.kube.events import EventRecorder
from fractile.kube.reflector import Gone
from fractile.model.units import PodUID
from fractile.policy.outside import DAMAGED, sentence
from fractile.wire.kubernetes.objects import Pod
from fractile.wire.output.node_usage import Outside
from tests.agent.deviceplugin.start import Start, ids, start_with_events
from tests.agent.limits.test_library import source
from tests.agent.world import CARDS, NODE, Asks

A, _ = CARDS


class Node:
    def __init__(self, s: Start, events: EventRecorder) -> None:
        self.s = s
        self.events = events
        self.version = install(source(s.world.root / "from"), s.world.root)

    def agent(self, current: LibraryVersion | None = None) -> LibraryDamage:
        """What an agent that begins now knows."""
        kubelet = Kubelet(self.s.socket, self.s.world.root / "checkpoint")
        return LibraryDamage(
            *(kubelet, self.s.pods, self.s.journal, self.events, LibraryContent()),
            state=self.s.world.root,
            current=current or self.version,
        )

    async def started(self) -> Pod:
        pod = self.s.bind(Asks("main", 4), on={"main": [A]})
        self.s.holds(pod, "main", ids(A, 4), besides=self.version.mounts())
        assert await self.s.check(ids(A, 4)) is None
        self.s.pods.changed(self.s.world.pod(pod))
        return pod

    def again(self) -> LibraryVersion:
        return install(self.s.world.root / "from", self.s.world.root)

    async def told(self) -> list[tuple[str, str]]:
        await self.events.flush(5)
        found: list[dict[str, Any]] = self.s.world.server.all("/api/v1/events")
        return [
            (e["involvedObject"]["kind"], e["message"])
            for e in found
            if e["reason"] == REASON
            for _ in range(e.get("count", 1))
        ]


@asynccontextmanager
async def node() -> AsyncGenerator[Node]:
    async with start_with_events() as (s, events):
        yield Node(s, events)


@pytest.mark.parametrize("name", ["libfractile.so", "ld.so.preload"])
async def test_a_damaged_version_is_told_once_to_its_pods_and_to_the_node(name: str) -> None:
    async with node() as n:
        pod = await n.started()
        damage = n.agent()
        await damage.round()
        assert (damage.now, await n.told()) == (frozenset(), [])
        os.truncate(n.version.folder / name, 0)
        for _ in range(3):
            await damage.round()
        assert damage.now == {pod.metadata.uid}
        said = dict(await n.told())
        assert len(await n.told()) == 2
        assert f"kubectl delete pod -n default {pod.metadata.name}" in said["Pod"]
        assert f"is damaged on node {NODE}: programs that start in them from now on" in said["Pod"]
        assert str(n.version.folder) in said["Node"]


async def test_what_was_restored_leaves_pods_of_which_programs_started_meanwhile() -> None:
    async with node() as n:
        pod = await n.started()
        os.truncate(n.version.folder / "ld.so.preload", 0)
        damage = n.agent(n.again())
        for _ in range(2):
            await damage.round()
        assert damage.now == frozenset(), "what starts now is held to its limits"
        assert damage.concerns(pod.metadata.uid)
        said = dict(await n.told())
        assert "before it was restored" in said["Pod"]
        assert said["Node"].endswith("it is restored")
        assert len(await n.told()) == 2


async def test_a_later_agent_knows_the_pods_as_long_as_they_are_there() -> None:
    async with node() as n:
        pod = await n.started()
        os.truncate(n.version.folder / "ld.so.preload", 0)
        await n.agent(n.again()).round()
        later = n.agent(n.again())
        await later.round()
        assert later.concerns(pod.metadata.uid)
        assert len(await n.told()) == 2
        n.s.pods.gone(Gone("default", pod.metadata.name, pod.metadata.uid))
        await later.round()
        assert not later.concerns(pod.metadata.uid)
        assert not n.agent().concerns(pod.metadata.uid)


async def test_the_audit_blames_the_node_and_evicts_no_such_pod_unless_it_holds_nothing_of_the_card() -> None:
    async with node() as n:
        pod = await n.started()
        owner = ProcessOwner(PodUID(pod.metadata.uid), "default", pod.metadata.name)
        kubelet = Kubelet(n.s.socket, n.s.world.root / "checkpoint")
        n.s.world.server.create("/api/v1/namespaces", {"metadata": {"name": "default"}})
        spared = Spared(n.s.client, (), kubelet.record, damaged=lambda uid: uid == owner.uid)
        assert await spared.why(owner) == DAMAGED
        assert await spared.why(owner, CARDS[1].uuid) == ""
    seen = Outside(kind="no-library", card=A.uuid, since=0.0, bytes=2**20, spared=DAMAGED, unseen="/etc/ld.so.preload")
    assert "the node is at fault" in sentence(seen, NODE)
    assert "do not cover" not in sentence(seen, NODE)
