"""On a real kubelet: a pod that is deleted by force leaves the API at once and its processes later. Until then nobody
else is given what they hold."""

import json
import time
from collections.abc import Generator
from datetime import datetime
from typing import Any

import pytest

from fractile.agent.audit.departed import REASON
from fractile.lab.cluster.local import LocalCluster
from fractile.lab.cluster.stage import CARD
from fractile.lab.demos.workload import DemoWorkload, Manifest
from tests.e2e.node.test_limits import meanwhile, tenant
from tests.e2e.node.test_usage import asked

pytestmark = pytest.mark.long

AT = "n1"
GRACE = 30  # seconds
HALF = CARD * 3 // 4


@pytest.fixture
def work(cluster: LocalCluster) -> Generator[DemoWorkload]:
    cluster.up()
    if not cluster.state.native:
        pytest.skip("the library is not built here: it needs gcc and make")
    found = DemoWorkload(cluster.kubectl, "e2e-departed")
    found.create_namespace()
    found.delete()
    yield found
    found.delete(wait=120)


def stubborn(name: str, memory: int) -> Manifest:
    """A pod that does not end when it is told to."""
    pod = tenant(name, memory, at=AT)
    pod["spec"]["terminationGracePeriodSeconds"] = GRACE
    pod["spec"]["containers"][0]["command"] = ["/bin/sh", "-c", "trap '' TERM; while :; do /bin/busybox sleep 1; done"]
    return pod


def departed(cluster: LocalCluster) -> list[Any]:
    items = json.loads(cluster.kubectl("get", "extendedresources", "-o", "json"))["items"]
    return [i["status"]["departed"] for i in items if "departed" in i.get("status", {})]


def said(cluster: LocalCluster) -> list[str]:
    items = json.loads(cluster.kubectl("get", "events", "-A", "-o", "json"))["items"]
    return [e["message"] for e in items if e["reason"] == REASON]


def processes(cluster: LocalCluster, pod: str) -> int:
    """Of the pod, as the agent counts them."""
    return sum(c.processes for c in asked(cluster, AT).containers if c.pod == pod)


def test_what_its_processes_hold_is_given_on_when_they_have_ended(cluster: LocalCluster, work: DemoWorkload) -> None:
    work.apply([tenant("other", CARD, at=AT), stubborn("old", HALF)])
    work.wait_running("other", "old", seconds=90)
    with meanwhile(work, cluster, "old", "fill", str(2 * GRACE)):
        work.wait_until(20, "its process on the card", lambda: processes(cluster, "old") > 0)
        deleted = time.time()
        for how in ([], ["--grace-period=0", "--force"]):  # kubelet keeps to the first grace time that it has heard of
            cluster.kubectl("-n", work.namespace, "delete", "pod", "old", "--wait=false", *how)
            time.sleep(1)
        work.apply([tenant("new", HALF, at=AT)])
        work.wait_until(15, "the agent's word", lambda: bool(departed(cluster)))
        assert departed(cluster) == [{"memory": f"{HALF}Mi", "cores": 0, "slices": 1}]
        assert any(f"{work.namespace}/old" in message for message in said(cluster))
    new = work.wait_running("new", seconds=120)["new"]
    (status,) = new["status"]["containerStatuses"]
    started = datetime.fromisoformat(status["state"]["running"]["startedAt"]).timestamp()
    assert started >= deleted + GRACE - 1, "it started beside the processes of the pod that was deleted"
    work.wait_until(15, "the agent to take its word back", lambda: not departed(cluster))
