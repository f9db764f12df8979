"""Directories of running containers that somebody has removed are made again, as far as that can be.

The kernel's word, which process has which directory in its view, is what a real process with real mounts shows where
that matters; the other tests give it.
"""

import asyncio
import os
import shutil
import subprocess
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fractile.agent.kubelet.kubelet_state import Kubelet
from fractile.agent.limits.isolation import ISOLATION, Isolation
from fractile.agent.limits.restore import REASON, Restorer, sentence
from fractile.agent.node.procfs import Process, ProcFs
from fractile.kube import paths
from fractile.kube.events import EventRecorder
from fractile.model.request import Role
from fractile.model.units import Percent, PodUID
from fractile.region import directory, shared
from fractile.region.page import FLAG_LOST, FLAG_OFF, CardLimits, ContainerLimits
from fractile.region.usage import lost
from fractile.wire.kubernetes.objects import Pod
from tests.agent.deviceplugin.start import Start, ids, start_with_events
from tests.agent.world import CARDS, NODE, Asks, world
from tests.region.examples import LIMITS
from tests.region.writer import alive

A, B = CARDS


class Node:
    """A node on which one container was started, and the loop that looks after its directory."""

    def __init__(self, s: Start, events: EventRecorder) -> None:
        self.s = s
        self._events = events
        self.deleted = False
        self.runs = True
        self.restored = 0
        self.looks = 0
        self.busy = False
        kubelet = Kubelet(s.socket, s.world.root / "checkpoint")
        self.restorer = Restorer(
            kubelet,
            s.pods,
            s.journal,
            s.current_catalog,
            events,
            isolation=Isolation(s.client, node=NODE),
            restored=self._count,
            viewers=self._viewers,
            busy=lambda: self.busy,
            clock=s.clock,
        )

    async def started(self) -> tuple[Pod, str]:
        pod, token = self.s.four()
        assert await self.s.check(ids(A, 4)) is None
        self.s.pods.changed(self.s.world.pod(pod))
        return pod, token

    async def told(self) -> list[str]:
        """The messages of our events, each as often as it was said."""
        await self._events.flush(5)
        found: list[dict[str, Any]] = self.s.world.server.all("/api/v1/events")
        return [e["message"] for e in found if e["reason"] == REASON for _ in range(e.get("count", 1))]

    def _count(self) -> None:
        self.restored += 1

    def _viewers(self, pods: Mapping[str, PodUID]) -> Mapping[str, Process]:
        self.looks += 1
        return {token: Process(1, 1, "job", 1, 1, (), token, self.deleted) for token in pods if self.runs}


@asynccontextmanager
async def node() -> AsyncGenerator[Node]:
    async with start_with_events() as (s, events):
        yield Node(s, events)


async def test_a_directory_that_is_gone_is_made_again_with_a_page_that_says_so_and_the_pod_is_told_once() -> None:
    async with node() as n:
        pod, token = await n.started()
        before = n.s.limits(token)
        assert before is not None
        shutil.rmtree(n.s.journal.root)
        n.s.journal.root.mkdir()
        n.deleted = True
        for _ in range(3):
            await n.restorer.round()
            n.s.clock.now += 100
        after = n.s.limits(token)
        assert after is not None
        assert (after.pod_uid, after.container, after.cards) == (before.pod_uid, before.container, before.cards)
        assert after.flags == FLAG_LOST
        assert [g.token for g in n.s.journal.grants()] == [token]
        (message,) = await n.told()
        assert "container main was removed from node n1" in message
        assert f"kubectl delete pod -n default {pod.metadata.name}" in message
        assert n.restored == 1


def limits_of(cores: int, limit: int, flags: int) -> ContainerLimits:
    card = CardLimits(uuid=A.uuid, memory=2**30, cores=Percent(cores), cores_limit=Percent(limit))
    return msgspec.structs.replace(LIMITS, cards=(card,), flags=flags)


MEMORY = "its memory limit holds"


@pytest.mark.parametrize(
    ("limits", "said"),
    [
        pytest.param(limits_of(30, 50, 0), f"{MEMORY}, its share and its limit of compute do not, and", id="both"),
        pytest.param(limits_of(30, 0, 0), f"{MEMORY}, its share of compute does not, and", id="a share"),
        pytest.param(limits_of(0, 50, 0), f"{MEMORY}, its limit of compute does not, and", id="a limit"),
        pytest.param(limits_of(0, 0, 0), f"for example; {MEMORY}, and programs", id="memory alone"),
        pytest.param(limits_of(100, 0, 0), f"for example; {MEMORY}, and programs", id="a whole card"),
        pytest.param(limits_of(30, 50, FLAG_OFF), "for example; programs that start", id="isolation is off"),
    ],
)
def test_a_pod_is_told_no_more_than_what_is_true_of_it(limits: ContainerLimits, said: str) -> None:
    message = sentence(limits, "n1")
    assert said in message
    assert ("memory limit" in message) is (not limits.flags & FLAG_OFF)
    assert ("compute" in message) is ("compute" in said)
    assert ("compute" in lost(limits).reason) is ("compute" in said)


