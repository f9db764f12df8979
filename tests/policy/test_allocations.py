"""What pods take of nodes: sums per node and resource, of all resources."""

from fractions import Fraction
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fractile.cli.text.allocations import table
from fractile.policy.allocations import Allocations, Filter, ResourceLine, allocations, report
from fractile.wire.kubernetes.pod_requests import CountedNode, CountedPod

GPU = "example.com/gpu"


def node(name: str, amounts: dict[str, Any]) -> CountedNode:
    return msgspec.convert({"metadata": {"name": name}, "status": {"capacity": amounts}}, CountedNode)


def pod(
    name: str, on: str, requests: dict[str, Any], *, phase: str = "Running", limits: dict[str, Any] | None = None
) -> CountedPod:
    resources = {"requests": requests, "limits": limits or {}}
    return msgspec.convert(
        {
            "metadata": {"name": name, "namespace": "default"},
            "spec": {"nodeName": on, "containers": [{"name": "c", "resources": resources}]},
            "status": {"phase": phase},
        },
        CountedPod,
    )


def line(found: Allocations, name: str, resource: str) -> ResourceLine:
    (on,) = (n for n in found.nodes if n.node == name)
    (one,) = (one for one in on.lines if one.resource == resource)
    return one


def test_every_resource_of_a_node_has_a_line_also_those_that_nobody_knows() -> None:
    nodes = [node("n", {"cpu": "4", "memory": "8Gi", "pods": 110, GPU: 8, "hugepages-1Gi": 0, "rdma/hca": 0})]
    found = allocations(nodes, [pod("p", "n", {"cpu": "500m", GPU: 2, "example.com/mib": 5})], Filter())

    assert [one.resource for one in found.nodes[0].lines] == [
        "cpu", GPU, "example.com/mib", "memory", "pods", "rdma/hca",
    ]  # fmt: skip
    assert (line(found, "n", GPU).requested, line(found, "n", GPU).free) == (2, 6)
    assert line(found, "n", "cpu").used == Fraction(1, 8)
    assert line(found, "n", "pods").requested == 1
    assert (line(found, "n", "example.com/mib").allocatable, line(found, "n", "example.com/mib").used) == (0, None)


def test_pods_that_have_ended_or_wait_take_nothing() -> None:
    pods = [
        pod("runs", "n", {"cpu": 1}),
        pod("new", "n", {"cpu": 1}, phase="Pending"),
        pod("done", "n", {"cpu": 1}, phase="Succeeded"),
        pod("broken", "n", {"cpu": 1}, phase="Failed"),
        pod("waits", "", {"cpu": 1}, phase="Pending"),
    ]
    found = allocations([node("n", {"cpu": 4})], pods, Filter())

    assert line(found, "n", "cpu").requested == 2
    assert found.nodes[0].pods == 2


def test_more_than_there_is_leaves_less_than_nothing() -> None:
    found = allocations([node("n", {GPU: 1})], [pod("p", "n", {GPU: 3})], Filter())

    assert line(found, "n", GPU).free == -2
    assert report(found).nodes[0].resources[0].free == "-2"
    assert report(found).nodes[0].resources[0].utilization_percent == 300.0


def test_limits_are_shown_beside_requests() -> None:
    found = allocations([node("n", {"cpu": 4})], [pod("p", "n", {"cpu": 1}, limits={"cpu": 3})], Filter())

    assert (line(found, "n", "cpu").requested, line(found, "n", "cpu").limit) == (1, 3)


def test_filters_take_globs_and_totals_are_of_what_is_shown() -> None:
    nodes = [
        node("gpu-1", {"cpu": 4, GPU: 8, "other.com/x": 1}),
        node("gpu-2", {"cpu": 4, GPU: 8}),
        node("cpu-1", {"cpu": 9}),
    ]
    pods = [pod("p", "gpu-1", {"cpu": 1, GPU: 2})]
    found = allocations(nodes, pods, Filter(nodes=("gpu-*",), resources=("example.com/*", "cpu"), only_extended=True))

    assert [(n.node, [one.resource for one in n.lines]) for n in found.nodes] == [("gpu-1", [GPU]), ("gpu-2", [GPU])]
    (total,) = found.totals
    assert (total.requested, total.allocatable, total.free, total.nodes) == (2, 16, 14, 2)


def test_a_pod_that_makes_no_sense_is_told_and_does_not_count_in_part() -> None:
    found = allocations([node("n", {"cpu": 4, GPU: 8})], [pod("p", "n", {"cpu": 1}, limits={GPU: "x"})], Filter())

    assert line(found, "n", "cpu").requested == 0
    assert found.problems == (
        f"pod default/p is not counted: {GPU}: 'x' is not a quantity; write a whole number such as 4",
    )


def test_pods_on_nodes_that_are_gone_are_told() -> None:
    found = allocations([node("n", {"cpu": 1})], [pod("p", "old", {"cpu": 1})], Filter())

    assert found.problems == ("pods are bound to nodes that do not exist: old",)


amounts = st.dictionaries(st.sampled_from(["cpu", "memory", GPU]), st.integers(0, 1000), min_size=1)
places = st.sampled_from(["a", "b", "gone", ""])


@given(st.lists(st.tuples(places, st.booleans(), amounts), max_size=12), amounts)
def test_what_is_requested_and_what_is_free_make_what_there_is(
    wanted: list[tuple[str, bool, dict[str, int]]], given_: dict[str, int]
) -> None:
    pods = [pod(f"p{i}", on, a, phase="Failed" if done else "Running") for i, (on, done, a) in enumerate(wanted)]
    found = allocations([node("a", given_), node("b", given_)], pods, Filter())

    for name in ("a", "b"):
        for one in (one for n in found.nodes if n.node == name for one in n.lines if one.resource != "pods"):
            there = [a.get(one.resource, 0) for on, done, a in wanted if on == name and not done]
            assert one.requested == sum(there)
            assert one.requested + one.free == given_.get(one.resource, 0)
    for total in found.totals:
        parts = [one for n in found.nodes for one in n.lines if one.resource == total.resource]
        assert (total.requested, total.free, total.nodes) == (
            sum(one.requested for one in parts),
            sum(one.free for one in parts),
            len(parts),
        )


def test_a_wish_that_is_written_as_a_resource_is_not_summed() -> None:
    wish = {"nvidia.com/gpu": 1, "nvidia.com/priority": 7}
    found = allocations([node("n", {"nvidia.com/gpu": 8})], [pod("p", "n", wish)], Filter())
    assert [one.resource for one in found.nodes[0].lines] == ["nvidia.com/gpu", "pods"]


@pytest.mark.parametrize(
    ("amounts", "shared"),
    [
        pytest.param({"aliyun.com/gpu-mem": 64, "aliyun.com/gpu-count": 4}, True, id="two of one family"),
        pytest.param({"aliyun.com/gpu-mem": 64, "nvidia.com/gpu": 8}, True, id="two families"),
        pytest.param({"nvidia.com/gpu": 8, "fractile.dev/device": 8, GPU: 2}, False, id="other devices, and strangers"),
    ],
)
def test_it_is_known_whether_several_resources_are_taken_from_the_same_cards(
    amounts: dict[str, Any], shared: bool
) -> None:
    found = allocations([node("n", amounts)], [], Filter())
    assert found.shares_cards is shared
    assert ("fractile inspect shows what is free on the cards" in table(found)) is shared
