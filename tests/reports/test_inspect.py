"""The report on cards, from objects as the API server returns them."""

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from fractile.dialects.agents import memory_unit
from fractile.model.card import Card
from fractile.model.units import CardUUID, MemoryUnit, MiB, NodeName
from fractile.reports.inspect import InspectedObjects, only, survey
from fractile.wire.fractile import isolation, placement
from fractile.wire.fractile.extended_resource import ExtendedResource
from fractile.wire.fractile.resource_class import GPU_SLOT, resource_name
from fractile.wire.kubernetes.objects import Node, Pod
from fractile.wire.output import inspect
from tests.reports.objects import MEMORY, card, container, node, placed, pod


def report(
    pods: Sequence[dict[str, Any]], *, cards: Sequence[dict[str, Any]] = (card("n1", 0), card("n1", 1))
) -> inspect.Inspection:
    return survey(
        InspectedObjects(
            cards=[msgspec.convert(c, ExtendedResource) for c in cards],
            nodes=[msgspec.convert(node("n1", gpu_mem=2 * MEMORY), Node)],
            pods=[msgspec.convert(p, Pod) for p in pods],
        )
    )


def test_a_pod_whose_card_is_full_already_is_a_problem_and_not_counted_twice() -> None:
    both = [pod(n, container("main", 10_000), on="n1", placed=placed("n1", main=(0, 10_000))) for n in ("a", "b")]

    found = report(both)

    assert found.totals.allocated_mib == 10_000
    assert [(p.name, p.reason) for p in found.problems] == [
        ("b", "card 0 has 6276 MiB and 100 percent of its cores free, 10000 MiB and 0 percent are needed")
    ]


def test_a_pod_that_kubelet_put_elsewhere_is_shown_where_its_placement_says_and_as_a_problem() -> None:
    moved = pod("a", container("main", 100), on="n1", placed=placed("n1", main=(0, 100)))
    moved["metadata"]["annotations"][placement.CHOICE_ANNOTATION] = placed("n1", main=(1, 100))

    found = report([moved])

    assert [c.allocated_mib for c in found.nodes[0].cards] == [100, 0]
    assert [p.reason for p in found.problems] == [
        "kubelet chose other cards than planned; it starts when the control plane has confirmed them"
    ]


def test_a_pod_whose_limits_are_not_enforced_is_a_problem_until_it_has_ended() -> None:
    free = pod("a", container("main", 100), on="n1", placed=placed("n1", main=(0, 100)))
    free["metadata"]["annotations"][isolation.STATE] = isolation.encode("its node has the label x=off")
    assert [p.reason for p in report([free]).problems] == ["its limits are not enforced: its node has the label x=off"]

    free["status"]["phase"] = "Succeeded"
    assert report([free]).problems == ()


def test_a_pod_without_a_placement_holds_nothing_and_is_a_problem() -> None:
    found = report([pod("a", container("main", 100), on="n1")])

    assert found.totals.allocated_mib == 0
    assert [p.reason for p in found.problems] == [
        "the pod has no placement: it was bound without Fractile (by spec.nodeName, or by a scheduler that does not "
        "call Fractile), so it gets no card; delete it, and create it again without spec.nodeName"
    ]


def test_a_pod_on_two_cards_stands_on_both_with_its_part() -> None:
    parts = placed("n1", a=(0, 9000), b=(1, 8000))
    found = report([pod("a", container("a", 9000), container("b", 8000), on="n1", placed=parts)])

    assert [[(p.name, p.memory_mib, len(p.containers)) for p in c.pods] for c in found.nodes[0].cards] == [
        [("a", 9000, 1)],
        [("a", 8000, 1)],
    ]


def test_nothing_is_free_on_an_unhealthy_card_but_its_pods_are_still_there() -> None:
    held = pod("a", container("main", 100), on="n1", placed=placed("n1", main=(0, 100)))

    found = report([held], cards=[card("n1", 0, healthy=False), card("n1", 1)])

    sick, well = found.nodes[0].cards
    assert (sick.allocated_mib, sick.free_mib, well.free_mib) == (100, 0, MEMORY)
    assert found.totals.free_mib == MEMORY
    assert found.totals.memory_mib == 2 * MEMORY


def test_an_unhealthy_card_is_a_problem_that_says_why_and_until_when() -> None:
    sick = card("n1", 0, healthy=False)
    sick["status"] = sick["status"] | {"reason": "Xid119", "message": "no answer", "returnsAt": "2026-11-21T05:30:00Z"}
    old = card("n1", 1) | {"status": {"phase": "Unhealthy"}}

    assert [p.reason for p in report([], cards=[sick, old]).problems] == [
        "card 0 of n1 is unhealthy since 2026-11-21T05:00:00Z (Xid119): no answer; "
        "back at 2026-11-21T05:30:00Z if nothing else happens",
        "card 1 of n1 is unhealthy",
    ]


