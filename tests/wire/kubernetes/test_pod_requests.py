"""What a pod requests, as Kubernetes adds it up."""

from fractions import Fraction
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fractile.errors import WireError
from fractile.wire.kubernetes.pod_requests import Amounts, CountedNode, CountedPod, is_extended, limits, requests


def container(limit: dict[str, Any] | None = None, /, **request: Any) -> dict[str, Any]:
    return {"name": "c", "resources": {"requests": request, "limits": limit or {}}}


def sidecar(**request: Any) -> dict[str, Any]:
    return {**container(**request), "restartPolicy": "Always"}


def pod(*containers: dict[str, Any], init: tuple[dict[str, Any], ...] = (), **spec: Any) -> CountedPod:
    return msgspec.convert(
        {"metadata": {"name": "p"}, "spec": {"containers": containers, "initContainers": init, **spec}}, CountedPod
    )


def numbers(amounts: Amounts) -> dict[str, float]:
    return {name: float(amount) for name, amount in amounts.items()}


def test_containers_add_up() -> None:
    assert numbers(requests(pod(container(cpu="500m", memory="1Gi"), container(cpu=2)))) == {
        "cpu": 2.5,
        "memory": 2**30,
    }


def test_init_containers_run_one_after_another_and_before_the_others() -> None:
    assert numbers(requests(pod(container(cpu=2), init=(container(cpu=3), container(cpu=1))))) == {"cpu": 3}
    assert numbers(requests(pod(container(cpu=4), init=(container(cpu=3),)))) == {"cpu": 4}


def test_a_sidecar_runs_beside_what_starts_after_it() -> None:
    # The second init container runs beside the sidecar (1 + 5), the containers too (2 + 1); the first runs alone.
    found = requests(pod(container(cpu=2), init=(container(cpu=5), sidecar(cpu=1), container(cpu=5))))

    assert numbers(found) == {"cpu": 6}


def test_every_resource_has_its_own_peak() -> None:
    found = requests(pod(container(**{"cpu": 1, "a/gpu": 2}), init=(container(**{"cpu": 4, "a/nic": 1}),)))

    assert numbers(found) == {"cpu": 4, "a/gpu": 2, "a/nic": 1}


def test_a_limit_without_a_request_is_the_request() -> None:
    asked = pod(container({"a/gpu": 2, "cpu": 4}, cpu=1))

    assert numbers(requests(asked)) == {"a/gpu": 2, "cpu": 1}
    assert numbers(limits(asked)) == {"a/gpu": 2, "cpu": 4}


def test_overhead_comes_on_top_of_requests_and_of_limits_that_there_are() -> None:
    asked = pod(container({"cpu": 1}), overhead={"cpu": "250m", "memory": "100Mi"})

    assert numbers(requests(asked)) == {"cpu": 1.25, "memory": 100 * 2**20}
    assert numbers(limits(asked)) == {"cpu": 1.25}


def test_what_the_pod_asks_for_as_a_whole_replaces_the_sum_for_cpu_and_memory() -> None:
    asked = pod(
        container(**{"cpu": 1, "a/gpu": 2}), resources={"requests": {"cpu": 3, "a/gpu": 9}, "limits": {"cpu": 5}}
    )

    assert numbers(requests(asked)) == {"cpu": 3, "a/gpu": 2}
    assert numbers(limits(asked)) == {"cpu": 5}


def test_a_container_that_names_no_request_counts_with_the_default_and_one_that_asks_for_nothing_does_not() -> None:
    default = {"cpu": Fraction(1, 10), "memory": Fraction(200)}

    assert numbers(requests(pod(container()), if_missing=default)) == {"cpu": 0.1, "memory": 200}
    assert numbers(requests(pod(container(cpu=0)), if_missing=default)) == {"cpu": 0, "memory": 200}


amount = st.integers(0, 100)
rows = st.lists(st.tuples(amount, st.booleans()), max_size=5)


@given(rows, st.lists(amount, max_size=4))
def test_the_sum_is_the_highest_moment_of_the_pods_life(init: list[tuple[int, bool]], apps: list[int]) -> None:
    moments, beside = [0], 0
    for cpu, stays in init:
        moments.append(beside + cpu)
        beside += cpu if stays else 0
    moments.append(beside + sum(apps))

    asked = pod(
        *(container(cpu=cpu) for cpu in apps), init=tuple((sidecar if s else container)(cpu=cpu) for cpu, s in init)
    )

    assert requests(asked).get("cpu", 0) == max(moments)


@pytest.mark.parametrize("value", ["-1", "x", True, None, [], "1e4000"])
def test_what_is_no_amount_is_told_with_its_resource(value: Any) -> None:
    with pytest.raises(WireError, match=r"^a/gpu: "):
        requests(pod(container(**{"a/gpu": value})))


@pytest.mark.parametrize(
    ("resource", "extended"),
    [
        ("nvidia.com/gpu", True),
        ("example.com/dongle", True),
        ("cpu", False),
        ("hugepages-1Gi", False),
        ("attachable-volumes-csi-x", False),
        ("scheduling.kubernetes.io/foo", False),
        ("requests.nvidia.com/gpu", False),
    ],
)
def test_extended_resources_have_a_domain_that_is_not_kubernetes_own(resource: str, extended: bool) -> None:
    assert is_extended(resource) is extended


@pytest.mark.parametrize(
    ("node", "phase", "holds"),
    [
        ("n", "Running", True),
        ("n", "", True),
        ("n", "Failed", False),
        ("n", "Succeeded", False),
        ("", "Pending", False),
    ],
)
def test_a_pod_takes_from_its_node_until_it_has_ended(node: str, phase: str, holds: bool) -> None:
    body = {"metadata": {"name": "p"}, "spec": {"nodeName": node}, "status": {"phase": phase}}

    assert msgspec.convert(body, CountedPod).holds is holds


def test_a_node_without_allocatable_gives_its_capacity() -> None:
    found = msgspec.convert({"status": {"capacity": {"cpu": 4}}}, CountedNode)
    other = msgspec.convert({"status": {"capacity": {"cpu": 4}, "allocatable": {"cpu": 3}}}, CountedNode)

    assert (found.given, other.given) == ({"cpu": 4}, {"cpu": 3})
