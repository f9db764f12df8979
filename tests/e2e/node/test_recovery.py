"""Recovery on the real cluster: what the node forgets or loses costs no running container, and new pods start right.

What needs no real kubelet is at the level of the agent: tests/agent/test_kills.py, test_alone.py, test_path.py and
tests/property/test_identity_machine.py. A node that restarts is played there as well: the kernel of this one cannot.
"""

import shutil
import signal
import subprocess
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from fractile.lab.cluster.local import LocalCluster
from fractile.lab.cluster.stage import LocalStage
from fractile.lab.demos import demos
from fractile.lab.demos import workload as w
from fractile.lab.demos.workload import DemoWorkload, Manifest
from fractile.lab.machine import mounts
from fractile.wire.foreign.kubelet_checkpoint import FILE_NAME
from tests.e2e.conftest import not_on_chart

pytestmark = pytest.mark.long

NODE = "n1"
SIZE = 3000


@pytest.fixture
def work(cluster: LocalCluster) -> Generator[DemoWorkload]:
    """A namespace that is empty before and after."""
    cluster.up()
    found = DemoWorkload(cluster.kubectl, "e2e-recovery")
    found.create_namespace()
    found.delete()
    yield found
    found.delete(wait=120)


def start(work: DemoWorkload, *names: str) -> dict[str, Manifest]:
    work.apply([w.pod(name, w.container(memory=SIZE), nodes=[NODE]) for name in names])
    return dict(work.wait_running(*names, seconds=90))


def restarts(work: DemoWorkload, name: str) -> int:
    return work.pods()[name]["status"]["containerStatuses"][0]["restartCount"]


def registrations(cluster: LocalCluster) -> int:
    return cluster.log(f"{NODE}/agent").read_text().count("registered resource=aliyun.com/gpu-mem socket")


def slices(cluster: LocalCluster) -> Path:
    """The token directories of the node's agent."""
    return cluster.place.node(cluster.state.node(NODE).index).agent / "slices"


def _agent(cluster: LocalCluster) -> list[str]:
    process = cluster.process(f"{NODE}/agent")
    assert process is not None
    return Path(f"/proc/{process.pid}/cmdline").read_text().split("\0")


@not_on_chart("a second agent would need a pod of its own, as an upgrade makes it: test_chart.py")
def test_a_new_agent_that_starts_beside_the_old_one_waits_and_takes_over_when_that_ends(
    cluster: LocalCluster, work: DemoWorkload, tmp_path: Path
) -> None:
    start(work, "before")
    earlier = registrations(cluster)
    log = tmp_path / "new.log"
    with second_agent(cluster, log) as new:
        work.wait_until(30, "the new agent to wait", lambda: "another agent works on this node" in log.read_text())
        pods = start(work, "during")  # served by the old one
        assert registrations(cluster) == earlier
        assert "registered" not in log.read_text()

        # From now on pods are created all the time, as the old one goes and the new one comes.
        names = [f"over-{i}" for i in range(4)]
        work.apply([w.pod(name, w.container(memory=1000), nodes=[NODE]) for name in names[:2]])
        cluster.kill(f"{NODE}/agent", signal.SIGTERM)
        work.apply([w.pod(name, w.container(memory=1000), nodes=[NODE]) for name in names[2:]])
        work.wait_until(30, "the new agent to be registered", lambda: "registered resource=" in log.read_text())
        pods |= start(work, "after") | work.wait_running(*names, seconds=90)
        pods["before"] = work.pods()["before"]
        assert all(restarts(work, name) == 0 for name in pods)
        demos.check_kubelet_record(LocalStage(cluster), work.namespace, pods)
        assert new.poll() is None
    cluster.start(f"{NODE}/agent")  # and the other way round: this one finds a lock that is free
    work.wait_until(30, "the agent to be registered again", lambda: registrations(cluster) > earlier)
    start(work, "last")
    assert all(restarts(work, name) == 0 for name in pods)


@contextmanager
def second_agent(cluster: LocalCluster, log: Path) -> Generator[subprocess.Popen[bytes]]:
    """The node's agent once more, as an upgrade starts it: same node, same folders."""
    process = cluster.process(f"{NODE}/agent")
    assert process is not None
    argv = [*mounts.enter(cluster.place.pin(cluster.state.node(NODE).index)), *_agent(cluster)[:-1]]
    raw = Path(f"/proc/{process.pid}/environ").read_bytes().split(b"\0")
    env = dict(entry.split(b"=", 1) for entry in raw if b"=" in entry)
    with log.open("wb") as out:
        new = subprocess.Popen(argv, env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=out)
    try:
        yield new
        new.send_signal(signal.SIGTERM)
        assert new.wait(20) == 0
    finally:
        new.kill()
        new.wait(20)


def gone(folder: Path) -> bool:
    """Removes it; the arbiter, which dies with its agent, takes its socket away at the same time."""
    shutil.rmtree(folder, ignore_errors=True)
    return not folder.exists()


def test_a_kubelet_without_its_record_leaves_running_containers_and_double_books_nothing(
    cluster: LocalCluster, work: DemoWorkload
) -> None:
    start(work, "before")
    earlier = registrations(cluster)
    cluster.kill(f"{NODE}/kubelet")
    (cluster.kubelet_folder(NODE) / "device-plugins" / FILE_NAME).unlink()
    cluster.start(f"{NODE}/kubelet")
    work.wait_until(30, "the agent to be registered again", lambda: registrations(cluster) > earlier)
    pods = start(work, "after")
    assert restarts(work, "before") == 0
    both = {"before": work.pods()["before"], "after": pods["after"]}
    held = [s for pod in both.values() for c in w.placement_of(pod).containers for s in c.slices]
    assert all(sum(s.memory for s in held if s.card == one.card) <= 16_276 for one in held)
    for name in both:
        assert "gpu-mem" in str(both[name]["spec"])
        seen = work.environment(name, "main")
        assert seen["NVIDIA_VISIBLE_DEVICES"] == w.placement_of(both[name]).containers[0].slices[0].card


def test_an_agent_without_its_journal_leaves_running_containers_and_serves_new_ones(
    cluster: LocalCluster, work: DemoWorkload
) -> None:
    start(work, "before")
    folder = slices(cluster)
    assert list(folder.iterdir())
    cluster.kill(f"{NODE}/agent")
    work.wait_until(10, "the journal to be gone", lambda: gone(folder))
    earlier = registrations(cluster)
    cluster.start(f"{NODE}/agent")
    work.wait_until(30, "the agent to be registered again", lambda: registrations(cluster) > earlier)
    pods = start(work, "after")
    assert restarts(work, "before") == 0
    both = {"before": work.pods()["before"], "after": pods["after"]}
    demos.check_kubelet_record(LocalStage(cluster), work.namespace, both)