def test_a_card_whose_node_is_lost_is_a_problem() -> None:
    lost = card("n1", 0)
    lost["status"] = {"phase": "Lost", "reason": "NodeLost", "message": "node n1 is not ready"}

    (problem,) = report([], cards=[lost]).problems
    assert problem.reason == "card 0 of n1 is unhealthy (NodeLost): node n1 is not ready"


def test_other_devices_are_not_among_the_cards_and_are_problems_when_they_are_sick() -> None:
    hca = card("n1", 0)
    hca["metadata"] |= {"name": "hca.n1"}
    hca["spec"] = {"nodeName": "n1", "deviceID": "hca.n1", "index": 0, "model": "x", "type": "infiniband", "shares": 2}
    alone = hca | {"metadata": {"name": "hca.n2"}, "spec": hca["spec"] | {"nodeName": "n2", "deviceID": "hca.n2"}}
    alone["status"] = {"phase": "Unhealthy", "reason": "LinkDown", "message": "port 1 is down"}

    found = report([], cards=[hca, card("n1", 0), alone])
    assert [(n.name, len(n.cards)) for n in found.nodes] == [("n1", 1)]
    assert found.totals.cards == 1
    assert [p.reason for p in found.problems] == ["infiniband hca.n2 is unhealthy (LinkDown): port 1 is down"]


def test_pods_that_wait_are_sorted_by_age_then_by_name() -> None:
    young = pod("a", container("main", 1))
    young["metadata"]["creationTimestamp"] = "2026-11-21T05:00:00Z"

    found = report([young, pod("c", container("main", 1)), pod("b", container("main", 1))])

    assert [p.name for p in found.waiting] == ["b", "c", "a"]


def test_a_pod_that_waits_by_class_names_the_class() -> None:
    asks = container("main", 2, resource=GPU_SLOT)
    asks["resources"]["limits"][resource_name("large")] = "2"
    (waits,) = report([pod("p", asks)]).waiting

    assert [(a.resource, a.count, a.device_class) for a in waits.requests] == [(GPU_SLOT, 2, "large")]


def test_the_part_about_a_node_leaves_the_rest_out() -> None:
    cards = [card("n1", 0), card("n2", 0)]
    found = only(report([pod("waits", container("main", 1))], cards=cards), "n2")

    assert [n.name for n in found.nodes] == ["n2"]
    assert found.totals.cards == 1
    assert found.waiting == ()


@pytest.mark.parametrize(
    ("capacities", "unit"),
    [
        ([], MemoryUnit.MiB),
        ([0, 0], MemoryUnit.MiB),
        ([2 * MEMORY], MemoryUnit.MiB),
        ([30], MemoryUnit.GiB),
        ([15, 0, 30], MemoryUnit.GiB),
        ([0, MEMORY], MemoryUnit.MiB),
    ],
    ids=["no nodes", "no agent", "MiB", "GiB", "GiB with a card lost", "MiB with a card lost"],
)
def test_the_unit_is_what_the_nodes_advertise(capacities: list[int], unit: MemoryUnit) -> None:
    nodes = [msgspec.convert(node(f"n{i}", gpu_mem=c), Node) for i, c in enumerate(capacities)]
    cards = [
        (NodeName(f"n{i}"), Card(CardUUID(f"GPU-{i}-{k}"), k, "T", MiB(MEMORY)))
        for i in range(len(capacities))
        for k in (0, 1)
    ]

    assert memory_unit(nodes, cards) is unit


def test_pods_of_a_family_that_no_agent_serves_are_somebody_elses() -> None:
    others = [
        pod("bound", container("main", 1, resource="nvidia.com/gpu"), on="n1"),
        pod("waiting", container("main", 1, resource="nvidia.com/gpu")),
    ]
    ours = pod("ours", container("main", 100), on="n1")

    served = report([*others, ours], cards=[card("n1", i, dialects="aliyun,tencent,strange") for i in (0, 1)])
    assert [p.name for p in served.problems] == ["ours"]
    assert served.waiting == ()

    mixed = report(others, cards=[card("n1", 0, dialects="aliyun"), card("n1", 1)])  # an agent that says nothing
    assert [p.name for p in mixed.problems] == ["bound"]
    assert [p.name for p in mixed.waiting] == ["waiting"]
