"""The arbiter is kept running, once, and ends with the agent. Its place is taken by a small shell program."""

import asyncio
import contextlib
import fcntl
import logging
import os
import random
import signal
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from fractile.agent.limits.arbiter import ArbiterKeeper
from tests.region.strange import folder, link, pipe

_SCRIPT = """#!/bin/sh
echo $$ >>{pids}
echo "$@" >>{arguments}
echo "hello from the arbiter" >&2
{body}
"""
_STAY = "trap 'exit 0' TERM; while :; do sleep 0.02; done"


class Node:
    """A state folder, and a program that writes its pid at every start."""

    def __init__(self, root: Path, body: str = _STAY) -> None:
        self.root = root
        self.program = root / "fractile-arbiter"
        self.set(body)

    def set(self, body: str) -> None:
        names = {"pids": self.root / "pids", "arguments": self.root / "arguments"}
        self.program.write_text(_SCRIPT.format(body=body, **names))
        self.program.chmod(0o755)

    def pids(self) -> list[int]:
        try:
            return [int(line) for line in (self.root / "pids").read_text().split()]
        except FileNotFoundError:
            return []

    def keeper(self, state: Path | None = None) -> ArbiterKeeper:
        async def hurry(seconds: float) -> None:
            await asyncio.sleep(seconds / 50)

        slices = self.root / "slices"
        return ArbiterKeeper(self.program, slices=slices, state=state or self.root, rng=random.Random(0), sleep=hurry)

    async def started(self, count: int) -> int:
        await until(lambda: len(self.pids()) >= count)
        return self.pids()[count - 1]


async def until(met: Callable[[], bool]) -> None:
    for _ in range(2000):
        if met():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it did not happen within 20 s")


@asynccontextmanager
async def running(keeper: ArbiterKeeper) -> AsyncGenerator[None]:
    task = asyncio.create_task(keeper.run())
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


async def test_it_is_told_what_to_serve_and_what_it_says_is_in_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    node = Node(tmp_path)
    async with running(node.keeper()):
        await node.started(1)
        await until(lambda: "hello from the arbiter" in caplog.text)
    told = (tmp_path / "arguments").read_text().split()
    assert told == [f"--parent={os.getpid()}", f"--control={tmp_path}/arbiter.sock", f"--slices={tmp_path}/slices"]


async def test_it_is_started_again_when_it_was_killed(tmp_path: Path) -> None:
    node = Node(tmp_path)
    async with running(node.keeper()):
        os.kill(await node.started(1), signal.SIGKILL)
        second = await node.started(2)
        assert alive(second)


async def test_one_that_dies_at_once_is_tried_ever_more_rarely(tmp_path: Path) -> None:
    node = Node(tmp_path, "exit 1")
    waits: list[float] = []

    async def note(seconds: float) -> None:
        waits.append(seconds)
        await asyncio.sleep(0.001)

    keeper = ArbiterKeeper(node.program, slices=tmp_path / "slices", state=tmp_path, rng=random.Random(0), sleep=note)
    async with running(keeper):
        await node.started(6)
    assert waits[4] > 4 * waits[0]


async def test_a_program_that_is_missing_does_not_end_the_agent(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.program.unlink()
    async with running(node.keeper()):
        await asyncio.sleep(0.1)
        node.set(_STAY)
        await node.started(1)


async def test_a_lock_that_cannot_be_made_does_not_end_the_agent(tmp_path: Path) -> None:
    node = Node(tmp_path)
    state = tmp_path / "state"  # is missing, which stands for a full or read-only disk
    async with running(node.keeper(state)):
        await asyncio.sleep(0.1)
        state.mkdir()
        await node.started(1)


@pytest.mark.parametrize("harm", [folder, link, pipe])
async def test_what_lies_in_the_place_of_its_lock_or_its_socket_goes(
    tmp_path: Path, harm: Callable[[Path], None]
) -> None:
    node = Node(tmp_path)
    for name in ("arbiter.lock", "arbiter.sock"):
        harm(tmp_path / name) if harm is not link else (tmp_path / name).symlink_to(tmp_path / "nowhere")
    async with running(node.keeper()):
        await node.started(1)
        assert (tmp_path / "arbiter.lock").is_file()
        assert "arbiter.sock" not in os.listdir(tmp_path)


@pytest.mark.parametrize(
    "body", [_STAY, "trap '' TERM; while :; do sleep 0.02; done"], ids=["obeys", "ignores SIGTERM"]
)
async def test_it_has_ended_when_the_keeper_has(tmp_path: Path, body: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fractile.agent.limits.arbiter._GRACE", 0.2)
    node = Node(tmp_path, body)
    async with running(node.keeper()):
        pid = await node.started(1)
    assert not alive(pid)


async def test_two_agents_on_one_node_run_one_arbiter(tmp_path: Path) -> None:
    node = Node(tmp_path)
    async with running(node.keeper()):
        async with running(node.keeper()):
            await node.started(1)
            await asyncio.sleep(0.3)
        (only,) = node.pids()
        assert alive(only)


async def test_an_arbiter_that_outlives_its_agent_keeps_the_next_one_from_starting_another(tmp_path: Path) -> None:
    node = Node(tmp_path)
    lock = os.open(tmp_path / "arbiter.lock", os.O_RDWR | os.O_CREAT)
    fcntl.flock(lock, fcntl.LOCK_EX)
    async with running(node.keeper()):
        await asyncio.sleep(0.3)
        assert node.pids() == []
        os.close(lock)  # as when the orphan ends
        await node.started(1)
