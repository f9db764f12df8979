"""What a hostile container can do at its door: nothing to others, and little to the node."""

import asyncio
import contextlib
import os
import resource
import shutil
import socket
import tempfile
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import grpc
import grpc.aio
import pytest

from fractile.agent.gpumanager.vcuda_proxy import ClaimAnswer, VcudaProxy, Visitor
from fractile.agent.kubelet import rpc
from fractile.agent.kubelet.api import deviceplugin_pb2 as dp
from fractile.agent.kubelet.api import vcuda_pb2 as vcuda
from fractile.agent.limits import vcuda_folder
from fractile.agent.limits.vcuda_folder import VcudaFolder
from tests.region.strange import empty, link, pipe

CLAIM = vcuda.VDeviceRequest(pod_uid="u", container_name="main")
FINE = ClaimAnswer()
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


@dataclass
class House:
    """Doors, what came through them, and the answer that everybody gets."""

    root: Path
    came: list[tuple[Visitor, vcuda.VDeviceRequest]] = field(default_factory=list[tuple[Visitor, vcuda.VDeviceRequest]])
    answer: ClaimAnswer = FINE

    async def called(self, visitor: Visitor, claim: vcuda.VDeviceRequest) -> ClaimAnswer:
        self.came.append((visitor, claim))
        return self.answer

    def door(self, token: str) -> Path:
        return self.root / token / "vcuda" / vcuda_folder.SOCKET

    async def knock(self, token: str, claim: vcuda.VDeviceRequest = CLAIM) -> None:
        await rpc.call_socket(self.door(token), rpc.REGISTER_VDEVICE, claim, timeout=20)


@asynccontextmanager
async def house(*tokens: str) -> AsyncGenerator[House]:
    made = House(Path(tempfile.mkdtemp(prefix="fr-")))
    folders: list[VcudaFolder] = []
    doors = VcudaProxy(made.root / "in", made.called)
    try:
        async with asyncio.TaskGroup() as tasks:
            life = tasks.create_task(doors.run(tasks))
            while not doors.running:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
            for token in tokens:
                (made.root / token).mkdir()
                vcuda_folder.prepare(made.root / token)
                folders.append(VcudaFolder(made.root / token))
                doors.open(token, folders[-1].listen())
            yield made
            for token in tokens:
                doors.close(token)
            life.cancel()
    finally:
        for folder in folders:
            folder.close()
        shutil.rmtree(made.root)


def connected(path: Path, *, timeout: float = 5.0) -> socket.socket:
    made = socket.socket(socket.AF_UNIX)
    made.settimeout(timeout)
    made.connect(str(path))
    return made


def talk(path: Path, said: bytes) -> bytes:
    """What the other side says until it hangs up; b"" also when it just does."""
    heard = b""
    with connected(path, timeout=10) as made:
        try:
            made.sendall(said)
            while data := made.recv(4096):
                heard += data
        except (ConnectionError, TimeoutError):
            pass
    return heard


async def seconds(work: Callable[[], object]) -> float:
    began = time.monotonic()
    await asyncio.to_thread(work)
    return time.monotonic() - began


async def test_a_call_is_known_by_its_door_and_by_the_pid_that_the_kernel_gives() -> None:
    async with house("one", "two") as h:
        await asyncio.gather(*(h.knock(token) for token in ("one", "two", "one")))
        assert sorted(v.token for v, _ in h.came) == ["one", "one", "two"]
        assert {v.pid for v, _ in h.came} == {os.getpid()}
        assert all(claim == CLAIM for _, claim in h.came)


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        (ClaimAnswer("no"), grpc.StatusCode.PERMISSION_DENIED),
        (ClaimAnswer("wait", error=True), grpc.StatusCode.UNAVAILABLE),
    ],
    ids=["refused", "our own fault"],
)
async def test_a_refusal_is_an_error_with_its_sentence(answer: ClaimAnswer, code: grpc.StatusCode) -> None:
    async with house("one") as h:
        h.answer = answer
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await h.knock("one")
        assert (caught.value.code(), caught.value.details()) == (code, answer.refused)


async def test_another_method_is_unknown_and_a_long_message_refused() -> None:
    async with house("one") as h:
        for method, message, code in (
            (rpc.ALLOCATE, dp.AllocateRequest(), grpc.StatusCode.UNIMPLEMENTED),
            (rpc.REGISTER_VDEVICE, vcuda.VDeviceRequest(pod_uid="x" * 8192), grpc.StatusCode.RESOURCE_EXHAUSTED),
        ):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await rpc.call_socket(h.door("one"), method, message, timeout=10)  # type: ignore[misc]
            assert caught.value.code() is code
        assert h.came == []


