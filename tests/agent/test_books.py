"""What the agent makes of kubelet's books."""

import time

from fractile.agent.api import podresources_pb2 as pr
from fractile.agent.books import _listed  # pyright: ignore[reportPrivateUsage]
from fractile.model.units import ContainerName


def test_a_list_with_an_entry_for_every_id_is_read_in_time_that_grows_with_their_number_only() -> None:
    """Kubelet lists every id in an entry of its own; 16,276 of them once took the agent four seconds."""
    few, many = _seconds(2_000), _seconds(32_000)
    assert many < 64 * few + 0.05, f"16 times the ids took {many / few:.0f} times as long"


def test_ids_of_one_resource_are_gathered_whatever_the_entries() -> None:
    pod = pr.PodResources(name="p", namespace="n")
    container = pod.containers.add(name="c")
    for ids in (["a"], ["b", "c"], ["a"]):
        container.devices.add(resource_name="r", device_ids=ids)
    assert _listed(pod).held == {ContainerName("c"): {"r": frozenset({"a", "b", "c"})}}


def _seconds(count: int) -> float:
    pod = pr.PodResources(name="p", namespace="n")
    container = pod.containers.add(name="c")
    for k in range(count):
        container.devices.add(resource_name="aliyun.com/gpu-mem", device_ids=[f"GPU-0000::{k}"])
    best = float("inf")
    for _ in range(3):
        began = time.perf_counter()
        held = _listed(pod).held[ContainerName("c")]["aliyun.com/gpu-mem"]
        best = min(best, time.perf_counter() - began)
        assert len(held) == count
    return best
