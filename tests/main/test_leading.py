"""Two replicas of the control plane as processes against one API server: one leads, whatever is killed or paused."""

import asyncio
import os
import signal
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack
from pathlib import Path

import httpx2
import pytest

from fractile.kube import paths
from fractile.lab.cluster.interrupted import interrupted
from fractile.main.leading import QUIET
from fractile.wire.kubernetes.objects import Pod
from tests.builders import cards, resource
from tests.fakes.apiserver import FakeApiServer, Fault
from tests.main.plane import until
from tests.main.process import CONTROL_PLANE, Running, control_plane, free_port
from tests.main.test_control_plane import ask, bind, fitting, kubeconfig, stored, submit

pytestmark = pytest.mark.long

LEASE = paths.lease("fractile-system", "lead")
SECONDS = 3  # the shortest that may be given


@pytest.fixture
async def server() -> AsyncGenerator[FakeApiServer, None]:
    """An API server with the one card of n1, and a lease that nobody holds."""
    async with FakeApiServer() as made:
        made.create(paths.extended_resources(), resource(cards("n1")[0], "n1"))
        made.create(paths.leases("fractile-system"), {"metadata": {"name": "lead"}, "spec": {}})
        yield made


class Replicas:
    def __init__(self, server: FakeApiServer, folder: Path, stack: AsyncExitStack) -> None:
        self._server = server
        self._folder = folder
        self._stack = stack

    async def start(self, *more: str, seconds: int = SECONDS, program: Sequence[str] = CONTROL_PLANE) -> Running:
        folder = self._folder / f"replica-{os.urandom(3).hex()}"
        folder.mkdir()
        return await self._stack.enter_async_context(
            control_plane(
                kubeconfig(self._server, folder),
                folder,
                "--lease=fractile-system/lead",
                f"--lease-seconds={seconds}",
                *more,
                program=program,
            )
        )


@pytest.fixture
async def replicas(server: FakeApiServer, tmp_path: Path) -> AsyncGenerator[Replicas, None]:
    async with AsyncExitStack() as stack:
        yield Replicas(server, tmp_path, stack)


async def is_ready(running: Running) -> bool:
    async with httpx2.AsyncClient(base_url=running.url, trust_env=False, timeout=2) as http:
        try:
            return (await http.get("/readyz")).status_code == 200
        except httpx2.TransportError:
            return False


async def metrics(running: Running) -> str:
    async with httpx2.AsyncClient(base_url=running.url, trust_env=False, timeout=5) as http:
        return (await http.get("/metrics")).text


async def alive(running: Running) -> None:
    async with asyncio.timeout(20), httpx2.AsyncClient(base_url=running.url, trust_env=False, timeout=5) as http:
        while True:
            try:
                if (await http.get("/healthz")).status_code == 200:
                    return
            except httpx2.TransportError:
                await asyncio.sleep(0.05)


async def pair(replicas: Replicas, *, program: Sequence[str] = CONTROL_PLANE) -> tuple[Running, Running]:
    """A leader that is ready, and a replica that waits. ``program``: the leader's."""
    leader = await replicas.start(program=program)
    await leader.ready()
    other = await replicas.start()
    await alive(other)
    return leader, other


def holder(server: FakeApiServer) -> str:
    return str(server.get(LEASE)["spec"].get("holderIdentity") or "")


def state_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0]


async def stopped(pid: int) -> None:
    """Wait until the kernel has stopped the process."""
    async with asyncio.timeout(10):
        while (state := state_of(pid)) != "T":
            assert state not in "ZX"
            await asyncio.sleep(0.01)