@pytest.mark.parametrize(
    "said",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(b"GET / HTTP/1.1\r\n\r\n", id="another protocol"),
        pytest.param(os.urandom(5000), id="noise"),
        pytest.param(PREFACE + b"\xff" * 9 + os.urandom(2000), id="a frame of 16 MB"),
        pytest.param(PREFACE + b"\0\0\0\4\0\0\0\0\0" * 3000, id="settings without end"),
    ],
)
async def test_garbage_is_hung_up_on_and_the_next_one_is_served(said: bytes) -> None:
    async with house("one") as h:
        assert await seconds(lambda: talk(h.door("one"), said)) < 9
        await h.knock("one")
        assert len(h.came) == 1


async def test_a_client_can_send_no_more_than_a_few_kilobytes() -> None:
    async with house("one") as h:
        frames = b"\0\0\10\6\0\0\0\0\0pingpong" * 20_000  # 340 KB of valid pings

        def flood() -> int:
            with connected(h.door("one"), timeout=10) as made:
                made.sendall(PREFACE + b"\0\0\0\4\0\0\0\0\0")
                sent = 0
                try:
                    while sent < len(frames):
                        sent += made.send(frames[sent : sent + 1700])
                        time.sleep(0.01)
                except (ConnectionError, TimeoutError):
                    pass
                return sent

        assert await asyncio.to_thread(flood) < 40_000


async def test_a_thousand_connections_of_one_container_cost_the_node_four_and_others_nothing() -> None:
    async with house("one", "two") as h:
        before = len(os.listdir("/proc/self/fd"))
        mine: list[socket.socket] = []
        refused = 0
        for _ in range(1000):
            made = socket.socket(socket.AF_UNIX)
            made.setblocking(False)
            try:
                made.connect(str(h.door("one")))
                mine.append(made)
            except BlockingIOError:  # the queue of this door is full
                made.close()
                refused += 1
            if len(mine) % 10 == 0:
                await asyncio.sleep(0)
        try:
            await asyncio.sleep(0.2)
            theirs = len(os.listdir("/proc/self/fd")) - before - len(mine)
            assert theirs <= 3 * 4 + 1  # the connection, ours to the server, and the server's end of it
            assert refused > 900
            began = time.monotonic()
            await h.knock("two")
            assert time.monotonic() - began < 2
        finally:
            for made in mine:
                made.close()
        async with asyncio.timeout(20):
            while not any(visitor.token == "one" for visitor, _ in h.came):
                with contextlib.suppress(grpc.aio.AioRpcError):  # the queue is still full of those that are gone
                    await h.knock("one")


async def test_who_connects_without_end_is_slowed_down_to_one_in_a_second() -> None:
    async with house("one") as h:
        spent, began = resource.getrusage(resource.RUSAGE_SELF).ru_utime, time.monotonic()

        def hammer() -> int:
            made = 0
            while time.monotonic() - began < 3:
                with socket.socket(socket.AF_UNIX) as one:
                    one.settimeout(0.05)
                    try:
                        one.connect(str(h.door("one")))
                        one.sendall(PREFACE)
                        made += bool(one.recv(1))  # the server's first byte: it was let in
                    except (ConnectionError, TimeoutError):
                        pass
                    except BlockingIOError:  # the queue is full
                        time.sleep(0.01)
            return made

        assert 1 <= await asyncio.to_thread(hammer) <= 16 + 3 + 1
        assert resource.getrusage(resource.RUSAGE_SELF).ru_utime - spent < 2.5


async def test_nobody_reaches_the_server_but_through_a_door() -> None:
    async with house("one") as h:
        assert (h.root / "in").stat().st_mode & 0o777 == 0o700
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await rpc.call_socket(h.root / "in" / "server", rpc.REGISTER_VDEVICE, CLAIM, timeout=10)
        assert "unknown connection" in (caught.value.details() or "")
        assert h.came == []


async def test_nothing_is_left_of_a_connection() -> None:
    async with house("one") as h:
        for _ in range(5):
            await h.knock("one")
        assert os.listdir(h.root / "in") == ["server"]


async def test_sixteen_containers_that_hold_all_their_places_take_none_of_the_seventeenth() -> None:
    hostile = [f"t{n}" for n in range(16)]
    async with house(*hostile, "one") as h, contextlib.AsyncExitStack() as held:
        for token in hostile * 4:
            held.enter_context(connected(h.door(token)))
        await asyncio.sleep(0.2)
        began = time.monotonic()
        await h.knock("one")
        assert time.monotonic() - began < 1


@pytest.mark.parametrize("harm", [empty, link, pipe])
async def test_what_lies_in_the_place_of_the_folder_of_names_goes(tmp_path: Path, harm: Callable[[Path], None]) -> None:
    harm(tmp_path / "in")
    doors = VcudaProxy(tmp_path / "in", House(tmp_path).called)
    async with asyncio.timeout(20), asyncio.TaskGroup() as tasks:
        life = tasks.create_task(doors.run(tasks))
        while not doors.running:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        life.cancel()
    assert (tmp_path / "in").is_dir()
