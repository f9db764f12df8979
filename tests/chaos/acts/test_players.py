"""Faults on real processes of this machine, which are started again when the fault is over."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from fractile.lab.cluster import component
from fractile.lab.cluster.component import Component
from fractile.lab.layout import ClusterLayout
from tests.chaos.acts.faults import Fault, Kind
from tests.chaos.acts.links import Link
from tests.chaos.acts.players import Players

SLEEPER, STUBBORN = "n1/sleeper", "stubborn"


@pytest.fixture
def players(tmp_path: Path) -> Generator[Players]:
    place = ClusterLayout(tmp_path / "chaos-players", tmp_path / "shortcuts")
    components = {
        SLEEPER: Component(SLEEPER, ("sleep", "60")),
        STUBBORN: Component(STUBBORN, ("sh", "-c", "trap '' TERM; exec sleep 60")),
    }
    try:
        yield Players(place, components, {})
    finally:
        for name in components:
            component.stop(place, name, grace=0)


@asynccontextmanager
async def watched(players: Players) -> AsyncGenerator[dict[str, int]]:
    """All run; their processes."""
    watching = asyncio.create_task(players.watch())
    try:
        await until(players, lambda pids: all(pids.values()))
        await asyncio.sleep(0.2)  # a shell must have set its trap
        yield pids_of(players)
    finally:
        watching.cancel()


def pids_of(players: Players) -> dict[str, int]:
    return {name: players.pid(name) for name in players.components}


async def until(players: Players, there: Callable[[dict[str, int]], object]) -> None:
    async with asyncio.timeout(20):
        while not there(pids_of(players)):  # noqa: ASYNC110 - other programs
            await asyncio.sleep(0.05)


def state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0]


@pytest.mark.parametrize("kind", [Kind.KILL, Kind.RESTART])
async def test_who_is_ended_stays_down_for_its_time_and_is_started_again(players: Players, kind: Kind) -> None:
    async with watched(players) as before:
        fault = asyncio.create_task(players.play(Fault(0, SLEEPER, kind, 1.2)))
        await asyncio.sleep(0.9)
        assert pids_of(players) == {SLEEPER: 0, STUBBORN: before[STUBBORN]}
        assert await fault
        await until(players, lambda pids: pids[SLEEPER])
        assert players.pid(SLEEPER) != before[SLEEPER]


async def test_who_is_asked_to_end_and_does_not_is_killed(players: Players) -> None:
    async with watched(players) as before:
        fault = asyncio.create_task(players.play(Fault(0, STUBBORN, Kind.RESTART, 0.6)))
        await asyncio.sleep(0.3)
        assert players.pid(STUBBORN) == before[STUBBORN]
        assert await fault
        await until(players, lambda pids: pids[STUBBORN] not in (0, before[STUBBORN]))


async def test_who_is_paused_goes_on_as_the_same_process(players: Players) -> None:
    async with watched(players) as before:
        fault = asyncio.create_task(players.play(Fault(0, SLEEPER, Kind.PAUSE, 0.6)))
        await asyncio.sleep(0.3)
        assert state(before[SLEEPER]) == "T"
        assert await fault
        await asyncio.sleep(0.1)
        assert state(before[SLEEPER]) == "S"
        assert pids_of(players) == before


async def test_a_fault_on_who_does_not_run_is_none(players: Players) -> None:
    assert not await players.play(Fault(0, SLEEPER, Kind.KILL, 0.1))


async def test_healing_continues_who_is_paused_and_mends_links(players: Players) -> None:
    players.links["link"] = link = Link("link", lambda: None)
    await link.listen()
    async with watched(players) as before:
        fault = asyncio.create_task(players.play(Fault(0, SLEEPER, Kind.PAUSE, 60)))
        cut = asyncio.create_task(players.play(Fault(0, "link", Kind.STALL, 60)))
        await asyncio.sleep(0.3)
        players.heal()
        await asyncio.sleep(0.1)
        assert state(before[SLEEPER]) == "S"
        reader, writer = await asyncio.open_connection("127.0.0.1", link.port)
        async with asyncio.timeout(2):
            assert await reader.read() == b""  # it leads nowhere, but it answers
        writer.close()
        for task in (fault, cut):
            task.cancel()
    await link.close()
