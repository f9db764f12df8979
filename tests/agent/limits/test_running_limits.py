"""The limits of containers that may still run."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from fractile.agent.limits.journal import Journal
from fractile.agent.limits.running_limits import RunningLimits
from fractile.agent.node.pods import NodePods
from fractile.kube.client import KubeClient
from fractile.model.units import PodUID
from fractile.region.page import ContainerLimits
from fractile.wire.kubernetes.objects import Pod
from tests.agent.world import CARDS, NODE, Asks, World, credentials, world
from tests.region.examples import LIMITS

IDS = frozenset({"GPU-a::0"})


@asynccontextmanager
async def scene(tmp_path: Path) -> AsyncGenerator[tuple[World, NodePods, Journal, Pod]]:
    """A pod with limits, and one that is not there any more."""
    async with world(agent=False) as w, KubeClient(credentials(w)) as client:
        pods = NodePods(client, node=NODE, unit=w.unit)
        pod = w.bind(Asks("main", 3), on={"main": [CARDS[0]]})
        pods.changed(pod)
        journal = Journal(tmp_path / "slices", new_token=str)
        grant(journal, "mine", pod.metadata.uid)
        grant(journal, "gone", "another")
        yield w, pods, journal, pod


def grant(journal: Journal, token: str, uid: str) -> None:
    journal.create(token, "r", IDS)
    journal.write_limits(token, msgspec.structs.replace(LIMITS, pod_uid=PodUID(uid)))


async def test_whatever_the_agent_or_a_pod_changes_is_in_the_next_answer(tmp_path: Path) -> None:
    async with scene(tmp_path) as (w, pods, journal, pod):
        running = RunningLimits(journal, pods)
        for _ in range(3):
            assert sorted(await running()) == ["mine"]
        journal.write_limits("mine", msgspec.structs.replace(LIMITS, pod_uid=PodUID(pod.metadata.uid), priority=9))
        assert {t: x.priority for t, x in (await running()).items()} == {"mine": 9}
        other = w.bind(Asks("main", 1), on={"main": [CARDS[0]]})
        pods.changed(other)
        grant(journal, "new", other.metadata.uid)
        assert sorted(await running()) == ["mine", "new"]
        pods.changed(msgspec.structs.replace(other, status=msgspec.structs.replace(other.status, phase="Failed")))
        assert sorted(await running()) == ["mine"]
        journal.remove("mine")
        assert await running() == {}


async def test_at_rest_the_files_are_looked_at_now_and_then_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with scene(tmp_path) as (_, pods, journal, _pod):
        looks: list[int] = []
        real = journal.granted

        def granted() -> dict[str, ContainerLimits]:
            looks.append(1)
            return real()

        monkeypatch.setattr(journal, "granted", granted)
        running = RunningLimits(journal, pods)
        for _ in range(12):
            await running()
        assert len(looks) == 2
