"""CPU and memory of pods and nodes, as kube-scheduler counts them."""

from typing import Any

import pytest
from msgspec import structs

from fractile.wire.kubernetes.objects import Container, Pod
from fractile.wire.kubernetes.pod_totals import NodeCapacity, PodTotals, of_node, of_pod
from tests.builders import container, pod


def asks(cpu: str, memory: str = "0", name: str = "main", *, sidecar: bool = False) -> Container:
    return container(name, requests={"cpu": cpu, "memory": memory}, sidecar=sidecar)


def test_containers_add_up_and_the_largest_init_container_counts_if_it_is_larger() -> None:
    apps = (asks("500m", "1Gi", "a"), asks("1", "512Mi", "b"))
    assert of_pod(pod("p", *apps)) == PodTotals(1500, 1536)
    init = (asks("2", "100Mi", "i"), asks("1", "1800Mi", "j"))
    assert of_pod(pod("p", *apps, init=init)) == PodTotals(2000, 1800)


def test_a_sidecar_counts_with_all_that_start_after_it() -> None:
    init = (asks("3", "0", "first"), asks("1", "0", "side", sidecar=True), asks("2500m", "0", "second"))
    assert of_pod(pod("p", asks("1"), init=init)).cpu == 3500


def test_overhead_is_added_and_limits_stand_in_for_requests() -> None:
    limited = container("main", limits={"cpu": "2", "memory": "1Gi"})
    plain = pod("p", limited)
    over = structs.replace(plain, spec=structs.replace(plain.spec, overhead={"cpu": "250m", "memory": "64Mi"}))
    assert of_pod(plain) == PodTotals(2000, 1024)
    assert of_pod(over) == PodTotals(2250, 1088)


@pytest.mark.parametrize("amount", [None, True, [], "many", "-1", "1e99", {}], ids=str)
def test_what_makes_no_sense_counts_as_nothing_or_as_more_than_any_node(amount: Any) -> None:
    found = of_pod(pod("p", container("main", requests={"cpu": amount, "memory": amount})))
    assert found.cpu in (0, 2**40)


def test_amounts_are_rounded_up_for_pods_and_down_for_nodes() -> None:
    assert of_pod(pod("p", asks("1u", "1"))) == PodTotals(1, 1)
    said = {"cpu": "1999u", "memory": "1048577", "pods": "12"}
    assert of_node(said) == NodeCapacity(1, 1, 12)
    assert of_node(None) == NodeCapacity(0, 0, 110)


def test_a_pod_without_containers_asks_for_nothing() -> None:
    assert of_pod(Pod()) == PodTotals()