async def test_a_page_that_is_made_again_says_whether_the_isolation_of_its_pod_is_off() -> None:
    async with node() as n:
        _, token = await n.started()
        n.s.world.server.merge(paths.node(NODE), {"metadata": {"labels": {ISOLATION: "off"}}})
        shutil.rmtree(n.s.journal.path(token))
        n.deleted = True
        await n.restorer.round()
        after = n.s.limits(token)
        assert after is not None
        assert after.flags == FLAG_LOST | FLAG_OFF
        (message,) = await n.told()
        assert "memory limit" not in message


async def test_a_directory_that_stayed_for_its_region_gets_its_files_again_and_the_region_goes_on() -> None:
    async with node() as n:
        _, token = await n.started()
        here, before = n.s.journal.path(token), n.s.limits(token)
        (here / directory.LIMITS).unlink()
        (here / "ids").unlink()
        with alive(here / directory.REGION, 0):
            file = shared.identity(here / directory.REGION)
            await n.restorer.round()
            assert shared.identity(here / directory.REGION) == file
        assert n.s.limits(token) == before, "with the region's generation, and without a flag"
        assert n.s.journal.exists(token)
        assert await n.told() == []


@pytest.mark.parametrize("name", [directory.LIMITS, "ids"])
async def test_a_folder_in_the_place_of_a_file_of_a_container_that_runs_goes_and_the_file_is_there_again(
    name: str,
) -> None:
    async with node() as n:
        _, token = await n.started()
        here, before = n.s.journal.path(token), n.s.limits(token)
        (here / name).unlink()
        (here / name).mkdir()
        with alive(here / directory.REGION, 0):
            await n.restorer.round()
        assert n.s.limits(token) == before
        assert n.s.journal.exists(token)
        assert [g.token for g in n.s.journal.grants()] == [token], "so it goes with its pod"
        assert await n.told() == []


@pytest.mark.parametrize("what", [directory.REGION, "shared"], ids=["the file", "its folder"])
async def test_a_directory_without_its_region_counts_as_lost_for_the_container_has_another_one_mapped(
    what: str,
) -> None:
    async with node() as n:
        _, token = await n.started()
        here = n.s.journal.path(token)
        (here / directory.LIMITS).unlink()
        shutil.rmtree(here / what) if what == "shared" else (here / what).unlink()
        await n.restorer.round()
        after = n.s.limits(token)
        assert after is not None
        assert after.flags == FLAG_LOST
        assert len(await n.told()) == 1


async def test_what_starts_again_sees_its_new_page_and_is_lost_no_more() -> None:
    async with node() as n:
        _, token = await n.started()
        shutil.rmtree(n.s.journal.path(token))
        n.deleted = True
        await n.restorer.round()
        assert await n.s.check(ids(A, 4)) is None
        after = n.s.limits(token)
        assert after is not None
        assert after.flags == 0


async def test_a_container_of_which_nothing_runs_is_left_to_prestart() -> None:
    async with node() as n:
        _, token = await n.started()
        shutil.rmtree(n.s.journal.path(token))
        n.runs = False
        await n.restorer.round()
        assert not n.s.journal.path(token).exists()
        assert n.restored == 0


async def test_a_pod_that_has_ended_gets_nothing_and_neither_does_a_placement_that_kubelet_contradicts() -> None:
    async with node() as n:
        pod, token = await n.started()
        shutil.rmtree(n.s.journal.path(token))
        n.s.world.place(pod, {"main": [B]})
        n.s.pods.changed(n.s.world.pod(pod))
        await n.restorer.round()
        n.s.world.place(pod, {"main": [A]})
        n.s.world.server.merge(f"{n.s.path(pod)}/status", {"status": {"phase": "Succeeded"}})
        n.s.pods.changed(n.s.world.pod(pod))
        n.s.clock.now += 100
        await n.restorer.round()
        assert not n.s.journal.path(token).exists()


async def test_a_container_that_waits_for_long_is_looked_at_less_and_less() -> None:
    async with node() as n:
        _, token = await n.started()
        shutil.rmtree(n.s.journal.path(token))
        n.runs = False
        for _ in range(300):
            await n.restorer.round()
            n.s.clock.now += 2
        assert 10 < n.looks < 20, "in ten minutes"


