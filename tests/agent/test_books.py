"""Reading kubelet's books: pod-resources at the wire, the checkpoint as a file."""

import asyncio
import tempfile
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import grpc
import pytest

from fractile.agent import rpc
from fractile.agent.api import deviceplugin_pb2 as dp
from fractile.agent.api import podresources_pb2 as pr
from fractile.agent.books import Books, BooksClosed, Kubelet, mounted
from fractile.model.units import ContainerName, PodUID
from fractile.wire import kubelet_checkpoint
from fractile.wire.kubelet_checkpoint import Recorded


@dataclass
class PodResources:
    """The server side of pod-resources; each List shows a pod that is named after its number."""

    refuse: int = 0
    delay: float = 0.0
    lists: int = 0
    devices: list[pr.ContainerDevices] = field(default_factory=list[pr.ContainerDevices])

    async def list(self, request: pr.ListPodResourcesRequest, context: rpc.Context) -> pr.ListPodResourcesResponse:
        self.lists += 1
        mine = self.lists
        await asyncio.sleep(self.delay)
        if mine <= self.refuse:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "rejected by rate limit")
        container = pr.ContainerResources(name="c", devices=self.devices)
        pod = pr.PodResources(name=f"p{mine}", namespace="ns", containers=[container])
        return pr.ListPodResourcesResponse(pod_resources=[pod])


@asynccontextmanager
async def served(answers: PodResources) -> AsyncGenerator[tuple[Kubelet, Path], None]:
    with tempfile.TemporaryDirectory(prefix="fr-") as folder:
        root = Path(folder)
        server = await rpc.serve(root / "pr.sock", rpc.unary(rpc.LIST, answers.list))
        try:
            yield Kubelet(root / "pr.sock", root / "checkpoint"), root / "checkpoint"
        finally:
            await server.stop(0)


async def test_devices_listed_once_for_each_numa_node_are_one_set() -> None:
    devices = [pr.ContainerDevices(resource_name="r", device_ids=[i]) for i in ("a", "b")]
    async with served(PodResources(devices=devices)) as (kubelet, _):
        books = await kubelet.books()
    assert books.listed[0].held == {"c": {"r": frozenset({"a", "b"})}}
    assert books.listed_holders("r", frozenset({"a", "b"}))[0][1] == "c"
    assert books.listed_holders("r", frozenset({"a"})) == []


async def test_a_refusal_for_the_rate_is_waited_out() -> None:
    answers = PodResources(refuse=2)
    async with served(answers) as (kubelet, _):
        assert (await kubelet.books()).listed[0].name == "p3"


async def test_a_kubelet_that_is_away_is_an_error_with_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(BooksClosed, match="see whether kubelet runs"):
        await Kubelet(tmp_path / "nobody.sock", tmp_path / "checkpoint").books()


async def test_many_readers_share_a_read_that_began_after_they_asked() -> None:
    answers = PodResources(delay=0.05)
    async with served(answers) as (kubelet, _):
        first = asyncio.create_task(kubelet.books())
        while not answers.lists:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        others = await asyncio.gather(*(kubelet.books() for _ in range(20)))
        assert (await first).listed[0].name == "p1"
        assert {b.listed[0].name for b in others} == {"p2"}
        assert (await kubelet.books()).listed[0].name == "p3", "a later caller never gets an older read"


async def test_a_reader_that_gives_up_does_not_stop_the_others() -> None:
    answers = PodResources(delay=0.05)
    async with served(answers) as (kubelet, _):
        tasks = [asyncio.create_task(kubelet.books()) for _ in range(3)]
        await asyncio.sleep(0.01)
        tasks[0].cancel()
        tasks[2].cancel()
        assert (await asyncio.wait_for(tasks[1], 5)).listed
        assert (await asyncio.wait_for(kubelet.books(), 5)).listed


async def test_a_missing_checkpoint_is_an_empty_one_and_a_damaged_one_is_unknown() -> None:
    async with served(PodResources()) as (kubelet, checkpoint):
        assert (await kubelet.books()).recorded == ()
        checkpoint.write_bytes(b"{")
        assert (await kubelet.books()).recorded is None


async def test_entries_are_found_by_container_and_by_ids() -> None:
    entry = Recorded(PodUID("u"), ContainerName("c"), "r", frozenset({"a"}))
    async with served(PodResources()) as (kubelet, checkpoint):
        checkpoint.write_bytes(kubelet_checkpoint.encode([entry], {"r": ["a", "b"]}))
        books = await kubelet.books()
    assert books.entry(PodUID("u"), "c", "r") == entry
    assert books.entry(PodUID("other"), "c", "r") is None
    assert books.recorded_holders("r", frozenset({"a"})) == [entry]
    assert books.recorded_holders("other", frozenset({"a"})) == []
    assert Books((), None).recorded_holders("r", frozenset({"a"})) == []


def test_the_directory_is_taken_from_our_own_mount_only() -> None:
    ours = dp.Mount(container_path="/etc/fractile", host_path="/state/slices/t")
    other = dp.Mount(container_path="/usr/lib", host_path="/elsewhere")
    answer = dp.ContainerAllocateResponse(mounts=[other, ours]).SerializeToString()
    entry = Recorded(PodUID("u"), ContainerName("c"), "r", frozenset(), answer)
    assert mounted(entry) == Path("/state/slices/t")
    for strange in (b"", b"\xff\xff\xff", dp.ContainerAllocateResponse(mounts=[other]).SerializeToString()):
        assert mounted(Recorded(PodUID("u"), ContainerName("c"), "r", frozenset(), strange)) is None
