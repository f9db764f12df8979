"""What the pods that come and go leave behind in what scores need of them: a bounded room, whatever they ask for."""

import tracemalloc
from collections.abc import Callable

import pytest

from fractile.ledger.node_totals import NodeTotals
from fractile.model.units import MemoryUnit, PodUID
from fractile.watch.node_handlers import NodeHandlers
from fractile.watch.pod_mix import SeenPods
from fractile.wire.kubernetes.objects import Container, Pod
from tests.builders import Clock, card, cluster, container, pod

CARD = 80_000
UNIT = MemoryUnit.MiB


class World:
    """Node handlers, and the pods that they have seen."""

    def __init__(self) -> None:
        self.seen = SeenPods(Clock())
        self.handlers = NodeHandlers(NodeTotals(), self.seen, cluster({"n": [card("n", memory=CARD)]}).arrays, UNIT)

    def comes_and_goes(self, name: str, *containers: Container) -> None:
        made: Pod = pod(name, *containers)
        self.handlers.pod_changed(made)
        self.handlers.pod_gone(PodUID(made.metadata.uid))


def many_names(k: int) -> list[Container]:
    """64 containers, as many as may ask, with long names of their own."""
    return [container(f"c{k}x{j}" + "y" * 40, memory=1 + (k * 7 + j) % 199) for j in range(64)]


def many_parts(k: int) -> list[Container]:
    """63 containers with parts of eight cards each; all pods have the same ones, but for one that each leaves out."""
    limits = [{"nvidia.com/gpu": "8", "nvidia.com/gpumem": str(100 + j)} for j in range(64)]
    return [container(f"c{j}", limits=one) for j, one in enumerate(limits) if j != 63 - k]


@pytest.mark.parametrize("containers", [many_names, many_parts])
def test_pods_of_hundreds_of_containers_or_parts_leave_little_behind(
    containers: Callable[[int], list[Container]],
) -> None:
    w = World()
    for k in (0, 63):
        w.comes_and_goes(f"first-{k}", *containers(k))
    tracemalloc.start()
    try:
        for k in range(1, 31):
            w.comes_and_goes(f"p{k}", *containers(k))
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 30 * 10_000  # bytes; before, 34,000 for each pod and more
    assert w.seen.mix(CARD).total == 32


def test_pods_that_differ_in_names_alone_are_one_kind() -> None:
    w = World()
    for k in range(3):
        w.comes_and_goes(f"p{k}", container(f"c{k}", memory=5), container(f"d{k}", memory=7))
        w.comes_and_goes(f"q{k}", *(container(f"c{k}x{j}", memory=5) for j in range(20)))
    assert list(w.seen.counts().values()) == [3, 3]


@pytest.mark.parametrize("count", [1, 20], ids=["one container", "twenty"])
def test_every_amount_that_decides_what_a_pod_asks_for_makes_it_another_kind(count: int) -> None:
    w = World()
    limits = [
        {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "5"},
        {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "6"},
        {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "5", "nvidia.com/gpucores": "7"},
        {"nvidia.com/gpu": "1", "nvidia.com/gpumem-percentage": "5"},
        {"nvidia.com/gpu": "2", "nvidia.com/gpumem": "5"},
        {"nvidia.com/gpu": "1"},
        {"aliyun.com/gpu-mem": str(10**6)},
    ]
    for n, one in enumerate(limits):
        w.comes_and_goes(f"p{n}", *(container(f"c{j}", limits=one) for j in range(count)))
        w.comes_and_goes(f"q{n}", *(container(f"c{j}", limits=one, requests={"cpu": "1"}) for j in range(count)))
    assert list(w.seen.counts().values()) == [1] * 2 * len(limits)
