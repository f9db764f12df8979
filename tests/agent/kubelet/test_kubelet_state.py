"""What the agent makes of kubelet's books."""

import tempfile
import time
from collections.abc import Iterator, Set
from pathlib import Path

import pytest

from fractile.agent.kubelet import rpc
from fractile.agent.kubelet.api import podresources_pb2 as pr
from fractile.agent.kubelet.kubelet_state import Kubelet, KubeletState, KubeletStateMissing, listed_pod
from fractile.model.units import ContainerName, PodUID
from fractile.wire.foreign import kubelet_checkpoint
from fractile.wire.foreign.kubelet_checkpoint import Recorded


def test_a_list_with_an_entry_for_every_id_is_read_in_time_that_grows_with_their_number_only() -> None:
    """Kubelet lists every id in an entry of its own; 16,276 of them once took the agent four seconds."""
    few, many = _seconds(2_000), _seconds(32_000)
    assert many < 64 * few + 0.05, f"16 times the ids took {many / few:.0f} times as long"


def test_ids_of_one_resource_are_gathered_whatever_the_entries() -> None:
    pod = pr.PodResources(name="p", namespace="n")
    container = pod.containers.add(name="c")
    for ids in (["a"], ["b", "c"], ["a"]):
        container.devices.add(resource_name="r", device_ids=ids)
    assert listed_pod(pod).held == {ContainerName("c"): {"r": frozenset({"a", "b", "c"})}}


async def test_a_list_is_right_whoever_came_went_or_changed_since_the_last_one() -> None:
    def pod(name: str, *ids: str) -> pr.PodResources:
        made = pr.PodResources(name=name, namespace="n")
        made.containers.add(name="c").devices.add(resource_name="r", device_ids=ids)
        return made

    present: list[pr.PodResources] = []

    async def answer(request: pr.ListPodResourcesRequest, context: rpc.Context) -> pr.ListPodResourcesResponse:
        return pr.ListPodResourcesResponse(pod_resources=present)

    with tempfile.TemporaryDirectory(prefix="fr-") as folder:
        server = await rpc.serve(Path(folder) / "s", rpc.unary(rpc.LIST, answer))
        kubelet = Kubelet(Path(folder) / "s", Path(folder) / "none")
        try:
            seen: list[list[tuple[str, Set[str]]]] = []
            for now in ([pod("a", "1"), pod("b", "2")], [pod("b", "2")], [pod("b", "2", "3"), pod("a", "1")], []):
                present[:] = now
                listed = (await kubelet.state()).listed
                seen.append([(p.name, p.held[ContainerName("c")]["r"]) for p in listed])
        finally:
            await kubelet.close()
            await server.stop(0)
    one, two, both = frozenset({"1"}), frozenset({"2"}), frozenset({"2", "3"})
    assert seen == [[("a", one), ("b", two)], [("b", two)], [("b", both), ("a", one)], []]


async def test_a_list_that_is_none_closes_the_books() -> None:
    async def nonsense(request: pr.ListPodResourcesRequest, context: rpc.Context) -> pr.EncodedPodResourcesResponse:
        return pr.EncodedPodResourcesResponse(pod_resources=[b"\xff\xff"])

    with tempfile.TemporaryDirectory(prefix="fr-") as folder:
        server = await rpc.serve(Path(folder) / "s", rpc.unary(rpc.LIST_ENCODED, nonsense))
        kubelet = Kubelet(Path(folder) / "s", Path(folder) / "none")
        try:
            with pytest.raises(KubeletStateMissing, match="cannot be decoded"):
                await kubelet.state()
        finally:
            await kubelet.close()
            await server.stop(0)


def test_a_read_of_the_record_is_gone_through_once_however_many_containers_are_looked_up() -> None:
    class Counting(tuple[Recorded, ...]):
        times = 0

        def __reversed__(self) -> Iterator[Recorded]:
            self.times += 1
            return iter(self[::-1])

        def __iter__(self) -> Iterator[Recorded]:
            self.times += 1
            return super().__iter__()

    held = [Recorded(PodUID("p"), ContainerName(f"c{n}"), "r", frozenset({str(n)})) for n in range(100)]
    recorded = Counting(held)
    books = KubeletState((), recorded)
    assert [books.entry(PodUID("p"), e.container, "r") for e in held] == held
    assert books.entry(PodUID("p"), "other", "r") is None
    assert recorded.times == 1


def _seconds(count: int) -> float:
    pod = pr.PodResources(name="p", namespace="n")
    container = pod.containers.add(name="c")
    for k in range(count):
        container.devices.add(resource_name="aliyun.com/gpu-mem", device_ids=[f"GPU-0000::{k}"])
    best = float("inf")
    for _ in range(3):
        began = time.thread_time()
        held = listed_pod(pod).held[ContainerName("c")]["aliyun.com/gpu-mem"]
        best = min(best, time.thread_time() - began)
        assert len(held) == count
    return best


@pytest.mark.parametrize("ids", [10, 60_000])
async def test_the_record_is_read_whether_it_is_short_or_long(tmp_path: Path, ids: int) -> None:
    file = tmp_path / "checkpoint"
    kubelet = Kubelet(tmp_path / "s", file)
    assert (await kubelet.record()).recorded == ()  # a kubelet that has handed out nothing yet
    entry = Recorded(PodUID("u"), ContainerName("main"), "r", frozenset({"GPU-a::0"}))
    file.write_bytes(kubelet_checkpoint.encode([entry], {"r": [f"GPU-{'0' * 32}::{n}" for n in range(ids)]}))
    assert (await kubelet.record()).recorded == (entry,)
    file.write_bytes(file.read_bytes()[:-2])
    assert (await kubelet.record()).recorded is None
