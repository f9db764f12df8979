"""What a container, or a stranger on the node, may try: it harms at most itself, and the agent goes on."""

import asyncio
import os
import random
import socket
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from pathlib import Path

import grpc
import grpc.aio
import msgspec
import pytest

from fractile.agent.kubelet import rpc
from fractile.agent.kubelet.api import deviceplugin_pb2 as dp
from fractile.agent.limits.journal import Journal
from fractile.model.units import CardUUID, ContainerName, PodUID
from fractile.region import directory, shared
from fractile.region.page import CardLimits, ContainerLimits
from fractile.wire.fractile import placement
from fractile.wire.fractile.device_ids import device_id
from tests.agent.world import CARDS, MEM, Asks, World, world

A, B = CARDS
SECONDS = 1.5
IDS = frozenset({device_id(A.uuid, 0)})
LIMITS = ContainerLimits(
    pod_uid=PodUID("u"),
    namespace="n",
    pod="p",
    container=ContainerName("c"),
    cards=(CardLimits(uuid=CardUUID(A.uuid), memory=2**21),),
)


# Token directories


@contextmanager
def unruly(folder: Path, elsewhere: Path) -> Generator[None]:
    """A container as root, which changes what it may write without a pause: everything below shared/."""
    rng = random.Random(1)
    region = folder / "region"
    stop = threading.Event()
    tricks: list[Callable[[], object]] = [
        lambda: region.symlink_to(elsewhere),
        lambda: region.mkdir(),
        lambda: os.mkfifo(region),
        lambda: overwrite(rng.randrange(5000), rng.randrange(2**40)),
        lambda: region.rename(folder / "away"),
        lambda: (folder / "away").rename(region),
        lambda: (folder / "region.new").symlink_to(elsewhere),
        lambda: region.rmdir(),
        region.unlink,
        region.unlink,
    ]

    def overwrite(length: int, size: int) -> None:
        """Of its own file: a link leads elsewhere in the container than it would here."""
        descriptor = os.open(region, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            os.pwrite(descriptor, b"\xff" * length, 0)
            os.truncate(descriptor, size)
        finally:
            os.close(descriptor)

    def work() -> None:
        while not stop.is_set():
            with suppress(OSError):
                rng.choice(tricks)()

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def test_a_container_that_changes_its_folder_all_the_time_reaches_nothing_else(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "slices", new_token=str)
    for token in ("bad", "good"):
        journal.create(token, MEM, IDS)
        journal.write_limits(token, msgspec.structs.replace(LIMITS, pod=token))
    secret = tmp_path / "secret"
    secret.write_bytes(b"kept")
    secret.chmod(0o600)
    neighbour = journal.path("good") / directory.REGION
    before = neighbour.read_bytes(), neighbour.stat().st_ino
    granted = refused = 0
    with unruly(journal.path("bad") / directory.SHARED, secret):
        ends = time.monotonic() + SECONDS
        while time.monotonic() < ends:
            wanted = msgspec.structs.replace(LIMITS, pod="bad", priority=granted % 2)
            try:
                journal.write_limits("bad", wanted)
                granted += 1
            except OSError:
                refused += 1
            seen = journal.limits("bad")
            assert seen is None or seen.pod == "bad"
            found = shared.read(journal.path("bad") / directory.REGION, cards=1)
            assert isinstance(found, str) or found.shape == shared.RegionShape(1)
    assert granted + refused > 20
    assert granted > 0
    assert (secret.read_bytes(), secret.stat().st_mode & 0o777) == (b"kept", 0o600)
    assert (neighbour.read_bytes(), neighbour.stat().st_ino) == before
    kept = journal.limits("good")
    assert kept is not None
    assert kept.pod == "good"
    journal.remove("bad")
    assert sorted(p.name for p in (tmp_path / "slices").iterdir()) == ["good"]
    assert secret.exists()


def test_an_agent_starts_although_its_predecessor_died_over_a_bottomless_folder(tmp_path: Path) -> None:
    left = tmp_path / "slices" / ".left" / "shared"
    left.mkdir(parents=True)
    descriptor = os.open(left, os.O_RDONLY)
    for _ in range(1500):
        os.mkdir("d", dir_fd=descriptor)
        below = os.open("d", os.O_RDONLY, dir_fd=descriptor)
        os.close(descriptor)
        descriptor = below
    os.close(descriptor)
    Journal(tmp_path / "slices", new_token=str)
    assert list((tmp_path / "slices").iterdir()) == []


# Somebody else's identity


async def test_a_copy_of_another_pods_annotations_gives_no_more_than_was_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("fractile.agent.deviceplugin.prestart._WAIT", 0.3)
    async with world() as w:
        rich = w.admit(Asks("main", 8), on={"main": [B]})
        await w.kubelet.running(rich)
        poor = w.bind(Asks("main", 1), on=None)
        w.annotate(poor, w.annotations(rich) | {"fractile.dev/pod-uid": rich.metadata.uid})
        w.kubelet.add(poor)
        await w.kubelet.refused("has not confirmed the change")
        assert w.kubelet.started(poor, "main") is None
        choice = placement.decode(w.annotations(poor)[placement.CHOICE_ANNOTATION])
        assert [s.memory for c in choice.containers for s in c.slices] == [1024]
        w.check(rich)


# The plugin's sockets


def socket_of(w: World, resource: str) -> Path:
    (path,) = w.kubelet.plugin_directory.glob(f"fractile-{resource.rpartition('/')[2]}-*.sock")
    return path


async def test_a_stranger_at_the_socket_gets_errors_and_changes_nothing() -> None:
    async with world() as w:
        pod = w.admit(Asks("main", 4), on={"main": [A]})
        await w.kubelet.running(pod)
        tokens, limits = w.tokens(), w.limits(pod, "main")
        path = socket_of(w, MEM)
        hostile = [
            [device_id(CardUUID("GPU-nobody"), 0)],
            [device_id(A.uuid, 10**6)],
            [device_id(A.uuid, 0), "x" * 2**20],
            ["../../etc/passwd::0", "\x00", ""],
            [],
        ]
        for ids in hostile:
            request = dp.AllocateRequest()
            request.container_requests.add(devices_ids=ids)
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await rpc.call_socket(path, rpc.ALLOCATE, request, timeout=10)
            assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await rpc.call_socket(path, rpc.PRE_START, dp.PreStartContainerRequest(devices_ids=ids), timeout=10)
            assert refused.value.code() is grpc.StatusCode.FAILED_PRECONDITION
        assert w.tokens() == tokens
        assert w.limits(pod, "main") == limits


async def test_to_start_another_pods_container_grants_it_only_what_it_has() -> None:
    """PreStart of ids that somebody holds is what kubelet calls at every start of that container."""
    async with world() as w:
        pod = w.admit(Asks("main", 4), on={"main": [A]})
        await w.kubelet.running(pod)
        tokens = w.tokens()
        page = w.root / "state" / "slices" / tokens[0] / "limits"
        before = page.read_bytes()
        held = dp.PreStartContainerRequest(devices_ids=[device_id(A.uuid, k) for k in range(4)])
        await rpc.call_socket(socket_of(w, MEM), rpc.PRE_START, held, timeout=10)
        less = dp.PreStartContainerRequest(devices_ids=[device_id(A.uuid, k) for k in range(3)])
        with pytest.raises(grpc.aio.AioRpcError, match="name no pod"):
            await rpc.call_socket(socket_of(w, MEM), rpc.PRE_START, less, timeout=10)
        assert (w.tokens(), page.read_bytes()) == (tokens, before)


async def test_bytes_that_are_no_grpc_do_not_stop_the_agent() -> None:
    rng = random.Random(3)
    async with world() as w:
        path = socket_of(w, MEM)
        preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
        for text in (b"", b"GET / HTTP/1.1\r\n\r\n", preface + rng.randbytes(3000), rng.randbytes(70_000)):
            with socket.socket(socket.AF_UNIX) as raw, suppress(OSError):
                raw.settimeout(1)
                raw.connect(str(path))
                raw.sendall(text)
                await asyncio.sleep(0.02)
        pod = w.admit(Asks("main", 4), on={"main": [A]})
        await w.kubelet.running(pod)
        w.check(pod)
