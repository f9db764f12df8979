"""Which node a pod gets, on two nodes of eight cards: kube-scheduler's own packing, Fractile's, and kube-scheduler's
spreading, told apart by ``schedulerName`` and by the annotation ``fractile.dev/node-policy``.

Two profiles pack whole cards by kube-scheduler's own scores (``fractile-binpack``, ``fractile-ratio``); with the policy
``none`` the extender leaves the choice to them.
"""

from collections import Counter
from collections.abc import Generator, Sequence
from random import Random
from typing import Any

import pytest

from fractile.extender.policies import ANNOTATION
from fractile.lab.cluster.local import LocalCluster
from fractile.lab.cluster.spec import from_options
from fractile.lab.cluster.up import UpOptions
from fractile.lab.demos import workload as w
from fractile.lab.demos.workload import DemoWorkload, Manifest
from fractile.model.units import MemoryUnit
from tests.e2e.conftest import CHART, NAME

CLUSTER = f"{NAME}-policies"
SPREADING = ("default-scheduler", "none")
PACKING = (
    pytest.param("fractile-binpack", "none", id="MostAllocated"),
    pytest.param("fractile-ratio", "none", id="RequestedToCapacityRatio"),
    pytest.param("default-scheduler", "binpack", id="binpack"),
    pytest.param("default-scheduler", "fgd-plus", id="fgd-plus"),
    pytest.param("default-scheduler", "bestfit+most-allocated", id="a sum"),
)


@pytest.fixture(scope="module")
def eights(_alone: None) -> Generator[LocalCluster]:
    """Two nodes of eight cards each."""
    found = LocalCluster(CLUSTER)
    found.down()
    try:
        spec = from_options(CLUSTER, nodes=2, cards="8x Tesla-V100 16276MiB", unit=MemoryUnit.GiB)
        found.up(UpOptions(spec=spec, chart=CHART))
        yield found
    finally:
        found.down()


@pytest.fixture
def work(eights: LocalCluster) -> Generator[DemoWorkload]:
    found = DemoWorkload(eights.kubectl, "e2e-policies")
    found.create_namespace()
    found.delete()
    yield found
    found.delete(wait=120)


def asking(name: str, count: int, scheduler: str, policy: str) -> Manifest:
    body = w.pod(name, w.container(count=count))
    body["metadata"]["annotations"] = {ANNOTATION: policy}
    body["spec"]["schedulerName"] = scheduler
    return body


def replicas(count: int, scheduler: str, policy: str) -> Manifest:
    """A Deployment of pods with one card each."""
    template = asking("", 1, scheduler, policy)
    labels = {"app": "replicas"}
    meta = {"labels": labels, "annotations": template["metadata"]["annotations"]}
    spec = {
        "replicas": count,
        "selector": {"matchLabels": labels},
        "template": {"metadata": meta, "spec": template["spec"]},
    }
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "replicas"}, "spec": spec}


def clear(eights: LocalCluster, work: DemoWorkload) -> None:
    """Delete all pods, and wait until the ledger knows that they are gone: its watch may be behind kubectl's look."""
    held = [p["metadata"]["uid"] for p in work.pods().values() if p["spec"].get("nodeName")]
    every = ("--all", "--cascade=foreground", "--timeout=60s")  # else a ReplicaSet makes new ones meanwhile
    eights.kubectl("-n", work.namespace, "delete", "deployment", *every)
    work.delete(wait=60)
    log = eights.log("control-plane")
    work.wait_until(60, "free cards", lambda: all(f"released uid={uid}" in log.read_text() for uid in held))


def by_node(work: DemoWorkload) -> list[int]:
    """How many pods each node has, the fullest first."""
    nodes = Counter(node for p in work.pods().values() if (node := p["spec"].get("nodeName", "")))
    return sorted(nodes.values(), reverse=True)


def ten(eights: LocalCluster, work: DemoWorkload, scheduler: str, policy: str) -> list[int]:
    work.apply([replicas(10, scheduler, policy)])
    try:
        work.wait_until(60, "ten bound pods", lambda: sum(by_node(work)) == 10)
        return by_node(work)
    finally:
        clear(eights, work)


@pytest.mark.parametrize(("scheduler", "policy"), PACKING)
def test_ten_replicas_fill_a_node_before_the_next(
    eights: LocalCluster, work: DemoWorkload, scheduler: str, policy: str
) -> None:
    assert ten(eights, work, scheduler, policy) == [8, 2]


@pytest.mark.long
def test_by_itself_kube_scheduler_spreads_them(eights: LocalCluster, work: DemoWorkload) -> None:
    assert ten(eights, work, *SPREADING) == [5, 5]


def bound_cards(work: DemoWorkload, sizes: Sequence[int], scheduler: str, policy: str) -> str:
    """How services of these sizes that come one after the other end up: on each node, fullest first, and waiting."""
    for n, size in enumerate(sizes):
        name = f"s{n}-{size}"
        work.apply([asking(name, size, scheduler, policy)])
        work.wait_until(30, f"a decision about {name}", lambda name=name: _decided(work.pods()[name]))
    nodes: dict[str, list[str]] = {}
    for name, one in sorted(work.pods().items()):
        nodes.setdefault(one["spec"].get("nodeName", "waits"), []).append(name.rpartition("-")[2])
    waiting = nodes.pop("waits", [])
    shown = sorted(("+".join(sorted(found)) for found in nodes.values()), key=len, reverse=True)
    return " | ".join([*shown, *(f"waits {size}" for size in waiting)])


def _decided(pod: dict[str, Any]) -> bool:
    conditions = {c["type"]: c for c in pod["status"].get("conditions", ())}
    return bool(pod["spec"].get("nodeName")) or conditions.get("PodScheduled", {}).get("reason") == "Unschedulable"


@pytest.mark.long
def test_services_of_all_sizes_find_room_where_spreading_leaves_none(eights: LocalCluster, work: DemoWorkload) -> None:
    """1 + 1 + 2 + 4 cards on one node leave the other to the service of 8, in any order."""
    for seed in (1, 2):
        sizes = [1, 1, 2, 4]
        Random(seed).shuffle(sizes)
        assert bound_cards(work, [*sizes, 8], *SPREADING).endswith("waits 8")
        clear(eights, work)
        assert bound_cards(work, [*sizes, 8], "default-scheduler", "fgd-plus") == "1+1+2+4 | 8", sizes
        clear(eights, work)


def test_a_namespace_names_the_policy_of_its_pods(eights: LocalCluster, work: DemoWorkload) -> None:
    eights.kubectl("annotate", "namespace", work.namespace, f"{ANNOTATION}=spread", "--overwrite")
    try:
        body = [w.pod(f"p{n}", w.container(count=1)) for n in range(2)]
        for one in body:
            work.apply([one])
            name = one["metadata"]["name"]
            work.wait_until(30, name, lambda name=name: bool(work.pods()[name]["spec"].get("nodeName")))
        assert by_node(work) == [1, 1]
    finally:
        eights.kubectl("annotate", "namespace", work.namespace, f"{ANNOTATION}-")
        work.delete(wait=60)
