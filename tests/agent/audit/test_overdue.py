"""Processes that run on after the eviction of their pod are ended by the agent: real processes, in cgroups that are
played."""

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from fractile.agent.audit.ending import ENDED, Ender
from fractile.agent.audit.overdue import KILLED, NOT_KILLED
from fractile.agent.audit.unaccounted import Finding
from fractile.agent.node.cgroup import CgroupPlace
from fractile.agent.node.procfs import Process, ProcFs
from fractile.kube import paths
from fractile.kube.reflector import Gone
from fractile.model.units import PodUID
from fractile.wire.kubernetes.objects import ALLOWED
from tests.agent.audit.audit_world import CARD, MIB, World, deletions, folder, over, world

UID, OTHER = "11111111-2222-3333-4444-555555555555", "66666666-2222-3333-4444-555555555555"
ID, SECOND = "c" * 64, "d" * 64
STUBBORN = "trap '' TERM; echo ready; exec sleep 600"
TIME = 40  # seconds from the eviction on


@asynccontextmanager
async def running(proc: Path, *paths: str, user: int | None = None) -> AsyncGenerator[list[Process]]:
    """Programs that do not end when they are told to, in these cgroups of ``proc``."""
    children: list[asyncio.subprocess.Process] = []
    try:
        for path in paths:
            one = await asyncio.create_subprocess_exec("/bin/sh", "-c", STUBBORN, stdout=subprocess.PIPE, user=user)
            children.append(one)
            assert one.stdout is not None
            await asyncio.wait_for(one.stdout.readline(), 10)
            play(proc, one.pid, path)
        (proc / "self").symlink_to(str(os.getpid()))
        found = ProcFs(proc).look([c.pid for c in children])
        yield [msgspec.structs.replace(found[c.pid], command="miner") for c in children]
    finally:
        for one in children:
            if one.returncode is None:
                one.kill()
            await asyncio.wait_for(one.wait(), 10)


def play(proc: Path, pid: int, cgroup: str) -> None:
    made = proc / str(pid)
    made.mkdir(parents=True)
    for name in ("stat", "status", "mountinfo", "ns"):
        (made / name).symlink_to(f"/proc/{pid}/{name}")
    (made / "cgroup").write_text(f"0::{cgroup}\n")


def inside(uid: str = UID, container: str = ID, below: str = "") -> str:
    return f"/kubepods/pod{uid}/{container}{below}"


def lives(process: Process) -> bool:
    """Whether it runs: one that was killed stays there until its parent has seen it."""
    try:
        return Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


async def ended(process: Process) -> bool:
    for _ in range(100):
        if not lives(process):
            return True
        await asyncio.sleep(0.02)
    return False


async def test_the_process_and_the_rest_of_its_container_end_and_nothing_else(tmp_path: Path) -> None:
    named_after_it = inside(OTHER, SECOND, below=inside())
    places = (inside(), inside(below="/own"), inside(container=SECOND), inside(OTHER), named_after_it, "/system")
    async with running(tmp_path, *places) as (found, beside, *others):
        assert Ender(proc=tmp_path).end(found, UID) == ENDED
        assert await ended(found)
        assert await ended(beside)
        assert all(map(lives, others))


async def test_inside_a_pod_in_which_the_agent_runs_too_the_inner_pod_is_meant(tmp_path: Path) -> None:
    outer = f"/kubepods/pod{OTHER}/{SECOND}"
    async with running(tmp_path, outer + inside(), outer + inside(container=SECOND), outer) as (found, *others):
        assert Ender(proc=tmp_path, around=[CgroupPlace(PodUID(OTHER), SECOND)]).end(found, UID) == ENDED
        assert await ended(found)
        assert all(map(lives, others))


async def test_where_kubelet_makes_no_cgroups_for_pods_the_id_of_the_container_counts(tmp_path: Path) -> None:
    around = "e" * 64
    ender = Ender(proc=tmp_path, around=[CgroupPlace(container_id=around)])
    where = (f"/{around}/{ID}", f"/{around}/{ID}/own", f"/{around}/{SECOND}", f"/{around}", f"/{around}/{SECOND}/{ID}")
    async with running(tmp_path, *where) as (found, beside, *others):
        assert "does not say" in (ender.end(found, UID) or "")
        assert "does not say" in (ender.end(others[-1], UID, {ID}) or "")
        assert ender.end(found, UID, {ID}) == ENDED
        assert await ended(found)
        assert await ended(beside)
        assert all(map(lives, others))