async def test_of_two_that_race_one_is_ready_and_the_other_says_who_to_ask(
    server: FakeApiServer, replicas: Replicas
) -> None:
    both = await asyncio.gather(replicas.start(), replicas.start())
    await asyncio.gather(*map(alive, both))
    async with asyncio.timeout(20):
        while not any([await is_ready(r) for r in both]):  # noqa: ASYNC110 (it is asked over HTTP)
            await asyncio.sleep(0.05)
    await asyncio.sleep(1)  # the other has looked several times by then
    states = [await is_ready(r) for r in both]
    assert sorted(states) == [False, True]
    waits = both[states.index(False)]
    asked = submit(server, "p")
    for verb in ("filter", "bind"):
        assert "does not lead" in (await ask(waits, verb, {"Pod": asked}))["Error"]
    assert await ask(waits, "prioritize", {"Pod": asked}) == []
    assert ["fractile_control_plane_ready 1" in await metrics(r) for r in both] == states
    assert await bind(both[states.index(True)], asked) == ""
    leader = server.get(LEASE)["spec"]
    said = (stored(server, "p").metadata.annotations or {})["fractile.dev/leader"]
    assert said == f"{leader['holderIdentity']}/{leader['leaseTransitions']}"


async def test_a_replica_that_waits_keeps_no_connection_so_that_the_next_one_finds_the_leader(
    replicas: Replicas,
) -> None:
    """kube-scheduler keeps its connections, and a Service sends only new ones to whoever leads now."""
    _, waits = await pair(replicas)
    host, _, port = waits.url.removeprefix("http://").partition(":")
    for verb in ("filter", "prioritize", "preempt", "bind"):
        reader, writer = await asyncio.open_connection(host, int(port))
        head = f"POST /scheduler/{verb} HTTP/1.1\r\nHost: {host}\r\nContent-Length: 2\r\n\r\n"
        writer.write(f"{head}{{}}".encode())
        async with asyncio.timeout(5):
            answer = await reader.read()  # until it closes
        assert answer.startswith(b"HTTP/1.1 200")
        writer.close()


async def test_a_leader_that_is_told_to_end_is_followed_within_three_seconds(
    server: FakeApiServer, replicas: Replicas
) -> None:
    leader, other = await pair(replicas)
    assert not await is_ready(other)
    held = submit(server, "held", 12_000)
    assert await bind(leader, held) == ""
    began = time.monotonic()
    leader.process.send_signal(signal.SIGTERM)
    await other.ready(10)
    took = time.monotonic() - began
    print(f"hand-over on a clean stop: {took:.2f} s")
    assert took <= 3
    assert await leader.ended() == 0
    assert await fitting(other, submit(server, "next", 5000)) == []  # it knows what the one before has bound
    assert await fitting(other, submit(server, "small", 4000)) == ["n1"]


async def test_a_leader_that_is_killed_is_followed_when_its_lease_has_run_out(
    server: FakeApiServer, replicas: Replicas
) -> None:
    leader, other = await pair(replicas)
    began = time.monotonic()
    leader.process.kill()
    await other.ready(SECONDS + 5 + QUIET)
    took = time.monotonic() - began
    print(f"hand-over after a kill: {took:.2f} s, lease {SECONDS} s")
    assert SECONDS * 2 / 3 < took <= SECONDS + 3 + QUIET


async def test_a_paused_leader_that_continues_refuses_and_waits_again(
    server: FakeApiServer, replicas: Replicas
) -> None:
    old, new = await pair(replicas)
    os.kill(old.pid, signal.SIGSTOP)
    await new.ready(SECONDS + 5 + QUIET)
    first, second = submit(server, "first", 16_000), submit(server, "second", 16_000)
    assert await bind(new, first) == ""
    asking = asyncio.create_task(bind(old, second))  # it is in the socket before the process continues
    await asyncio.sleep(0.2)
    os.kill(old.pid, signal.SIGCONT)
    assert await asking != ""
    assert not await is_ready(old)
    assert stored(server, "second").spec.node_name == ""
    assert len(server.writes(path="/binding")) == 1
    # It is as good as new afterwards.
    new.process.send_signal(signal.SIGTERM)
    await old.ready(10)
    assert await fitting(old, second) == []


async def late_binding(
    server: FakeApiServer, replicas: Replicas, at: str = "allowed"
) -> tuple[Running, Running, Pod, Pod, str]:
    """A leader is paused on its way to the write; another leads, and gives the same card away."""
    old, new = await pair(replicas, program=interrupted("stop", at))
    late, prompt = submit(server, "late", 16_000), submit(server, "prompt", 16_000)
    asking = asyncio.create_task(bind(old, late))
    await stopped(old.pid)
    assert not server.writes(path="/binding")
    await new.ready(SECONDS + 5 + QUIET)
    assert await bind(new, prompt) == ""
    await asyncio.sleep(1.1)  # the API server says in whole seconds when a pod was bound
    os.kill(old.pid, signal.SIGCONT)
    return old, new, late, prompt, await asking


