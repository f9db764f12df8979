"""The node loses what the agent keeps in its state directory while containers run, on real kubelets and containerd.

Two ways: where a region is mounted in a container's directory (``--shared-files memory``) `rm -rf` on the node leaves
that directory, and the agent fills it again. Without that mount, or from a mount namespace that does not have it, the
directory goes, and takes what the container has mounted of it along.
"""

import shutil
import subprocess
import time
from collections.abc import Generator
from pathlib import Path

import pytest

from fractile.agent.audit import audit
from fractile.agent.limits import restore
from fractile.lab.cluster.local import KubectlFailed, LocalCluster
from fractile.lab.demos.workload import DemoWorkload
from fractile.lab.machine import mounts
from tests.e2e.conftest import not_on_chart
from tests.e2e.node.test_limits import meanwhile, probe, sharer, slice_of, tenant
from tests.e2e.node.test_usage import asked

AT = "n1"
MIB = 2**20

pytestmark = [pytest.mark.long, not_on_chart("the agent's folder is removed below its mount: kubelet starts it again")]


@pytest.fixture
def work(cluster: LocalCluster) -> Generator[DemoWorkload]:
    """A namespace that is empty before and after, on nodes that have the library."""
    cluster.up()
    if not cluster.state.native:
        pytest.skip("the library is not built here: it needs gcc and make")
    found = DemoWorkload(cluster.kubectl, "e2e-state-lost")
    found.create_namespace()
    found.delete()
    yield found
    found.delete(wait=120)


def state(cluster: LocalCluster) -> Path:
    return cluster.place.node(cluster.state.node(AT).index).agent


def remove_on_the_node(cluster: LocalCluster) -> str:
    """What `rm` says that cannot be removed."""
    pin = cluster.place.pin(cluster.state.node(AT).index)
    script = f"rm -rf {mounts.AGENT}/*"
    done = subprocess.run([*mounts.enter(pin), "sh", "-c", script], capture_output=True, text=True, check=False)
    return done.stderr


def events(cluster: LocalCluster, work: DemoWorkload, reason: str) -> list[tuple[str, str]]:
    """How often each pod that is there now was told so, and its name."""
    shown = '{range .items[*]}{.involvedObject.uid} {.count} {.involvedObject.name}{"\\n"}{end}'
    selector = f"--field-selector=reason={reason}"
    said = cluster.kubectl("-n", work.namespace, "get", "events", selector, "-o", f"jsonpath={shown}")
    here = {pod["metadata"]["uid"] for pod in work.pods().values()}
    return sorted((count, pod) for uid, count, pod in map(str.split, said.splitlines()) if uid in here)


def until_serving(cluster: LocalCluster, work: DemoWorkload, earlier: int) -> None:
    log = cluster.log(f"{AT}/agent")
    registered = "registered resource=aliyun.com/gpu-mem socket"
    work.wait_until(40, "the agent to have begun again", lambda: log.read_text().count(registered) > earlier)


def registrations(cluster: LocalCluster) -> int:
    return cluster.log(f"{AT}/agent").read_text().count("registered resource=aliyun.com/gpu-mem socket")


def test_directories_that_rm_leaves_behind_are_filled_again_and_limits_hold(
    cluster: LocalCluster, work: DemoWorkload
) -> None:
    work.apply([sharer("thirty", 30)])
    work.wait_running("thirty")
    earlier = registrations(cluster)
    with meanwhile(work, cluster, "thirty", "spin", "30") as before:
        time.sleep(2)
        assert "busy" in remove_on_the_node(cluster)
        until_serving(cluster, work, earlier)
        work.wait_until(20, "its page", lambda: (slice_of(cluster, AT, "thirty") / "arbiter.sock").exists())
        after = probe(work, cluster, "thirty", "info")
        work.apply([tenant("new", 1000, at=AT)])
        work.wait_running("new", seconds=60)
    assert after["total"] == 15 * 256 * MIB, "a program that starts afterwards has its limit"
    (spun,) = before
    assert spun["longest"] < 5, spun
    assert spun["kernels"] * spun["us"] / 30e6 < 0.36, "one that ran before keeps its limit of compute"
    assert events(cluster, work, audit.REASON) == []
    assert events(cluster, work, restore.REASON) == []


@pytest.mark.parametrize("agent_runs", [True, False], ids=["while the agent runs", "while there is none"])
def test_where_directories_are_gone_the_pod_is_told_once_and_nothing_is_given_twice(
    cluster: LocalCluster, work: DemoWorkload, agent_runs: bool
) -> None:
    work.apply([tenant("other", 16_000, at=AT)])
    work.wait_running("other")
    work.apply([sharer("thirty", 30), tenant("large", 9000, at=AT)])
    work.wait_running("thirty", "large")
    earlier = registrations(cluster)
    with (
        meanwhile(work, cluster, "thirty", "spin", "30") as spun,
        meanwhile(work, cluster, "large", "fill", "30") as filled,
    ):
        time.sleep(2)
        if not agent_runs:
            cluster.kill(f"{AT}/agent")
        deadline = time.monotonic() + 10
        while state(cluster).joinpath("slices").exists() and time.monotonic() < deadline:
            shutil.rmtree(state(cluster) / "slices", ignore_errors=True)
        if not agent_runs:
            cluster.start(f"{AT}/agent")
        until_serving(cluster, work, earlier)
        work.wait_until(20, "the events", lambda: len(events(cluster, work, restore.REASON)) == 3)
        time.sleep(5)
        usage = asked(cluster, AT)
        work.apply([tenant("new", 1000, at=AT), tenant("too-much", 3000, at=AT)])
        work.wait_running("new", seconds=60)
    assert spun[0]["longest"] < 5, "it did not wait for an arbiter that cannot come"
    assert filled[0]["refusal"] == 2, "its memory limit holds"
    assert events(cluster, work, audit.REASON) == []
    assert events(cluster, work, restore.REASON) == [("1", "large"), ("1", "other"), ("1", "thirty")]
    told = {c.pod: "was removed from the node" in c.problem for c in usage.containers}
    assert told == {"large": True, "other": True, "thirty": True}
    assert usage.outside == ()
    with pytest.raises(KubectlFailed):
        probe(work, cluster, "large", "info")
    assert "3000 MiB" in work.wait_refused("too-much")
    work.delete("large", "too-much")
    work.apply([tenant("large", 9000, at=AT)])
    work.wait_running("large", seconds=60)
    assert probe(work, cluster, "large", "info")["total"] == 9000 * MIB
