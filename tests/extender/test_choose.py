"""The node of a pod among all nodes: where it may go, which is best, and that it is the simulator's."""

from collections.abc import AsyncGenerator
from random import Random
from typing import Any

import pytest

from fractile.dialects.aliyun import COUNT, MEMORY
from fractile.dialects.table import NAMES, parse_pod
from fractile.extender.choose import Chooser
from fractile.globalplacement.placing import Left
from fractile.model.quota import NamespaceQuota, NodePlace, Quota
from fractile.model.refusal import Refusal
from fractile.model.request import PodRequest
from fractile.model.units import MemoryUnit, NodeName, PodUID
from fractile.policy.nodes.mix import Mix
from fractile.policy.nodes.policies.table import find
from fractile.policy.nodes.score_cache import ScoreCache
from fractile.policy.nodes.scoring_context import scoring_of
from fractile.policy.nodes.view import WHOLE_GPU, TaskDemand
from fractile.sim.cluster import Cluster
from fractile.sim.snapshot.trace import NodeRow
from fractile.wire.kubernetes.manifests import Taint
from tests.builders import CARD_MEMORY, card, container, in_use
from tests.globalplacement.placing_world import World, world

FULL = CARD_MEMORY
GPU_TAINT = Taint(key="gpu", value="yes", effect="NoSchedule")
TOLERATED = [{"key": "gpu", "operator": "Exists"}]
ZONE = {"key": "zone", "operator": "In", "values": ["b"]}


@pytest.fixture
async def w() -> AsyncGenerator[World, None]:
    async with world(("n1", "n2", "n3")) as made:
        yield made


def chosen(w: World, name: str = "p", *, by: Chooser | None = None) -> str | Refusal | Left:
    pod = w.stored(name)
    request = parse_pod(pod, MemoryUnit.MiB, NAMES)
    assert isinstance(request, PodRequest)
    return (by or w.chooser).choose(pod, request)


def required(*terms: dict[str, Any]) -> dict[str, Any]:
    found = {"nodeSelectorTerms": [{"matchExpressions": [term]} for term in terms]}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": found}}


async def test_of_equal_nodes_the_first_and_the_fullest_of_others(w: World) -> None:
    w.create()
    assert chosen(w) == "n1"
    in_use(w.p.ledger, "n3", 5000)
    assert chosen(w) == "n3"


@pytest.mark.parametrize(
    ("spec", "goes"),
    [
        pytest.param({}, "n1", id="nothing said"),
        pytest.param({"nodeSelector": {"zone": "b"}}, "n2", id="a node selector"),
        pytest.param({"nodeSelector": {"zone": "c"}}, "", id="a label that no node has"),
        pytest.param({"affinity": required(ZONE)}, "n2", id="node affinity"),
        pytest.param({"affinity": required({"key": "x", "operator": "Exists"}, ZONE)}, "n2", id="one of two terms"),
    ],
)
async def test_by_its_labels(w: World, spec: dict[str, Any], goes: str) -> None:
    w.node("n1", labels={"zone": "a"})
    w.node("n2", labels={"zone": "b"})
    w.create(spec=spec)
    found = chosen(w)
    assert (found if not isinstance(found, Refusal) else "") == goes


@pytest.mark.parametrize(("spec", "goes"), [({}, "n3"), ({"tolerations": TOLERATED}, "n1")], ids=["no", "tolerated"])
async def test_taints_and_cordons(w: World, spec: dict[str, Any], goes: str) -> None:
    w.node("n1", taints=[GPU_TAINT])
    w.node("n2", cordoned=True)
    w.create(spec=spec)
    assert chosen(w) == goes


async def test_what_is_known_of_nodes_is_followed(w: World) -> None:
    w.create()
    w.node("n1", cordoned=True)
    assert chosen(w) == "n2"
    w.node("n1")
    assert chosen(w) == "n1"
    w.rules.drop("n1")
    assert chosen(w) == "n2"
    w.p.ledger.put_card(NodeName("n0"), card("n0", 0))  # nobody has shown the node yet
    in_use(w.p.ledger, "n0", 8000)
    assert chosen(w) == "n2"
    w.node("n0")
    assert chosen(w) == "n0"


@pytest.mark.parametrize(
    "gives",
    [
        pytest.param({"cpu": "1", "memory": "64Gi", "pods": "9"}, id="CPU"),
        pytest.param({"cpu": "9", "memory": "1Gi", "pods": "9"}, id="memory"),
        pytest.param({"cpu": "9", "memory": "64Gi", "pods": "0"}, id="pods"),
    ],
)
async def test_where_the_rest_of_the_node_is_too_small(w: World, gives: dict[str, str]) -> None:
    w.node("n1", gives=gives)
    w.create("p", container(memory=100, requests={"cpu": "2", "memory": "2Gi"}))
    assert chosen(w) == "n2"


