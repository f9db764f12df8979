"""The region of a running container that is gone from the node is noticed, and said once."""

from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from fractile.agent.limits.ledger_lost import REASON, LedgerLost
from fractile.agent.node.procfs import Process
from fractile.kube.events import EventRecorder
from fractile.model.units import PodUID
from fractile.region import directory
from fractile.region.page import FLAG_LOST
from tests.agent.deviceplugin.start import Start, ids, start_with_events
from tests.agent.world import CARDS
from tests.region.strange import folder, full, garbage, link, pipe

A, _ = CARDS


class Node:
    def __init__(self, s: Start, events: EventRecorder) -> None:
        self.s = s
        self.events = events
        self.runs = True
        self.loop = LedgerLost(s.journal, s.pods, events, viewers=self._viewers)

    async def started(self) -> Path:
        """The region of a container that was started."""
        pod, token = self.s.four()
        assert await self.s.check(ids(A, 4)) is None
        self.s.pods.changed(self.s.world.pod(pod))
        return self.s.journal.path(token) / directory.REGION

    async def told(self) -> list[str]:
        await self.events.flush(5)
        found = self.s.world.server.all("/api/v1/events")
        return [e["message"] for e in found if e["reason"] == REASON for _ in range(e.get("count", 1))]

    def _viewers(self, pods: Mapping[str, PodUID]) -> Mapping[str, Process]:
        return {token: Process(1, 1, "job", 1, 1, (), token, False) for token in pods if self.runs}


@asynccontextmanager
async def node() -> AsyncGenerator[Node]:
    async with start_with_events() as (s, events):
        yield Node(s, events)


def nothing(path: Path) -> None:
    """In its place."""


@pytest.mark.parametrize("harm", [folder, full, link, pipe, nothing])
async def test_the_pod_is_told_once_with_the_path_and_what_to_do_and_a_start_makes_it_whole(
    harm: Callable[[Path], None],
) -> None:
    async with node() as n:
        region = await n.started()
        region.unlink()
        harm(region)
        for _ in range(3):
            await n.loop.round()
        (message,) = await n.told()
        assert str(region) in message
        assert "kubectl delete pod -n default" in message
        assert await n.s.check(ids(A, 4)) is None, "as the container starts again"
        await n.loop.round()
        region.unlink()
        await n.loop.round()
        assert len(await n.told()) == 2


async def test_nothing_is_said_of_what_a_container_wrote_itself_nor_where_none_runs() -> None:
    async with node() as n:
        region = await n.started()
        await n.loop.round()
        garbage(region)
        await n.loop.round()
        region.unlink()
        n.runs = False
        await n.loop.round()
        assert await n.told() == []


async def test_of_a_directory_that_is_lost_another_event_tells() -> None:
    async with node() as n:
        region = await n.started()
        token = region.parent.parent.name
        limits = n.s.limits(token)
        assert limits is not None
        n.s.journal.write_limits(token, msgspec.structs.replace(limits, flags=FLAG_LOST))
        region.unlink()
        await n.loop.round()
        assert await n.told() == []
