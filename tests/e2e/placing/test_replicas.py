"""`fractile up --replicas`: control planes that are processes, and what the one that leads believes."""

import signal
import subprocess
import sys
from collections.abc import Generator

import pytest

from fractile.lab.cluster import replicas
from fractile.lab.cluster.local import LocalCluster
from fractile.lab.cluster.up import UpOptions
from fractile.lab.demos import workload as w
from fractile.lab.demos.workload import DemoWorkload
from fractile.wire.output import debug_state
from fractile.wire.output.debug_state import AgentState, ControlPlaneState
from tests.e2e.conftest import not_on_chart

pytestmark = [pytest.mark.long, pytest.mark.e2e]

PROGRAM = "from fractile.main.cli import main; main()"


@pytest.fixture
def several(cluster: LocalCluster) -> Generator[LocalCluster]:
    """The cluster with two, and with one again."""
    try:
        cluster.up(UpOptions(replicas=2))
        yield cluster
    finally:
        cluster.up(UpOptions(replicas=1))


@pytest.fixture
def work(several: LocalCluster) -> Generator[DemoWorkload]:
    found = DemoWorkload(several.kubectl, "e2e-replicas")
    found.create_namespace()
    found.delete()
    yield found
    found.delete(wait=120)


@not_on_chart("its replicas are pods: test_leading.py")
def test_pods_are_placed_by_whoever_leads_and_by_the_next_one_when_it_is_told_to_end(
    several: LocalCluster, work: DemoWorkload
) -> None:
    assert {*replicas.names(several.state)} == {"control-plane-1", "control-plane-2", "replica-proxy"}
    first = believed(several)
    assert isinstance(first, ControlPlaneState)
    work.apply([w.pod("before", w.container(memory=2000))])
    work.wait_running("before", seconds=90)

    (leader,) = [name for name, seen in several.status().items() if seen.pid == first.process.pid]
    assert leader.startswith("control-plane-")
    several.kill(leader, signal.SIGTERM, wait=60)
    work.apply([w.pod("after", w.container(memory=2000))])
    pods = work.wait_running("before", "after", seconds=90)
    assert w.placement_of(pods["after"]).containers[0].slices[0].memory == 2000

    second = believed(several)
    assert isinstance(second, ControlPlaneState)
    assert second.lead.leading
    assert second.process.pid != first.process.pid
    agent = believed(several, f"--node={w.node_of(pods['after'])}")
    assert isinstance(agent, AgentState)


def believed(cluster: LocalCluster, *args: str) -> AgentState | ControlPlaneState:
    """What `fractile debug-state` prints without anything that was set up."""
    argv = [sys.executable, "-c", PROGRAM, "debug-state", f"--name={cluster.name}", *args]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return debug_state.decode(done.stdout)
