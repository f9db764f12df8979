"""Two agents on one node."""

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path

import pytest

from fractile.agent.node.instance_lock import alone
from fractile.errors import SetupError
from tests.agent.forked import agents
from tests.agent.world import CARDS, Asks, world
from tests.region.strange import folder, link, pipe


async def test_the_second_one_says_so_and_takes_over_when_the_first_has_ended(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    entered = asyncio.Event()

    async def second() -> None:
        async with alone(tmp_path, sleep=lambda _: asyncio.sleep(0.001)):
            entered.set()

    async with asyncio.timeout(10):
        async with alone(tmp_path):
            waiting = asyncio.create_task(second())
            await asyncio.sleep(0.05)
            assert not entered.is_set()
        await waiting
    assert [("another agent" in m, str(tmp_path) in m) for m in caplog.messages] == [(True, True)]


@pytest.mark.parametrize("harm", [folder, link, pipe])
async def test_what_lies_in_the_place_of_the_lock_goes(tmp_path: Path, harm: Callable[[Path], None]) -> None:
    harm(tmp_path / "agent.lock")
    async with alone(tmp_path):
        assert (tmp_path / "agent.lock").is_file()
        assert not (tmp_path / "agent.lock").is_symlink()


async def test_a_lock_that_cannot_be_made_is_an_error_with_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SetupError, match="--state-dir"):
        async with alone(tmp_path / "file" / "state"):
            pass


async def test_an_upgrade_that_overlaps_loses_and_doubles_nothing(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR)
    with agents() as fork:
        async with world(agent=False) as w:
            old = fork.start(w)
            await w.ready()
            before = w.admit(Asks("main", 4), on={"main": [CARDS[0]]})
            await w.kubelet.running(before)
            sockets = sorted(p.name for p in w.kubelet.plugin_directory.glob("fractile-*.sock"))
            new = fork.start(w)
            while "another agent works on this node" not in (w.root / "agent.log").read_text():  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            during = w.admit(Asks("main", 4), on={"main": [CARDS[1]]})
            await w.kubelet.running(during)
            assert sorted(p.name for p in w.kubelet.plugin_directory.glob("fractile-*.sock")) == sockets
            old.kill()
            await old.dead()
            for resource in w.kubelet.capacity():
                await w.kubelet.registered(resource, 0)
            await w.ready()
            after = w.admit(Asks("main", 4), on={"main": [CARDS[1]]})
            await w.kubelet.running(after)
            w.check(before, during, after)
            assert new.alive
            new.kill()
            await new.dead()