@pytest.mark.parametrize(
    "spec",
    [
        pytest.param(
            {
                "affinity": {
                    "podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": "zone"}]}
                }
            },
            id="pod affinity",
        ),
        pytest.param({"topologySpreadConstraints": [{"whenUnsatisfiable": "DoNotSchedule"}]}, id="spread"),
        pytest.param({"volumes": [{"persistentVolumeClaim": {"claimName": "c"}}]}, id="a volume"),
        pytest.param({"resourceClaims": [{"name": "c"}]}, id="a claim"),
    ],
)
async def test_what_only_kube_scheduler_knows_is_left_to_it(w: World, spec: dict[str, Any]) -> None:
    w.create(spec=spec)
    assert isinstance(chosen(w), Left)


async def test_wishes_and_other_volumes_are_no_hindrance(w: World) -> None:
    spread = [{"whenUnsatisfiable": "ScheduleAnyway"}]
    w.create(spec={"topologySpreadConstraints": spread, "volumes": [{"emptyDir": {}}, {"configMap": {"name": "c"}}]})
    assert chosen(w) == "n1"


async def test_a_pod_that_sums_cannot_judge_is_looked_at_card_by_card(w: World) -> None:
    """Two containers, of which each needs a card almost alone: n1 and n2 have room in sum only."""
    for node in ("n1", "n2"):
        in_use(w.p.ledger, node, 9000, 9000)
    w.create("p", container("a", memory=8000), container("b", memory=6000), container("c", memory=9000))
    assert chosen(w) == "n3"


async def test_the_pools_of_a_quota_hold(w: World) -> None:
    w.p.ledger.usage.put_place(NodeName("n2"), NodePlace("research", ""))
    w.p.ledger.usage.limit(Quota({"default": NamespaceQuota(pools=("research",))}))
    w.create()
    assert chosen(w) == "n2"


async def test_room_that_is_kept_for_a_pod_for_which_others_leave_is_no_room(w: World) -> None:
    first = w.create("first", container(memory=FULL), spec={"priority": 5})
    for node in ("n1", "n2", "n3"):
        in_use(w.p.ledger, node, FULL)
    w.p.server.merge(
        f"/api/v1/namespaces/default/pods/{first.metadata.name}/status", {"status": {"nominatedNodeName": "n1"}}
    )
    w.p.handlers.changed(w.stored("first"))
    w.create("second", container(memory=FULL))
    assert chosen(w, "second") == "n2"
    assert chosen(w, "first") == "n1"


SIZE = 10_000  # MiB of a card: a thousandth is 10 MiB


@pytest.mark.parametrize("policy", ["fgd-plus", "bestfit", "most-allocated", "least-allocated", "gpu-packing"])
async def test_nodes_and_cards_are_those_of_the_simulator_for_the_same_pods_in_the_same_order(policy: str) -> None:
    rng = Random(policy)
    nodes = [NodeRow(f"m{i}", rng.choice((32_000, 64_000)), 262_144, rng.choice((2, 4, 8)), "V100") for i in range(12)]
    found = find(policy)
    assert found is not None
    simulated = Cluster(nodes, pod_slots=110)
    score_cache = ScoreCache(simulated.view, found, scoring_of(simulated.view, Mix((), ()), leaving=True))
    async with world((), policy=policy) as w:
        for node in nodes:
            for index in range(node.gpus):
                w.p.ledger.put_card(NodeName(node.name), card(node.name, index, memory=SIZE, model=node.model))
            w.node(node.name, gives={"cpu": f"{node.cpu}m", "memory": f"{node.memory}Mi", "pods": "110"})
        placed = 0
        for number in range(120):
            name, cpu, whole = f"p{number}", rng.choice((500, 4000)), rng.random() < 0.3
            amount = rng.choice((1, 1, 2, 4)) if whole else rng.choice((1000, 2500, 5000, 9000))
            asked: dict[str, object] = {COUNT: amount} if whole else {MEMORY: amount}
            w.submit(name, container(limits=asked, requests={"cpu": f"{cpu}m"}))
            ask = TaskDemand(cpu, 0, amount if whole else 1, WHOLE_GPU if whole else amount * WHOLE_GPU // SIZE)
            choice = score_cache.best(ask, 0)
            node = await w.place(name)
            assert node == ("" if choice is None else nodes[choice.row].name), number
            if choice is None:
                continue
            held = simulated.place(ask, choice)
            score_cache.changed(choice.row)
            entry = w.p.ledger.entry(PodUID(w.uid(name)))
            assert entry is not None
            if not whole:
                assert [c.card for c in entry.charges] == [card(node, d).uuid for d in held.devices]
            placed += 1
        assert 40 < placed < 120
