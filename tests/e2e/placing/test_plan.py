"""``fractile plan`` on the real cluster: why pods wait, which single change would help, and moves under a budget."""

import subprocess
import sys
from collections.abc import Generator

import pytest

from fractile.lab.cluster.local import LocalCluster
from fractile.lab.demos import workload as w
from fractile.lab.demos.workload import DemoWorkload, Manifest
from fractile.wire.output.plan import Plan, Reason, decode
from tests.main.process import PROGRAM

PAIR = ("n1", "n2")  # two cards each


@pytest.fixture
def work(cluster: LocalCluster) -> Generator[DemoWorkload]:
    """A namespace that is empty before and after."""
    cluster.up()
    found = DemoWorkload(cluster.kubectl, "e2e-plan")
    found.create_namespace()
    found.delete()
    yield found
    cluster.kubectl("-n", found.namespace, "delete", "pdb", "--all")
    found.delete(wait=120)


def fractile_plan(cluster: LocalCluster, *args: str) -> str:
    argv = [sys.executable, "-c", PROGRAM, "plan", "--nodes", "live", "--kubeconfig", str(cluster.kubeconfig), *args]
    return subprocess.run(argv, capture_output=True, text=True, timeout=60, check=True).stdout


def planned(cluster: LocalCluster, *args: str) -> Plan:
    return decode(fractile_plan(cluster, "-o", "json", *args))


def budget(app: str) -> Manifest:
    """No pod of the application may be away."""
    spec = {"minAvailable": 1, "selector": {"matchLabels": {"plan": app}}}
    return {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": app}, "spec": spec}


def scattered(work: DemoWorkload) -> None:
    """One of two cards in use on each of two nodes, by pods that may run on either; others held the rest meanwhile."""
    work.apply([w.pod("all-of-n2", w.container(count=2), nodes=["n2"])])
    work.wait_running("all-of-n2")
    work.apply([w.pod("free", w.container(count=1), nodes=PAIR), w.pod("n1", w.container(count=1), nodes=["n1"])])
    work.wait_running("free", "n1")
    work.delete("all-of-n2")
    work.apply([w.pod("kept", w.container(count=1), nodes=PAIR, labels={"plan": "kept"}), budget("kept")])
    work.wait_running("kept")
    work.delete("n1")


def test_why_pods_wait_and_what_would_help(cluster: LocalCluster, work: DemoWorkload) -> None:
    scattered(work)
    work.apply(
        [
            w.pod("two", w.container(count=2), nodes=PAIR),
            w.pod("large", w.container(memory=20_000)),
        ]
    )
    work.wait_refused("two")
    work.wait_refused("large")
    before = {name: w.node_of(pod) for name, pod in work.pods().items()}
    report = planned(cluster, "--defragment")
    waiting = {pod: group for group in report.waiting for pod in group.pods if pod.startswith("e2e-plan/")}

    # 1. The reasons, node by node: n3 and n4 are not admitted by the affinity.
    assert set(waiting) == {"e2e-plan/two", "e2e-plan/large"}
    assert set(waiting["e2e-plan/two"].reasons) >= {Reason(("gpu",), 2), Reason(("label",), 2)}
    assert {r.lacks for r in waiting["e2e-plan/large"].reasons} == {("size",)}

    # 2. The single change, as kube-scheduler agrees.
    changes = {c.change: c for c in waiting["e2e-plan/two"].changes}
    assert changes["fewer-gpus"].to == 1
    assert changes["drop-node-selector"].node in ("n3", "n4")
    smaller = {c.change: c for c in waiting["e2e-plan/large"].changes}["smaller-part"]
    work.apply([w.pod("smaller", w.container(memory=smaller.to or 0), nodes=[smaller.node])])
    work.wait_running("smaller")
    work.delete("smaller")

    # 3. Of the two pods in the way only the one without a budget is moved, and nobody moved it.
    found = report.defragmentation
    assert found is not None
    moves = [(m.pod, m.source, m.target) for stage in found.stages for m in stage.moves]
    assert moves == [("e2e-plan/free", "n1", "n2")]
    assert [(p.pod, p.node) for stage in found.stages for p in stage.admits] == [("e2e-plan/two", "n1")]
    assert {name: w.node_of(pod) for name, pod in work.pods().items()} == before
    assert "would fit: ask for aliyun.com/gpu-count: 1 instead of 2" in fractile_plan(cluster)