@pytest.mark.parametrize(
    "changed",
    [
        pytest.param({"start_time": 1}, id="its pid was used again"),
        pytest.param({"places": (CgroupPlace(PodUID(UID), SECOND),)}, id="it is in another container now"),
        pytest.param({"pid": 2**22 + 5}, id="it has ended"),
    ],
)
async def test_who_is_not_the_process_that_was_found_lives(tmp_path: Path, changed: dict[str, object]) -> None:
    async with running(tmp_path, inside()) as (one,):
        assert Ender(proc=tmp_path).end(msgspec.structs.replace(one, **changed), UID) is None
        assert lives(one)


@pytest.mark.parametrize(
    "cgroup",
    [
        pytest.param(inside(OTHER), id="another pod"),
        pytest.param(inside(OTHER, SECOND, below=inside()), id="a name that a container gave"),
        pytest.param("/system.slice/x.service", id="the host"),
    ],
)
async def test_who_does_not_run_in_the_pod_that_was_evicted_lives(tmp_path: Path, cgroup: str) -> None:
    async with running(tmp_path, cgroup) as (one,):
        assert "does not say that it runs in that pod" in (Ender(proc=tmp_path).end(one, UID) or "")
        assert lives(one)


async def test_an_agent_in_a_pid_namespace_of_its_own_ends_nothing(tmp_path: Path) -> None:
    async with running(tmp_path, inside()) as (one,):
        (tmp_path / "self").unlink()
        (tmp_path / "self").symlink_to(str(os.getpid() + 1))
        assert "hostPID" in (Ender(proc=tmp_path).end(one, UID) or "")
        assert lives(one)


@pytest.mark.skipif(os.geteuid() != 0, reason="another user needs root")
async def test_without_the_right_the_reason_names_the_capability(tmp_path: Path) -> None:
    """An agent of its own program, which has given the capability away."""
    program = (
        "import os, sys; from pathlib import Path; from fractile.agent.audit.ending import Ender; "
        "from fractile.agent.node.procfs import ProcFs; proc = Path(sys.argv[1]); pid = int(sys.argv[2]); "
        "(proc / 'self').unlink(); (proc / 'self').symlink_to(str(os.getpid())); "
        "print(Ender(proc=proc).end(ProcFs(proc).look([pid])[pid], sys.argv[3]))"
    )
    async with running(tmp_path, inside(), user=65534) as (one,):
        child = await asyncio.create_subprocess_exec(
            *("setpriv", "--bounding-set", "-kill", "--inh-caps", "-kill"),
            *(sys.executable, "-c", program, str(tmp_path), str(one.pid), UID),
            stdout=subprocess.PIPE,
        )
        told, _ = await asyncio.wait_for(child.communicate(), 30)
        assert b"CAP_KILL" in told
        assert lives(one)


def stranger(w: World, process: Process, name: str = "miner") -> Finding:
    """The process in a pod of that name, which holds nothing of the card."""
    uid = w.server.get(paths.pod("ns", name))["metadata"]["uid"]
    places = (CgroupPlace(PodUID(uid), ID),)
    return Finding("no-slice", CARD, msgspec.structs.replace(process, places=places), None, 300 * MIB)


@asynccontextmanager
async def overstayer(grace: float = 0.0) -> AsyncGenerator[tuple[World, Finding, Process]]:
    """A pod whose process uses a card, is evicted, and ends neither by that nor by kubelet. The API server keeps it."""
    async with folder() as proc, world("evict", grace, proc=proc) as w:
        uid = w.pod("miner", metadata={"finalizers": ["example.com/kept"]}).metadata.uid
        async with running(proc, inside(uid)) as (process,):
            yield w, stranger(w, process), process


async def test_what_is_on_the_card_when_its_time_to_end_is_over_is_ended() -> None:
    async with overstayer() as (w, found, process):
        await w.seen_twice(found)
        assert w.audit.evictions == 1
        w.time += TIME - 1
        await w.seen_twice(found)
        assert lives(process)
        w.time += 1
        await w.seen_twice(found)
        assert await ended(process)
        ((_, pod, message),) = [told for told in w.told() if told[0] == KILLED]
        assert pod == "miner"
        for part in (f"process miner (pid {process.pid} on the node)", CARD, f"{TIME} s after the eviction", "SIGKILL"):
            assert part in message
        assert (w.audit.evictions, w.audit.overdue.kills) == (1, {"killed": 1})
        assert len(deletions(w)) == 1


async def test_a_process_that_has_left_the_card_or_was_not_looked_at_lately_is_not_ended() -> None:
    async with overstayer() as (w, found, process):
        await w.seen_twice(found)
        w.time += TIME
        await w.act()  # the looks hang: a card may be lost
        await w.seen_twice()
        assert lives(process)
        assert w.audit.overdue.kills == {}