async def test_one_look_at_the_node_is_enough_for_all_containers_that_have_not_started() -> None:
    async with node() as n:
        names = [f"i{k}" for k in range(60)]
        asks = [Asks(name, 1, role=Role.INIT) for name in names]
        pod = n.s.bind(*asks, on={name: [A] for name in names})
        for name in names:
            n.s.holds(pod, name, ids(A, 1))
        n.runs = False
        await n.restorer.round()
        assert n.looks == 1


async def test_nobody_is_looked_for_while_kubelet_admits_pods_but_in_the_end_all_the_same() -> None:
    async with node() as n:
        _, token = await n.started()
        shutil.rmtree(n.s.journal.path(token))
        n.busy = True
        for _ in range(14):
            n.s.clock.now += 2
            await n.restorer.round()
        assert (n.looks, n.restored) == (0, 0)
        for _ in range(2):
            n.s.clock.now += 2
            await n.restorer.round()
        assert n.restored == 1


async def test_no_part_of_a_card_is_granted_twice_when_the_directory_is_lost() -> None:
    async with node() as n:
        await n.started()
        shutil.rmtree(n.s.journal.root)
        n.s.journal.root.mkdir()
        n.s.bind(Asks("main", 13), on={"main": [A]}, name="second")
        n.s.holds(n.s.world.pod(n.s.bind(Asks("main", 13), on={"main": [A]}, name="third")), "main", ids(A, 13, 4))
        denied = await n.s.check(ids(A, 13, 4))
        assert denied is not None
        assert "has 16384 MiB" in denied.reason


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts need root")
@pytest.mark.parametrize("removed", [True, False])
async def test_a_real_process_shows_whether_its_directory_was_removed(tmp_path: Path, removed: bool) -> None:
    token = tmp_path / "slices" / "ab12"
    token.mkdir(parents=True)
    (token / "limits").touch()
    enter = 'mount -t tmpfs none /etc && mkdir /etc/fractile && mount --bind "$0" /etc/fractile && echo in && read -r _'
    child = await asyncio.create_subprocess_exec(
        *("setpriv", "--pdeathsig", "KILL", "unshare", "--mount", "--propagation", "private", "sh", "-c", enter, token),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert child.stdout is not None
    assert await asyncio.wait_for(child.stdout.readline(), 20) == b"in\n"
    try:
        if removed:
            shutil.rmtree(token)
        seen = ProcFs().look([child.pid])[child.pid]
        assert (seen.token, seen.deleted) == ("ab12", removed)
    finally:
        child.kill()
        await child.wait()


# ---- the whole agent ----


@pytest.mark.parametrize(
    "what", ["", "slices", "agent.lock", "debug.sock"], ids=["everything", "containers", "its lock", "its socket"]
)
async def test_an_agent_whose_files_are_removed_begins_again_and_serves_new_pods(
    what: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with world() as w:
        first = w.admit(Asks("main", 4), on={"main": [A]})
        await w.kubelet.running(first)
        gone = w.root / "state" / what
        shutil.rmtree(gone) if gone.is_dir() else gone.unlink()
        await until(lambda: any("starts over" in m for m in caplog.messages))
        second = w.admit(Asks("main", 4), on={"main": [A]})
        async with asyncio.timeout(30):
            await w.kubelet.running(second)
        assert w.limits(second, "main").pod_uid == second.metadata.uid
        state = w.root / "state"
        await until(lambda: all((state / name).exists() for name in ("agent.lock", "debug.sock", "slices")))


async def test_an_agent_ends_for_no_folder_in_the_place_of_a_page_and_neither_does_the_next_one(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with world() as w:
        first = w.admit(Asks("main", 4), on={"main": [A]})
        await w.kubelet.running(first)
        (token,) = w.tokens()
        page = w.root / "state" / "slices" / token / directory.LIMITS
        await until(lambda: is_open(page))
        page.unlink()
        page.mkdir()
        await until(lambda: any("starts over" in m for m in caplog.messages))
        await until(lambda: not page.exists())
        await w.ready()
        second = w.admit(Asks("main", 4), on={"main": [A]})
        async with asyncio.timeout(30):
            await w.kubelet.running(second)
        assert w.limits(second, "main").pod_uid == second.metadata.uid


def is_open(path: Path) -> bool:
    """By this process, in which the agent runs: it knows the page."""
    found = (Path("/proc/self/fd") / name for name in os.listdir("/proc/self/fd"))
    return any(fd.exists() and fd.samefile(path) for fd in found)


async def until(reached: Callable[[], bool], seconds: float = 20) -> None:
    async with asyncio.timeout(seconds):
        while not reached():  # noqa: ASYNC110
            await asyncio.sleep(0.05)
