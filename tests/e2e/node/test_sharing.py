"""Rules about how cards may be cut, given to a cluster that runs."""

import time
from collections.abc import Generator
from pathlib import Path

import pytest

from fractile.lab.cluster.chart import NAMESPACE
from fractile.lab.cluster.local import LocalCluster
from fractile.lab.cluster.up import UpOptions
from fractile.lab.demos import workload as w
from fractile.lab.demos.workload import DemoWorkload
from tests.e2e.conftest import CHART
from tests.e2e.placing.test_path import log_of

SEEN = 150 if CHART else 10  # seconds
NO_RULES = "version: 1\n"
QUARTERS = "version: 1\nmodels:\n  Tesla-V100: {maxSlices: 2, fractions: [1/4]}\n"


@pytest.fixture
def work(cluster: LocalCluster) -> Generator[DemoWorkload]:
    """A namespace that is empty before and after, and no rules afterwards."""
    found = DemoWorkload(cluster.kubectl, "e2e-sharing")
    cluster.up()
    found.create_namespace()
    found.delete()
    try:
        yield found
    finally:
        cluster.up(UpOptions(sharing=NO_RULES))
        found.delete(wait=120)


def rule(cluster: LocalCluster, work: DemoWorkload, text: str) -> None:
    """As `fractile up --sharing FILE` does; nothing is restarted."""
    before, seen = cluster.process("control-plane"), log_of(cluster).count("sharing rules read")
    cluster.up(UpOptions(sharing=text))
    if CHART:
        look(cluster)
    work.wait_until(SEEN, "the rules to be read", lambda: log_of(cluster).count("sharing rules read") > seen)
    assert cluster.process("control-plane") == before


def look(cluster: LocalCluster) -> None:
    """Kubelet puts what changed in a ConfigMap into a pod when it looks at the pod: once in one or two minutes, or when
    somebody writes into the pod."""
    time.sleep(1)  # its own watch of the ConfigMap may be behind
    label = "app.kubernetes.io/component=control-plane"
    note = f"e2e.fractile.dev/looked-at={time.time_ns()}"
    cluster.kubectl("-n", NAMESPACE, "annotate", "pods", "--selector", label, note, "--overwrite")


@pytest.mark.timeout(600 if CHART else 300)
def test_rules_that_up_is_given_hold_on_a_running_cluster_until_it_is_given_others(
    cluster: LocalCluster, work: DemoWorkload
) -> None:
    rule(cluster, work, QUARTERS)
    work.apply([w.pod("odd", w.container(memory=5000), nodes=["n3"])])
    assert "5000 MiB requested, but cards here are cut only in 1/4 (4069 MiB)" in work.wait_refused("odd")

    names = [f"quarter-{i}" for i in range(5)]
    work.apply([w.pod(name, w.container(memory=4069), nodes=["n3"]) for name in names[:4]])
    work.wait_running(*names[:4])  # two slices on each of two cards
    work.apply([w.pod(names[4], w.container(memory=4069), nodes=["n3"])])
    assert "2 of 2" in work.wait_refused(names[4])

    cluster.up()
    assert Path(cluster.place.sharing).read_text() == QUARTERS  # who says nothing changes nothing
    rule(cluster, work, NO_RULES)
    assert w.node_of(work.wait_running("odd", names[4])["odd"]) == "n3"
