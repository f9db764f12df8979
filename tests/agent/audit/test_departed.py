"""Grants whose pod is gone while something of it lives."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec

from fractile.agent.audit.departed import DepartedPods, charges
from fractile.agent.deviceplugin.precedence import granted_since
from fractile.agent.limits.journal import Journal
from fractile.agent.limits.slices import Granted, Slices
from fractile.agent.node.pods import NodePods
from fractile.kube.client import KubeClient
from fractile.kube.events import EventRecorder
from fractile.model.placement import Charge
from fractile.model.units import CardUUID, ContainerName, MemoryUnit, MiB, NodeName, Percent, PodUID
from fractile.region import directory
from fractile.region.page import CardLimits, ContainerLimits
from fractile.wire.kubernetes.objects import ObjectMeta, Pod
from tests.agent.limits.test_leases import leased
from tests.agent.node.test_cgroup_tree import A, B, Machine
from tests.fakes.apiserver import FakeApiServer
from tests.region.writer import alive

CARD = CardUUID("GPU-a")
UID = "0a1b2c3d-1111-4222-8333-444455556666"
CLOCK = [0.0]
LIMITS = ContainerLimits(
    pod_uid=PodUID(UID),
    namespace="ns",
    pod="p",
    container=ContainerName("main"),
    cards=(CardLimits(uuid=CARD, memory=300 * 2**20, cores=Percent(20)),),
)


@asynccontextmanager
async def world(
    folder: Path, told: list[str] | None = None, more: ContainerLimits | None = None
) -> AsyncGenerator[tuple[DepartedPods, NodePods, Path]]:
    """``told`` gets the messages of the events at the end; ``more`` is the page of a second grant."""
    journal = Journal(folder / "slices", new_token=str)
    journal.create("t", "r", frozenset({"a::0"}))
    journal.write_limits("t", LIMITS)
    if more is not None:
        journal.create("u", "r", frozenset({"a::1"}))
        journal.write_limits("u", more)
    async with FakeApiServer() as server, KubeClient(server.credentials()) as client:
        pods = NodePods(client, node=NodeName("n1"), unit=MemoryUnit.GiB)
        events = EventRecorder(client, "test")
        departed = DepartedPods(Slices(journal), pods, events, cgroups=Machine(folder).tree(), clock=lambda: CLOCK[0])
        yield departed, pods, journal.path("t") / directory.REGION
        if told is not None:
            sending = asyncio.create_task(events.run())
            await events.flush(5)
            told += [e["message"] for e in server.all("/api/v1/events")]
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)


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
        pods.changed(Pod(metadata=ObjectMeta(name="p", namespace="ns", uid=UID)))
        with alive(region, 5):
            assert await departed.look() == ()


async def test_what_the_driver_shows_counts_without_a_slot(tmp_path: Path) -> None:
    async with world(tmp_path) as (departed, _, _):
        departed.driven(["t", "another"])
        assert len(await departed.look()) == 1
        departed.driven([])
        assert await departed.look() == ()


async def test_a_container_that_runs_counts_although_it_holds_nothing_yet(tmp_path: Path) -> None:
    async with world(tmp_path) as (departed, _, _):
        cgroup = tmp_path / "cgroup" / "kubepods" / f"pod{UID}" / A
        cgroup.mkdir(parents=True)
        (tmp_path / "proc" / "10").mkdir()
        (tmp_path / "proc" / "10" / "stat").write_text("10 (sh) S " + " ".join(["0"] * 18 + ["77"] + ["0"] * 30))
        mount = "1 2 8:1 /var/lib/fractile/slices/t /etc/fractile ro - ext4 x rw\n"
        (tmp_path / "proc" / "10" / "mountinfo").write_text(mount)
        (cgroup / "cgroup.procs").write_text("10\n")
        assert len(await departed.look()) == 1
        (cgroup / "cgroup.procs").write_text("")
        assert await departed.look() == ()


def container(folder: Path, container_id: str, pid: int, token: str) -> None:
    """A container of the pod that runs, with a process that sees the directory of the token."""
    cgroup = folder / "cgroup" / "kubepods" / f"pod{UID}" / container_id
    cgroup.mkdir(parents=True)
    made = folder / "proc" / str(pid)
    made.mkdir()
    (made / "stat").write_text(f"{pid} (sh) S " + " ".join(["0"] * 18 + ["77"] + ["0"] * 30))
    (made / "mountinfo").write_text(f"1 2 8:1 /var/lib/fractile/slices/{token} /etc/fractile ro - ext4 x rw\n")
    (cgroup / "cgroup.procs").write_text(f"{pid}\n")


async def test_the_event_says_what_is_held_and_which_containers_to_stop(tmp_path: Path) -> None:
    told: list[str] = []
    second = msgspec.structs.replace(LIMITS, container=ContainerName("side"))
    async with world(tmp_path, told, second) as (departed, _, _):
        container(tmp_path, A, 10, "t")
        container(tmp_path, B, 20, "u")
        await departed.look()
        await departed.look()
    assert told == [
        f"processes of pod ns/p (uid {UID}) still hold 600 MiB of card GPU-a, although the pod is gone from the API "
        "server, as after a forced deletion; no other pod gets that memory until they have ended; to free it now, "
        "stop their containers on node n1: crictl stop 0123456789abc fedcba9876543"
    ]


async def test_where_no_container_is_found_the_event_names_the_node(tmp_path: Path) -> None:
    told: list[str] = []
    async with world(tmp_path, told) as (departed, _, region):
        with alive(region, 5):
            await departed.look()
    assert [message.rpartition("; ")[2] for message in told] == ["to free it now, end them on node n1"]


async def test_what_has_ended_is_looked_at_no_more_after_a_while(tmp_path: Path) -> None:
    async with world(tmp_path) as (departed, _, region):
        CLOCK[0] = 100.0
        assert await departed.look() == ()
        CLOCK[0] = 105.0
        with alive(region, 1):
            assert len(await departed.look()) == 1
        assert await departed.look() == ()
        CLOCK[0] = 120.0
        with alive(region, 1):  # nobody: its containers have ended
            assert await departed.look() == ()


async def test_a_region_that_cannot_be_looked_at_counts(tmp_path: Path) -> None:
    async with world(tmp_path) as (departed, _, region):
        with await asyncio.to_thread(lambda: leased(region, "write")):
            assert len(await departed.look()) == 1


def test_the_first_grant_of_a_card_counts_and_a_later_container_of_the_pod_changes_nothing(tmp_path: Path) -> None:
    first = Granted("t", tmp_path, 5.0, LIMITS)
    later = Granted("s", tmp_path, 9.0, msgspec.structs.replace(LIMITS, container=ContainerName("side")))
    assert granted_since([later, first]) == {PodUID(UID): {CARD: (5.0, PodUID(UID))}}
