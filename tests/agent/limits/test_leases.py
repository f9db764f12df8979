"""A container's root may hold a lease (``F_SETLEASE``) of the file that it shares: an open of it then takes 45 s."""

import asyncio
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import msgspec
import pytest

from fractile.agent.limits.journal import Journal
from fractile.model.units import CardUUID, ContainerName, PodUID
from fractile.region import directory, shared
from fractile.region.counters import counters
from fractile.region.page import CardLimits, ContainerLimits
from fractile.region.usage import Unreadable
from fractile.wire.fractile.device_ids import device_id
from tests.agent.world import CARDS, MEM, Asks, world

SIZE = shared.RegionShape(1).size
IDS = frozenset({device_id(CARDS[0].uuid, 0)})
LIMITS = ContainerLimits(
    pod_uid=PodUID("u"),
    namespace="n",
    pod="p",
    container=ContainerName("c"),
    cards=(CardLimits(uuid=CardUUID(CARDS[0].uuid), memory=2**21),),
)
MIB = 2**20
HOLDER = """
import fcntl, os, signal, sys
signal.signal(signal.SIGIO, signal.SIG_IGN)
with open(sys.argv[1], "r+b") as region:
    region.seek(int(sys.argv[3]))
    region.write(bytes(2**20))
region = os.open(sys.argv[1], os.O_RDWR if sys.argv[2] == "write" else os.O_RDONLY)
fcntl.fcntl(region, fcntl.F_SETLEASE, fcntl.F_WRLCK if sys.argv[2] == "write" else fcntl.F_RDLCK)
print("held", flush=True)
sys.stdin.read()
"""


@contextmanager
def leased(region: Path, kind: str = "read") -> Generator[None]:
    """A process that makes the file too long, and then holds a lease of it that it does not give back."""
    command = [sys.executable, "-c", HOLDER, str(region), kind, str(SIZE)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        if holder.stdout.readline() != "held\n":
            holder.kill()
            pytest.skip("this file system has no leases")
        try:
            yield
        finally:
            holder.kill()


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    made = Journal(tmp_path / "slices", new_token=str)
    for token in ("a", "b"):
        made.create(token, MEM, IDS)
        made.write_limits(token, msgspec.structs.replace(LIMITS, pod=token))
    return made


def seconds(work: Callable[[], object]) -> float:
    began = time.monotonic()
    work()
    return time.monotonic() - began


def test_a_file_that_is_leased_cannot_be_read_now_and_nobody_waits(journal: Journal) -> None:
    region = journal.path("a") / directory.REGION
    with leased(region, "write"):
        assert seconds(lambda: counters(region, cards=1, generation=1)) < 1
        assert counters(region, cards=1, generation=1) == Unreadable(shared.LEASED)


def test_a_file_that_is_leased_is_cut_back_later_and_nobody_waits(journal: Journal) -> None:
    region = journal.path("a") / directory.REGION
    began = time.monotonic()
    with leased(region), pytest.raises(BlockingIOError, match="lease"):
        shared.cut_back(region, cards=1)
    assert time.monotonic() - began < 5
    assert shared.cut_back(region, cards=1) >= MIB


def test_a_grant_over_a_leased_file_is_refused_at_once_and_others_are_granted_meanwhile(journal: Journal) -> None:
    region = journal.path("a") / directory.REGION
    before = region.stat().st_ino
    with leased(region, "write"):
        began = time.monotonic()
        with pytest.raises(OSError, match="lease"):
            journal.write_limits("a", msgspec.structs.replace(LIMITS, priority=1))
        journal.write_limits("b", msgspec.structs.replace(LIMITS, priority=1))
        assert time.monotonic() - began < 2
    assert region.stat().st_ino == before, "a file in use was replaced"


def test_no_lock_is_held_while_a_containers_file_is_opened(journal: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
    """However long the kernel takes to open it: another container is granted meanwhile."""
    opening, go_on = threading.Event(), threading.Event()
    real = os.open

    def slow(path: str | Path, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        if str(path) == str(journal.path("a") / directory.REGION):
            opening.set()
            assert go_on.wait(10)
        return real(path, flags, mode, dir_fd=dir_fd)

    monkeypatch.setattr(os, "open", slow)
    slow_one = threading.Thread(target=journal.write_limits, args=("a", msgspec.structs.replace(LIMITS, priority=1)))
    slow_one.start()
    try:
        assert opening.wait(10)
        other = threading.Thread(target=journal.write_limits, args=("b", msgspec.structs.replace(LIMITS, priority=2)))
        other.start()
        other.join(3)
        assert not other.is_alive()
    finally:
        go_on.set()
        slow_one.join()
    assert [known.priority for t in ("a", "b") if (known := journal.limits(t))] == [1, 2]


async def test_three_leases_do_not_keep_a_fourth_file_long_and_their_pods_are_told() -> None:
    async with world() as w:
        pods = {n: w.admit(Asks("main", 2), on={"main": [CARDS[0]]}, name=n) for n in ("a", "b", "c", "good")}
        regions: dict[str, Path] = {}
        for name, pod in pods.items():
            await w.kubelet.running(pod)
            started = w.kubelet.started(pod, "main")
            assert started is not None
            regions[name] = Path(started.mounts[f"{directory.MOUNT}/{directory.REGION}"])
        with ExitStack() as leases:
            for name in ("a", "b", "c"):
                leases.enter_context(leased(regions[name]))
            with regions["good"].open("r+b") as file:
                file.seek(SIZE)
                file.write(bytes(MIB))
            async with asyncio.timeout(3):
                while regions["good"].stat().st_size != SIZE:  # noqa: ASYNC110
                    await asyncio.sleep(0.05)

            def told() -> set[str]:
                events = w.server.all("/api/v1/events")
                return {e["involvedObject"]["name"] for e in events if e["reason"] == "SharedFileLeased"}

            async with asyncio.timeout(10):
                while told() != {"a", "b", "c"}:  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
        async with asyncio.timeout(5):
            while any(region.stat().st_size != SIZE for region in regions.values()):  # noqa: ASYNC110
                await asyncio.sleep(0.05)


async def test_the_pod_is_told_that_its_use_cannot_be_read() -> None:
    async with world(agent=False) as w:
        w.start_agent()
        await w.ready()
        pod = w.admit(Asks("main", 2), on={"main": [CARDS[0]]})
        await w.kubelet.running(pod)
        started = w.kubelet.started(pod, "main")
        assert started is not None
        await w.stop_agent()  # which has the file open, so that no lease could be taken
        with leased(Path(started.mounts[f"{directory.MOUNT}/{directory.REGION}"]), "write"):
            w.start_agent()
            async with asyncio.timeout(20):
                while not [e for e in w.server.all("/api/v1/events") if e["reason"] == "SharedFileLeased"]:  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
