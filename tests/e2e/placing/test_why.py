"""``fractile why`` on the real cluster: a pod that waits, and one that runs, through the API server alone."""

import subprocess
import sys
from collections.abc import Generator

import pytest

from fractile.lab.cluster.local import LocalCluster
from fractile.lab.demos import workload as w
from fractile.lab.demos.workload import DemoWorkload
from fractile.wire.output.why import Why, decode
from tests.main.process import PROGRAM

NAMESPACE = "e2e-why"


@pytest.fixture
def work(cluster: LocalCluster) -> Generator[DemoWorkload]:
    """A namespace that is empty before and after."""
    cluster.up()
    found = DemoWorkload(cluster.kubectl, NAMESPACE)
    found.create_namespace()
    found.delete()
    yield found
    found.delete(wait=120)


def why(cluster: LocalCluster, pod: str) -> Why:
    argv = [sys.executable, "-c", PROGRAM, "why", pod, "-n", NAMESPACE, "--kubeconfig", str(cluster.kubeconfig)]
    return decode(subprocess.run([*argv, "-o", "json"], capture_output=True, text=True, timeout=60, check=True).stdout)


def test_a_pod_that_waits_and_a_pod_that_runs_are_explained(cluster: LocalCluster, work: DemoWorkload) -> None:
    work.apply([w.pod("large", w.container(memory=20_000)), w.pod("runs", w.container(memory=1024))])
    work.wait_running("runs")
    work.wait_refused("large")
    large, runs = why(cluster, "large"), why(cluster, "runs")

    # 1. The pod that waits: the sentence of the filter is the one in kube-scheduler's own message.
    assert (large.state, large.scheduling.seen, large.fits) == ("pending", True, ())
    assert large.verdict.startswith("none of "), large.verdict
    assert all(r in large.scheduling.message for g in large.groups[:1] for r in g.reasons)
    assert "FailedScheduling" in {e.reason for e in large.events}
    assert "smaller-part" in {c.change for c in large.changes}

    # 2. The pod that runs: what it holds, and what its node's agent says through the API server.
    assert (runs.state, runs.node) == ("running", w.node_of(work.pods()["runs"]))
    assert [(h.container, h.memory_mib, h.use is not None) for h in runs.holds] == [("main", 1024, True)], runs.notes