async def test_a_pod_that_is_spared_by_now_is_not_ended() -> None:
    async with overstayer() as (w, found, process):
        await w.seen_twice(found)
        w.server.merge(paths.namespace("ns"), {"metadata": {"labels": {ALLOWED: "allow"}}})
        w.time += TIME
        await w.seen_twice(found)
        assert lives(process)


async def test_a_process_that_the_evicted_pod_starts_later_has_no_time_of_its_own() -> None:
    async with overstayer() as (w, found, process):
        before = msgspec.structs.replace(found, process=Process(2**22 + 5, 1, "x", 1, 1, process.places, ""))
        await w.seen_twice(before)
        w.time += TIME
        await w.seen_twice()
        assert lives(process)
        await w.seen_twice(found)
        assert await ended(process)
        assert w.audit.evictions == 1


@pytest.mark.parametrize("told", [True, False])
async def test_a_pod_that_is_deleted_by_force_is_ended_if_it_was_told_before(told: bool) -> None:
    """What nobody could judge by its pod is left to an administrator."""
    async with overstayer(grace=60.0) as (w, found, process):
        if told:
            await w.seen_twice(found)
        assert found.process is not None
        uid = found.process.places[0].pod_uid
        w.server.merge(paths.pod("ns", "miner"), {"metadata": {"finalizers": None}})
        w.server.delete(paths.pod("ns", "miner"))
        w.pods.gone(Gone("ns", "miner", uid))
        for _ in range(12):
            w.time += 10
            await w.seen_twice(found)
        assert (await ended(process) if told else lives(process)) is True
        assert w.audit.evictions == 0


async def test_no_more_than_one_pod_in_a_minute_is_ended() -> None:
    async with folder() as proc, world("evict", proc=proc) as w:
        kept = {"finalizers": ["example.com/kept"]}
        uids = [w.pod(name, metadata=kept).metadata.uid for name in ("a", "b")]
        async with running(proc, *map(inside, uids)) as (first, second):
            both = [stranger(w, first, "a"), stranger(w, second, "b")]
            await w.seen_twice(*both)
            w.time += 60
            await w.seen_twice(*both)  # the second is evicted, the first is ended
            assert w.audit.evictions == 2
            assert await ended(first)
            w.time += 59
            await w.seen_twice(both[1])
            assert lives(second)
            w.time += 1
            await w.seen_twice(both[1])
            assert await ended(second)


async def test_who_cannot_be_ended_is_named_once_and_tried_again() -> None:
    """A security module of the node may forbid it, or the agent has no capability: here its process is elsewhere."""
    async with folder() as proc, world("evict-all", proc=proc) as w:
        pod = w.pod("greedy", metadata={"finalizers": ["example.com/kept"]})
        async with running(proc, inside(OTHER)) as (process,):
            found = msgspec.structs.replace(over(pod), holders=(process,))
            await w.seen_twice(found)
            w.time += TIME
            for _ in range(3):
                await w.seen_twice(found)
                w.time += 60
            assert lives(process)
            ((_, _, message),) = [told for told in w.told() if told[0] == NOT_KILLED]
            assert message.endswith("its cgroup does not say that it runs in that pod; end it on the node")
            assert w.audit.overdue.kills == {"failed": 3}


async def test_the_container_is_known_by_its_id_where_kubelet_makes_no_cgroups_for_pods() -> None:
    async with folder() as proc, world("evict", proc=proc) as w:
        w.pod("miner", container_id=ID, metadata={"finalizers": ["example.com/kept"]})
        async with running(proc, f"/{ID}") as (process,):
            found = Finding("no-slice", CARD, process, None, 300 * MIB)
            await w.seen_twice(found)
            w.time += TIME
            await w.seen_twice(found)
            assert await ended(process)


async def test_the_processes_of_a_container_that_holds_too_much_are_ended_together() -> None:
    async with folder() as proc, world("evict-all", proc=proc) as w:
        pod = w.pod("greedy", metadata={"finalizers": ["example.com/kept"]})
        async with running(proc, inside(pod.metadata.uid), inside(pod.metadata.uid, SECOND)) as both:
            found = msgspec.structs.replace(over(pod), holders=tuple(both))
            await w.seen_twice(found)
            w.time += TIME
            await w.seen_twice(found)
            assert [await ended(one) for one in both] == [True, True]
            assert w.audit.overdue.kills == {"killed": 2}
