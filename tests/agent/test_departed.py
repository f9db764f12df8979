"""Grants whose pod is gone while something of it lives."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec

from fractile.agent.departed import Departed, charges
from fractile.agent.journal import Journal
from fractile.agent.pods import NodePods
from fractile.agent.precedence import granted_since
from fractile.agent.slices import Granted, Slices
from fractile.kube.client import KubeClient
from fractile.kube.events import EventRecorder
from fractile.model.placement import Charge
from fractile.model.units import CardUUID, ContainerName, MemoryUnit, MiB, NodeName, Percent, PodUID
from fractile.region import directory
from fractile.region.page import CardLimits, Limits
from fractile.wire.objects import ObjectMeta, Pod
from tests.agent.test_leases import leased
from tests.fakes.apiserver import FakeApiServer
from tests.region.writer import alive

CARD = CardUUID("GPU-a")
LIMITS = Limits(
    pod_uid=PodUID("u1"),
    namespace="ns",
    pod="p",
    container=ContainerName("main"),
    cards=(CardLimits(uuid=CARD, memory=300 * 2**20, cores=Percent(20)),),
)


@asynccontextmanager
async def world(folder: Path) -> AsyncGenerator[tuple[Departed, NodePods, Path]]:
    journal = Journal(folder / "slices", new_token=str)
    journal.create("t", "r", frozenset({"a::0"}))
    journal.write_limits("t", LIMITS)
    async with FakeApiServer() as server, KubeClient(server.credentials()) as client:
        pods = NodePods(client, node=NodeName("n1"), unit=MemoryUnit.GiB)
        yield Departed(Slices(journal), pods, EventRecorder(client, "test")), pods, journal.path("t") / directory.REGION


async def test_a_grant_of_a_pod_that_is_gone_and_of_which_nothing_lives_counts_no_more(tmp_path: Path) -> None:
    async with world(tmp_path) as (departed, _, _):
        assert await departed.look() == ()


async def test_what_lives_counts_as_it_was_granted(tmp_path: Path) -> None:
    async with world(tmp_path) as (departed, _, region):
        with alive(region, 5):
            found = await departed.look()
        assert charges(found) == [Charge(CARD, MiB(300), Percent(20), coreless=False)]
        assert departed.tokens() == {"t"}
        assert await departed.look() == ()


async def test_a_pod_that_is_known_counts_by_its_placement(tmp_path: Path) -> None:
    async with world(tmp_path) as (departed, pods, region):
        pods.changed(Pod(metadata=ObjectMeta(name="p", namespace="ns", uid="u1")))
        with alive(region, 5):
            assert await departed.look() == ()


async def test_what_the_driver_shows_counts_without_a_slot(tmp_path: Path) -> None:
    async with world(tmp_path) as (departed, _, _):
        departed.driven(["t", "another"])
        assert len(await departed.look()) == 1
        departed.driven([])
        assert await departed.look() == ()


async def test_a_region_that_cannot_be_looked_at_counts(tmp_path: Path) -> None:
    async with world(tmp_path) as (departed, _, region):
        with await asyncio.to_thread(lambda: leased(region, "write")):
            assert len(await departed.look()) == 1


def test_the_first_grant_of_a_card_counts_and_a_later_container_of_the_pod_changes_nothing(tmp_path: Path) -> None:
    first = Granted("t", tmp_path, 5.0, LIMITS)
    later = Granted("s", tmp_path, 9.0, msgspec.structs.replace(LIMITS, container=ContainerName("side")))
    assert granted_since([later, first]) == {PodUID("u1"): {CARD: (5.0, PodUID("u1"))}}
