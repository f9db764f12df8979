"""Preemption with the real kube-scheduler: the right card is freed, and its room goes to whom it was freed for."""

import time
from collections.abc import Generator

import pytest

from fractile.lab.cluster.local import LocalCluster
from fractile.lab.demos import workload as w
from fractile.lab.demos.workload import DemoWorkload, Manifest

CARD = 16_276
CLASSES = {"e2e-low": 10, "e2e-high": 1000}


@pytest.fixture
def work(cluster: LocalCluster) -> Generator[DemoWorkload]:
    """A namespace that is empty before and after, and two priorities."""
    cluster.up()
    found = DemoWorkload(cluster.kubectl, "e2e-preemption")
    found.create_namespace()
    found.delete()
    found.apply(
        [
            {
                "apiVersion": "scheduling.k8s.io/v1",
                "kind": "PriorityClass",
                "metadata": {"name": name},
                "value": value,
            }
            for name, value in CLASSES.items()
        ]
    )
    yield found
    found.delete(wait=120)
    cluster.kubectl("delete", "priorityclass", *CLASSES, "--ignore-not-found")


def pod(name: str, memory: int, priority: str) -> Manifest:
    made = w.pod(name, w.container(memory=memory), nodes=["n1"])
    made["spec"]["priorityClassName"] = priority
    return made


def card_of(made: Manifest) -> str:
    return w.placement_of(made).containers[0].slices[0].card


def test_a_pod_of_high_priority_evicts_the_fewest_of_the_card_that_it_gets(
    cluster: LocalCluster, work: DemoWorkload
) -> None:
    """By sums two of the four must go, and kube-scheduler spares the older ones as long as the sum is kept: it would
    evict ``p2`` and ``p4``, of different cards, after which the pod would still not fit."""
    placed: dict[str, str] = {}
    for name, memory in (("p1", 9000), ("p2", 9100), ("p3", 7000), ("p4", 7000)):
        work.apply([pod(name, memory, "e2e-low")])
        placed[name] = card_of(work.wait_running(name)[name])
        time.sleep(1.1)  # the API counts creation in seconds
    assert placed["p1"] == placed["p4"] != placed["p2"] == placed["p3"]

    work.apply([pod("later", 7000, "e2e-low")])  # it would fit into what is freed, were that not kept
    work.wait_refused("later")
    work.apply([pod("high", CARD, "e2e-high")])
    high = work.wait_running("high")["high"]

    left = work.pods()
    assert card_of(high) == placed["p2"]
    assert left.keys() == {"p1", "p4", "later", "high"}
    assert all(left[name]["status"]["containerStatuses"][0]["restartCount"] == 0 for name in ("p1", "p4"))
    assert w.node_of(left["later"]) == ""
    log = cluster.log("control-plane").read_text()
    assert f"preempt pod='{work.namespace}/high' asked=1 helps=1 victims=2" in log


def test_a_pod_that_eviction_cannot_help_evicts_nobody(work: DemoWorkload) -> None:
    for name, priority in (("one", "e2e-high"), ("two", "e2e-high"), ("small", "e2e-low")):
        work.apply([pod(name, 9000 if priority == "e2e-high" else 7000, priority)])
        work.wait_running(name)
    work.apply([pod("high", CARD, "e2e-high")])
    work.wait_refused("high")
    time.sleep(2)
    assert {name for name, one in work.pods().items() if w.phase(one) == "Running"} == {"one", "two", "small"}
