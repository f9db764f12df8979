"""A pod that was refused for capacity runs soon after somebody leaves, also when kube-scheduler sees that first."""

import signal
import time
from collections.abc import Generator

import pytest

from fractile.lab.cluster.local import LocalCluster
from fractile.lab.demos import workload as w
from fractile.lab.demos.workload import DemoWorkload

NODE = "n3"
ALMOST_A_CARD = 16_000
SOON = 2.0  # seconds from the release to the Binding


@pytest.fixture
def work(cluster: LocalCluster) -> Generator[DemoWorkload]:
    """A namespace that is empty before and after."""
    cluster.up()
    found = DemoWorkload(cluster.kubectl, "e2e-wakeup")
    found.create_namespace()
    found.delete()
    yield found
    found.delete(wait=120)


def fill(work: DemoWorkload) -> None:
    """Both cards of the node are held, and somebody waits whom the extender has refused, not the node's sum."""
    work.apply([w.pod(f"old-{i}", w.container(memory=9000), nodes=[NODE]) for i in range(2)])
    work.wait_running("old-0", "old-1")
    work.apply([w.pod("waits", w.container(memory=ALMOST_A_CARD - 2000), nodes=[NODE])])
    assert "requested on one card" in work.wait_refused("waits")


def until_bound(work: DemoWorkload, name: str) -> float:
    began = time.monotonic()
    work.wait_until(20, f"{name} to be bound", lambda: bool(w.node_of(work.pods()[name])))
    return time.monotonic() - began


def test_a_release_that_kube_scheduler_sees_first_wakes_the_pod_in_time(
    cluster: LocalCluster, work: DemoWorkload
) -> None:
    fill(work)
    # The control plane sees nothing until the pod is gone; kube-scheduler has seen it by then, and asks at once.
    cluster.kill("control-plane", signal.SIGSTOP)
    try:
        work.delete("old-0")
        time.sleep(0.5)
    finally:
        cluster.kill("control-plane", signal.SIGCONT)
    took = until_bound(work, "waits")
    print(f"bound {took:.2f} s after the release")
    assert took <= SOON
    work.wait_running("waits")