async def test_a_bind_that_was_paused_before_it_looked_at_its_lease_writes_nothing(
    server: FakeApiServer, replicas: Replicas
) -> None:
    _, _, _, _, said = await late_binding(server, replicas, "assumed")
    assert "does not lead" in said
    assert [w for w in server.writes(path="/binding") if "/late/" in w] == []


async def test_a_binding_that_was_paused_before_its_write_is_refused_by_the_api_server(
    server: FakeApiServer, replicas: Replicas
) -> None:
    server.leader = LEASE
    _, new, late, _, said = await late_binding(server, replicas)
    assert said != ""
    assert stored(server, "late").spec.node_name == ""
    assert stored(server, "prompt").spec.node_name == "n1"
    server.delete(paths.pod("default", "prompt"))
    async with asyncio.timeout(5):
        while await fitting(new, late) != ["n1"]:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    assert await bind(new, late) == ""


async def test_without_that_policy_a_late_binding_of_another_pod_is_never_charged(
    server: FakeApiServer, replicas: Replicas
) -> None:
    _, new, _, _, _ = await late_binding(server, replicas)
    if stored(server, "late").spec.node_name:  # unless the time ran out before the write, which is as good
        await until(lambda: server.all(paths.events("default")))
        (event,) = server.all(paths.events("default"))
        assert (event["reason"], event["involvedObject"]["name"]) == ("PlacementIgnored", "late")
    assert await fitting(new, submit(server, "more", 300)) == []
    assert await fitting(new, submit(server, "little", 200)) == ["n1"]


async def test_a_pod_that_the_next_leader_has_bound_is_not_bound_again(
    server: FakeApiServer, replicas: Replicas
) -> None:
    server.create(paths.extended_resources(), resource(cards("n1")[1], "n1"))
    old, new = await pair(replicas, program=interrupted("stop", "allowed"))
    asked = submit(server, "p", 16_000)
    asking = asyncio.create_task(bind(old, asked))
    await stopped(old.pid)
    await new.ready(SECONDS + 5 + QUIET)
    assert await bind(new, asked) == ""
    before = stored(server, "p").metadata.annotations
    os.kill(old.pid, signal.SIGCONT)
    await asking
    assert stored(server, "p").metadata.annotations == before
    assert await fitting(new, submit(server, "q", 16_000)) == ["n1"]


async def test_a_lease_deleted_under_its_leader_makes_no_second_one(server: FakeApiServer, replicas: Replicas) -> None:
    leader, other = await pair(replicas)
    was = holder(server)
    server.delete(LEASE)
    for _ in range(20):
        assert not await is_ready(other)
        await asyncio.sleep(0.1)
    assert await is_ready(leader)
    assert holder(server) == was


async def test_a_leader_whose_api_server_answers_html_stops_and_leads_again_later(
    server: FakeApiServer, replicas: Replicas
) -> None:
    leader = await replicas.start(f"--webhook=127.0.0.1:{free_port()}")  # whose port is needed a second time
    await leader.ready()
    server.inject(Fault(path="/leases", status=200, body=b"<html>proxy</html>", times=10_000))
    async with asyncio.timeout(SECONDS + 2):
        while await is_ready(leader):  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    asked = submit(server, "p")
    assert await bind(leader, asked) != ""
    assert not server.writes(path="/binding")
    server.heal()
    await leader.ready(SECONDS + 5 + QUIET)
    assert await bind(leader, asked) == ""
    assert "Traceback" not in leader.log.read_text()


async def test_a_lease_held_by_nobody_we_know_from_the_future_is_waited_out(
    server: FakeApiServer, replicas: Replicas
) -> None:
    spec = {"holderIdentity": "x", "renewTime": "2099-01-01T00:00:00.000000Z", "leaseDurationSeconds": 2}
    server.merge(LEASE, {"spec": spec})
    began = time.monotonic()
    leader = await replicas.start()
    await leader.ready(15)
    assert time.monotonic() - began >= 2
